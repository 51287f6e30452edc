# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of the fabric's action plugins that fail: a sentence, and a problem for each host concerned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules as rules

_CURE = (
    "give every node an address in one network, and let connections between all nodes through "
    "(fabric_open_firewall: true opens ufw and firewalld)"
)


def refused(error: rules.FabricError, hosts: Sequence[str]) -> dict[str, Any]:
    """Return the result of a task that refuses the user's pin."""
    problems = [
        {"host": host, "check": "fabric", "problem": str(error), "kind": "configuration"}
        for host in error.hosts or hosts[:1]
    ]
    return {"changed": False, "failed": True, "msg": str(error), "problems": problems}


def no_network(found: rules.Candidates, results: Sequence[rules.PairResult]) -> dict[str, Any]:
    """Return the result of a task that found no network: each network, why it was rejected, and the hosts at fault."""
    decision = rules.decide(found, results)
    failed = {
        rules.title(network): rules.at_fault([one for one in decision.failures if one.network == network.key])
        for network in found.networks
    }
    problems = [
        {"host": host, "check": one.network, "problem": one.reason, "cure": _CURE}
        for one in decision.rejected
        for host in failed.get(one.network) or one.hosts
    ]
    head = f"{decision.reason[:1].upper()}{decision.reason[1:]}; {_CURE}."
    return {
        "changed": False,
        "failed": True,
        "problems": problems,
        "msg": "\n".join([head, *rules.matrix(found, results)]),
    }


def dispute(host: str, claims: Sequence[rules.PairResult]) -> dict[str, Any]:
    """Return the result of a host that alone says that it does not reach others.

    Args:
        host: the host.
        claims: what the others contradict.
    """
    targets = rules.fold(dict.fromkeys(one.target for one in claims))
    problem = f"{rules.failure_words(claims)}; {targets} can be reached by other nodes, and the way back works"
    cure = (
        f"look at both ends: rules about {host} in the firewall of {targets}, and routes and firewall of {host}; "
        f"or run without {host}"
    )
    return {
        "changed": False,
        "failed": True,
        "problems": [{"host": host, "check": "fabric", "problem": problem, "cure": cure}],
        "msg": f"{host}: {problem}; {cure}.",
    }
