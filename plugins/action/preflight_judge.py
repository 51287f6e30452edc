# SPDX-License-Identifier: GPL-3.0-or-later
"""Check all nodes of the play at once, on the controller, by the rules of module_utils/preflight_rules."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail, AnsibleError  # type: ignore[import-untyped]
from ansible.module_utils.common.validation import check_type_dict, check_type_list  # type: ignore[import-untyped]
from ansible.module_utils.parsing.convert_bool import boolean  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import ip_address, prefix_rules
from ansible_collections.clusterctl.hpc.plugins.module_utils import preflight_rules as rules

_INVALID = (
    "update clusterctl if the node is sound; else find out who changed its Python, or leave it out of the inventory"
)
_ROLES = Path(__file__).resolve().parents[2] / "roles"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Ends with the members of the cluster, or with every problem of every node."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``problems``, ``members`` and ``missing``; fails if there is any problem."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        hosts = [str(host) for host in variables["ansible_play_hosts_all"]]
        visited = set(hosts)
        left_out = {str(host) for host in check_type_list(given.get("left_out") or [])}
        inventory = [str(host) for host in variables["groups"]["all"] if str(host) not in left_out]
        inventory += [host for host in hosts if host not in inventory]  # an implicit localhost is in no group
        order = [host for host in inventory if host in visited]
        hostvars = variables["hostvars"]
        judge = rules.VariableRules(_specs(), check_type_list(given["ignored_variables"] or []))
        problems = [*self._variable_problems(judge, order, variables), *_prefix_problems(order, hostvars)]
        if any(judge.role_of(one.variable) == "preflight" or one.check == "prefix" for one in problems):
            # The rules below cannot work with such a value.
            return _failed(result, problems, len(hosts))
        limits = _limits(given)
        nodes: dict[str, Mapping[str, Any]] = {}
        clocks: dict[str, rules.Clock] = {}
        for host in order:
            look = hostvars[host].get(given["looks"]) or {"failure": "the task that looks at it did not run"}
            node = look.get("node")
            if look.get("invalid"):
                problems.append(rules.Problem(host, "error", f"its answer is not valid: {look['invalid']}", _INVALID))
                continue
            if not node:
                problems.append(rules.look_failure(host, str(look.get("failure", ""))))
                continue
            nodes[host] = node
            clocks[host] = rules.clock(look["before_s"], node["time"], look["after_s"])
        builders = rules.builders({host: str(node["platform"]) for host, node in nodes.items()}, limits.builders)
        domains = [str(one) for one in check_type_list(given["node_domains"] or [])]
        fresh, listed = [], _listed(inventory, visited, hostvars)
        for host, node in nodes.items():
            problems += rules.node_problems(host, node, limits, builder=host in builders)
            its = hostvars[host]
            settings, wrong = rules.settings(host, its, _resolve(rules.reached_at(host, its)))
            entry, against = rules.member(settings, node, domains=domains, alone=len(inventory) == 1)
            fresh.append({**entry, **rules.for_builds(host, node, limits)})
            problems += [*wrong, *against]
            listed.append(settings)
        known = [_with_known_names(entry, hostvars, domains) for entry in given["known_members"]]
        members, missing = rules.merge_members(fresh, known, inventory)
        problems += rules.membership_problems(
            members,
            {host: str(node["hostname"]) for host, node in nodes.items()},
            nodes,
            require_unique_host_keys=limits.require_unique_host_keys,
        )
        problems += rules.claim_problems(members, listed, nodes)
        problems += rules.clock_problems(clocks, limits.max_clock_skew_s)
        # A visited host without facts is already reported.
        missing = [host for host in missing if host not in visited]
        result.update(
            changed=False,
            problems=[],
            members=members,
            missing=missing,
            warnings=[
                *judge.warnings(),
                *_warnings(missing, nodes),
                *rules.shared_address_warnings(nodes, members),
                *rules.card_warnings(nodes),
            ],
        )
        return _failed(result, problems, len(hosts)) if problems else result

    def _variable_problems(
        self, judge: rules.VariableRules, hosts: list[str], variables: dict[str, Any]
    ) -> Iterator[rules.Problem]:
        """Check the variables of the inventory and of -e for each host, then those that the play sets."""
        everywhere: set[str] = set()
        for host in hosts:
            its = variables["hostvars"][host]
            for name in its:
                if judge.role_of(str(name)) is None:
                    continue
                everywhere.add(str(name))
                try:
                    value = its[name]
                except AnsibleError:
                    continue  # a template over what later tasks find out cannot be judged yet
                yield from judge.problems(host, str(name), value)
        for name in sorted(map(str, variables)):
            if name in everywhere or judge.role_of(name) is None:
                continue
            try:
                value = self._templar.template(variables[name])
            except AnsibleError:
                continue
            for host in hosts:
                yield from judge.problems(host, name, value)


def _prefix_problems(hosts: list[str], hostvars: Mapping[str, Mapping[str, Any]]) -> Iterator[rules.Problem]:
    """Check the folder of the software, which is the same on all hosts of the cluster."""
    given = {host: hostvars[host].get(prefix_rules.VARIABLE) or prefix_rules.DEFAULT for host in hosts}
    wrong = {host: said for host, prefix in given.items() if (said := prefix_rules.problem(prefix))}
    if not wrong and (said := prefix_rules.disagreement(given)):
        wrong = dict.fromkeys(hosts, said)
    for host, clause in wrong.items():
        words, _unused, cure = clause.rpartition("; ")
        yield rules.Problem(host, "prefix", words, cure, prefix_rules.VARIABLE)


def _listed(inventory: list[str], visited: set[str], hostvars: Mapping[str, Mapping[str, Any]]) -> list[rules.Settings]:
    """Return the settings of the hosts that the run leaves out; a name that is not an address is not looked up."""
    found = []
    for host in inventory:
        if host not in visited and host in hostvars:
            try:
                its = rules.settings(host, hostvars[host], ())[0]
            except AnsibleError:
                continue  # a template over what only its own run would find out
            at = [its.reached_at] if ip_address.is_address(its.reached_at) else []
            found.append(dataclasses.replace(its, resolved=at))
    return found


def _with_known_names(
    entry: Mapping[str, Any], hostvars: Mapping[str, Mapping[str, Any]], domains: list[str]
) -> Mapping[str, Any]:
    """Return a member of an earlier run without aliases that this run would not believe."""
    host = str(entry.get("name"))
    if host not in hostvars:
        return entry
    settings, _unused = rules.settings(host, hostvars[host], ())
    return {**entry, "aliases": rules.known_names(settings, [str(one) for one in entry.get("aliases", ())], domains)}


def _limits(given: Mapping[str, Any]) -> rules.Limits:
    """Return the limits; values from -e are text, also for variables of another type."""

    def sizes(name: str) -> dict[str, int]:
        try:
            return {str(path): int(size) for path, size in check_type_dict(given[name]).items()}
        except (TypeError, ValueError):
            sentence = f"preflight_{name} is {given[name]!r}; it takes bytes by path, as {{/var/tmp: 500000000}}."
            raise AnsibleActionFail(sentence) from None

    return rules.Limits(
        supported={str(name): check_type_list(its) for name, its in check_type_dict(given["supported"]).items()},
        min_python=str(given["min_python"]),
        min_disk_bytes=sizes("min_disk_bytes"),
        min_builder_disk_bytes=sizes("min_builder_disk_bytes"),
        builders=check_type_list(given["builders"]),
        max_clock_skew_s=float(given["max_clock_skew_s"]),
        require_unique_host_keys=boolean(given["require_unique_host_keys"]),
    )


def _failed(result: dict[str, Any], problems: list[rules.Problem], hosts: int) -> dict[str, Any]:
    result.update(
        changed=False, failed=True, problems=[one.as_dict() for one in problems], msg=rules.table(problems, hosts)
    )
    return result


def _specs() -> dict[str, dict[str, Any]]:
    """Return the options of every role of this collection that has argument specs."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(_ROLES.glob("*/meta/argument_specs.yml")):
        entries = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("argument_specs") or {}
        found[path.parents[1].name] = {
            name: spec for entry in entries.values() for name, spec in (entry.get("options") or {}).items()
        }
    return found


def _resolve(name: str) -> list[str]:
    """Look up a name on the controller, and return its addresses, IPv4 first; [] if it does not resolve."""
    if ip_address.is_address(name):
        return [ip_address.canonical(name)]
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    texts = {str(answer[4][0]).partition("%")[0] for answer in answers}
    found = {ip_address.canonical(text) for text in texts if ip_address.is_address(text)}
    return sorted(found, key=lambda one: (":" in one, one))


def _warnings(missing: list[str], nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    warnings = []
    if missing:
        warnings.append(
            f"Nothing is known of {rules.shortened(missing)}, which this run leaves out: "
            "the nodes of this run will not know them until a run without --limit."
        )
    warnings += [
        f"{host}: a part of the look failed: {text}"
        for host, node in nodes.items()
        for text in node.get("problems") or []
    ]
    return warnings
