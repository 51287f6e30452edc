# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the networks that could carry the cluster, once for all nodes on the controller; decide whether to probe."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

from ansible.errors import AnsibleActionFail  # type: ignore[import-untyped]
from ansible.module_utils.common.validation import check_type_list  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules as rules
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import fabric_failure
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.planned import facts_of

_LIFETIME_S = 120  # of a listener, plus a part for each host, because Ansible visits hosts in waves
_LIFETIME_PER_HOST_S = 4


class ActionModule(ActionBase):  # type: ignore[misc]
    """Ends with the candidates and what each host listens on, or refuses a pin that a node lacks."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``candidates``, ``probe``, ``pairs``, ``listen``, ``known``, ``outside`` and ``proven``."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        hosts = [str(host) for host in variables["ansible_play_hosts"]]
        nodes = {host: facts_of(variables["hostvars"][host]) for host in hosts}
        unknown = [host for host in hosts if not nodes[host]]
        if unknown:
            raise AnsibleActionFail(f"The facts of {rules.fold(unknown)} are missing; run the role preflight first.")
        outside = {str(member["name"]): str(member.get("address") or "") for member in given["members"] or []}
        outside = {name: address for name, address in outside.items() if name not in hosts}
        others = list(outside.values())
        cidrs = [str(one) for one in check_type_list(given["cidr"] or []) if str(one).strip()]
        try:
            found = rules.candidates(
                nodes, cidrs, [str(one) for one in check_type_list(given["interfaces"] or [])], others
            )
        except rules.FabricError as error:
            return {**result, **fabric_failure.refused(error, hosts)}
        records = {host: node.get("fabric") for host, node in nodes.items()}
        if others:
            found = rules.prefer(found, records)
        if not found.networks and len(hosts) > 1:
            return {**result, **fabric_failure.no_network(found, [])}
        known = rules.recorded(found, records, nodes)
        probe = given["probe"] == "auto" and len(hosts) > 1 and known is None
        pairs = rules.pairs(hosts) if probe else ()
        result.update(
            changed=False,
            candidates=rules.plain(found),
            probe=probe,
            pairs=[list(pair) for pair in pairs],
            listen=_listen(found, pairs, hosts) if probe else {},
            openings={host: rules.openings(found.probed, host, given["members"] or []) for host in hosts},
            known=known is not None,
            outside=list(outside),
            members=list(given["members"] or []),
            proven=_proven(found, records),
        )
        return result


def _proven(found: rules.Candidates, records: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Return by network and host the nodes with which that host was proven before."""
    return {
        network.key: {
            host: list(rules.proven_with(network, host, records.get(host)) or ()) for host in network.addresses
        }
        for network in found.networks
    }


def _listen(found: rules.Candidates, pairs: tuple[tuple[str, str], ...], hosts: list[str]) -> dict[str, dict[str, Any]]:
    token = secrets.token_hex(16)
    networks = found.probed
    callers = Counter(
        target for network in networks for source, target in pairs if {source, target} <= network.addresses.keys()
    )
    return {
        host: {
            "name": host,
            "token": token,
            "addresses": {one.key: one.addresses[host] for one in networks if host in one.addresses},
            "callers": callers[host],
            "lifetime_s": _LIFETIME_S + _LIFETIME_PER_HOST_S * len(hosts),
        }
        for host in hosts
    }
