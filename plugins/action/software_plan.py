# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide once, for all hosts, which software each gets; name all refusals at once. It works on the controller alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.clusterctl.hpc.plugins.module_utils import preflight_rules as rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, plain
from ansible_collections.clusterctl.hpc.plugins.module_utils.prefix_rules import DEFAULT, VARIABLE
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import run_events
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.planned import facts_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import (
    horovod,
    mpi4py,
    nccl,
    openmpi,
    python_env,
    ucx,
    variables,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.controller import Controller
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host, Plan, Refusal

# In the order in which they are decided, each with the roles whose decisions it stands on.
RECIPES = {
    "ucx": (ucx.decide, ()),
    "openmpi": (openmpi.decide, ("ucx",)),
    "python_env": (python_env.decide, ()),
    "mpi4py": (mpi4py.decide, ("openmpi", "python_env")),
    "nccl": (nccl.decide, ("python_env",)),
    "horovod": (horovod.decide, ("openmpi", "python_env", "nccl")),
}
# What a role that is used alone needs to know of another, although that one is not installed.
_ALSO_ALONE = {"horovod": "python_env"}


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core carries no types
    """Its options are ``roles``, those that the play has, and ``hosts``, those that get what is decided for all.

    The tags of the run choose among the roles.
    """

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``artifacts``, or fail with all refusals."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = task_vars or {}
        asked = [role for role in RECIPES if role in plain(self._task.args.get("roles") or list(RECIPES))]
        chosen = chosen_by_tags(asked, given.get("ansible_run_tags") or (), given.get("ansible_skip_tags") or ())
        decided = needed([*chosen, *(_ALSO_ALONE[role] for role in chosen if role in _ALSO_ALONE)], asked)
        try:
            plans = self._decide(decided, frozenset(chosen), given) if decided else {}
        except ArtifactError as error:
            plans = {"": Plan(refusals=[Refusal("", str(error))])}
        if refusals := [(role, one) for role, plan in plans.items() for one in plan.refusals]:
            problems = [problem(role, one) for role, one in refusals]
            return {**result, "failed": True, "problems": problems, "msg": told(one for _role, one in refusals)}
        whole = getting(str(self._task.args.get("hosts") or "all"), given["ansible_play_hosts"])
        artifacts = [
            {**one.as_dict(), "hosts": hosts, "builders": [host for host in one.builders if host in whole]}
            for role in chosen
            for one in plans[role].artifacts
            if (hosts := [host for host in one.hosts if host in whole])
        ]
        return {
            **result,
            "changed": False,
            "artifacts": artifacts,
            "planned_trees": {
                host: {str(one["name"]): str(one["tree"]) for one in artifacts if host in one["hosts"]}
                for host in whole
            },
            "brought": [*_brought(given), *artifacts],
            "leaving": leaving(plans["horovod"], {host: plain(facts_of(given["hostvars"][host])) for host in whole})
            if "horovod" in chosen
            else {},
            "warnings": self._told([text for plan in plans.values() for text in plan.warnings], given),
        }

    def _decide(self, roles: Collection[str], chosen: frozenset[str], given: Mapping[str, Any]) -> dict[str, Plan]:
        """Run the recipes in their order; one that stands on a refused one is left out."""
        hosts = [str(host) for host in given["ansible_play_hosts"]]
        hostvars = given["hostvars"]
        settings = variables.of_hosts(list(RECIPES), hosts, given, self._put_in)
        members = plain(hostvars[hosts[0]]["preflight_members"])
        by_name = {str(one["name"]): one for one in members}
        cluster = Cluster(
            hosts=[
                Host(
                    name=host,
                    member=by_name[host],
                    node=with_brought(plain(facts_of(hostvars[host])), host, _brought(given)),
                    settings=settings[host],
                    interpreter=str(hostvars[host].get("ansible_python_interpreter") or ""),
                )
                for host in hosts
            ],
            members=members,
            prefix=str(hostvars[hosts[0]].get(VARIABLE) or DEFAULT),
            roles=chosen,
            controller=Controller(lambda text: run_events.note(hosts[0], text)),
        )
        plans: dict[str, Plan] = {}
        for role, (decide, needs) in RECIPES.items():
            whole = all(need in plans and not plans[need].refusals for need in needs if need in roles)
            if role in roles and whole:
                plans[role] = decide(cluster, plans)
        return plans

    @staticmethod
    def _told(warnings: list[str], given: Mapping[str, Any]) -> list[str]:
        """Tell the warnings while the run goes on, and return them."""
        for text in warnings:
            run_events.note(str(given["inventory_hostname"]), text)
        return warnings

    def _put_in(self, value: Any, its: Mapping[str, Any]) -> Any:
        """Return a value of the play with the variables of a host put in."""
        known = {**self._templar.available_variables, **its}
        return self._templar.copy_with_new_env(available_variables=known).template(value)


def getting(pattern: str, hosts: Sequence[str]) -> list[str]:
    """Return the hosts that a pattern of the wrapper names: ``all``, ``!all`` or names with commas between them."""
    named = {*hosts} if pattern == "all" else {*pattern.split(",")}
    return [host for host in hosts if host in named]


def leaving(horovod: Plan, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return by host the link of a Horovod that the host has and is to have no longer, by its facts.

    What it was built for may leave with it, and no later run would build it anew.
    """
    wanted = {host for one in horovod.artifacts for host in one.hosts}
    return {
        host: [str(one["link"])]
        for host, node in nodes.items()
        for one in node.get("artifacts") or ()
        if one["name"] == "horovod" and one.get("key") and host not in wanted
    }


def _brought(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what earlier roles of the play installed, each of which has a plan of its own."""
    return list(plain((given.get("software_plan") or {}).get("brought") or []))


def with_brought(node: Mapping[str, Any], host: str, brought: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of a node with the artifacts that came since they were gathered."""
    links = {one["link"]: one for one in brought if host in one["hosts"]}
    kept = [one for one in node.get("artifacts") or () if one.get("link") not in links]
    fields = ("name", "version", "key", "link")
    return {**node, "artifacts": [*kept, *({name: one[name] for name in fields} for one in links.values())]}


def needed(chosen: Sequence[str], asked: Collection[str]) -> set[str]:
    """Return the chosen roles, and those among the asked ones whose decisions they stand on.

    A role that stands on a chosen one is left out, because the run may bring nothing else that it needs.
    """
    below = [need for role in chosen for need in RECIPES[role][1] if need in asked]
    return {*chosen, *(needed(below, asked) if below else ())}


def chosen_by_tags(roles: Sequence[str], run: Iterable[str], skip: Iterable[str]) -> list[str]:
    """Return the roles that ``--tags`` and ``--skip-tags`` leave; the tag ``software`` is of all of them."""
    asked, left_out = {*run} or {"all"}, {*skip}
    if left_out & {"all", "software", "tagged"}:
        return []
    return [role for role in roles if asked & {"all", "tagged", "software", role, "preflight"} and role not in left_out]


def problem(role: str, refusal: Refusal) -> dict[str, str]:
    """Return a refusal as an item of ``problems``."""
    words, _unused, cure = refusal.problem.rpartition("; ")
    return {
        "host": refusal.host,
        "check": role,
        "problem": words or refusal.problem,
        "cure": cure.rstrip(".") if words else "",
        "kind": "configuration",
    }


def told(refusals: Iterable[Refusal]) -> str:
    """Return all refusals as text; equal ones of several hosts share a line."""
    hosts: dict[str, list[str]] = {}
    for one in refusals:
        hosts.setdefault(one.problem, []).append(one.host)
    # a sentence that names its host needs no other name before it
    named = {words: [host for host in its if host and host not in words] for words, its in hosts.items()}
    return "\n".join(f"{rules.shortened(its)}: {words}" if its else words for words, its in named.items())
