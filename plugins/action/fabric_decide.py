# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide once for all nodes, on the controller, which network the cluster uses, and what each node gets."""

from __future__ import annotations

import json
from typing import Any

from ansible.module_utils.common.validation import check_type_list  # type: ignore[import-untyped]
from ansible.module_utils.parsing.convert_bool import boolean  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules as rules
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import fabric_failure
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.planned import facts_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import openmpi, ucx


class ActionModule(ActionBase):  # type: ignore[misc]
    """Ends with the text of every file of every node, or with the reason why each network was rejected."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``files`` and ``disputed`` by host, ``rejected``, ``failures`` and ``msg``, the reason in words."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        plan = given["plan"]
        hosts = [str(host) for host in variables["ansible_play_hosts"]]
        found = rules.from_plain(plan["candidates"])
        answers = {host: variables["hostvars"][host] for host in hosts}
        results = _results(plan, found, hosts, answers, str(given["listens"]), str(given["calls"]))
        disputed = rules.disputed(results)  # these hosts fail by themselves, and stop nobody else
        results = [one for one in results if one not in disputed.get(one.source, ())]
        nodes = {host: facts_of(answers[host]) for host in hosts}
        blind = [host for host in hosts if not _tells_cables(host, variables, answers[host].get(str(given["listens"])))]
        decision = rules.decide(found, results, nodes, () if plan["known"] else blind)
        if decision.network is None and len(hosts) > 1:
            return {**result, **fabric_failure.no_network(found, results)}
        files: dict[str, dict[str, str]] = {}
        warnings: list[str] = []
        devices = [str(one) for one in check_type_list(given["pin_hca"] or [])]
        has_ucx = ucx.wanted(plan["members"], str(given.get("ucx", "never")), _builds(answers))
        for host in hosts:
            node = nodes[host]
            try:
                settings = rules.nccl_pins(host, rules.rdma(node), devices, gid=boolean(given["pin_gid"]))
                if decision.network not in decision.carriers:
                    its = [one.interfaces[host] for one in decision.carriers if host in one.interfaces]
                    settings = {**rules.cable_pins(node, its), **settings}
                texts = rules.files(decision.network, host, settings, decision.carriers)
                if has_ucx:
                    texts["ucx"] = rules.ucx_conf(decision.network, host, rules.rdma(node), decision.carriers)
                elif any(one.get("name") == "ucx" for one in node.get("artifacts") or ()):
                    texts["ucx"] = ""  # from the time when it was wanted
            except rules.FabricError as error:
                return {**result, **fabric_failure.refused(error, hosts)}
            proven = _proven(plan, decision, host, [one for one in hosts if one not in disputed])
            opened = boolean(given.get("open_firewall", False))
            record = (
                rules.record(decision.network, host, found.rejected, proven, opened=opened, carriers=decision.carriers)
                if decision.network
                else None
            )
            files[host] = {**texts, "record": json.dumps(record) + "\n" if record else ""}
        for network in found.probed:
            broken = [one for one in decision.failures if one.network == network.key]
            if broken:
                warnings.append(f"{rules.title(network)} was not taken: {rules.failure_words(broken)}")
        warnings += _unproven(plan, decision, hosts)
        words = [
            decision.reason if not plan["known"] or len(hosts) == 1 else f"{decision.reason} (as proven before)",
            *(f"{one.network} rejected: {one.reason}" for one in decision.rejected),
        ]
        result.update(
            changed=False,
            files=files,
            openings={host: rules.openings(_used(decision), host, plan["members"]) for host in hosts},
            rejected=[{**one._asdict(), "hosts": list(one.hosts)} for one in decision.rejected],
            failures=[one._asdict() for one in decision.failures],
            msg="; ".join(words),
            told=[f"Network: {text}." for text in words],
            disputed={host: fabric_failure.dispute(host, claims) for host, claims in disputed.items()},
            warnings=warnings,
        )
        return result


def _results(
    plan: dict[str, Any],
    found: rules.Candidates,
    hosts: list[str],
    answers: dict[str, Any],
    listens: str,
    calls: str,
) -> list[rules.PairResult]:
    """Return a result for every planned pair whose two hosts are still in the play."""
    told = {
        (network, host, target): rules.PairResult(network, host, target, problem, kind)
        for host in hosts
        for network, target, kind, problem in rules.connection_results(answers[host].get(calls))
    }
    silent = {host: rules.listener_problems(answers[host].get(listens)) for host in hosts}
    results = []
    for network in found.probed:
        for source, target in plan["pairs"]:
            if not {source, target} <= answers.keys() & network.addresses.keys():
                continue
            why = silent[target].get(network.key) or f"{source} gave no result"
            missing = rules.PairResult(network.key, source, target, why, "error")
            results.append(told.get((network.key, source, target), missing))
    return results


def _tells_cables(host: str, variables: dict[str, Any], answer: Any) -> bool:
    """Tell whether Open MPI of a host knows which interface leads where: that of this run's plan, or the one there."""
    planned = (variables.get("software_plan") or {}).get("artifacts") or ()
    for one in planned:
        if one["name"] == "openmpi" and host in one["hosts"]:
            return openmpi.KNOWS_LINKS in one["inputs"]["configure"]
    return rules.tells_cables(answer)


def _builds(answers: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return what the variables of each host say of the build of its Open MPI: with CUDA or not, and on which host."""
    return {
        host: (str(its.get("openmpi_cuda") or "auto"), str(its.get("openmpi_builder") or ""))
        for host, its in answers.items()
    }


def _used(decision: rules.Decision) -> list[rules.Network]:
    """Return the network and what carries messages beside it."""
    if decision.network is None:
        return []
    return [decision.network, *(one for one in decision.carriers if one != decision.network)]


def _proven(plan: dict[str, Any], decision: rules.Decision, host: str, hosts: list[str]) -> set[str]:
    """Return the nodes with which a host's connections in the chosen network have come through, now or before."""
    if decision.network is None:
        return set()
    before = set(plan["proven"][decision.network.key].get(host, ())) & {*hosts, *plan["outside"]}
    return before | set(hosts) if plan["probe"] else before


def _unproven(plan: dict[str, Any], decision: rules.Decision, hosts: list[str]) -> list[str]:
    """Return a warning if a visited node was never proven with a node that this run leaves out."""
    known = {host: _proven(plan, decision, host, hosts) for host in hosts}
    strange = [host for host in hosts if not known[host].issuperset(plan["outside"])]
    if not strange:
        return []
    left = [name for name in plan["outside"] if any(name not in known[host] for host in strange)]
    ends = f"{rules.fold(strange)} and {rules.fold(left)}"
    return [f"The network between {ends}, not visited by this run, is not proven; a run without --limit proves it."]
