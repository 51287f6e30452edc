"""Ask nodes which rule of their firewall drops connections of other nodes: where nft can be read, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import one_trip, python

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.fabric import Candidates, PairResult
    from clusterctl.model.hosts import Host

MODULE = "firewall_rules.__main__"
# What a firewall does to a connection; firewalld's answer that it is prohibited reads "No route to host".
_BLOCKED = frozenset({"refused", "timeout", "error"})
_MOST = 64  # packets of one node; more of them say the same
_LONGEST = 200


def wanted(found: Candidates, pairs: Iterable[PairResult]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return by target the sources whose connections failed, each with the packet to look for."""
    networks = {network.key: network for network in found.networks}
    asked: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for pair in pairs:
        network = networks.get(pair.network)
        if pair.kind not in _BLOCKED or network is None:
            continue
        its = asked.setdefault(pair.target, [])
        if len(its) < _MOST and pair.source not in {source for source, _ in its}:
            packet = {
                "interface": network.interfaces[pair.target],
                "source": network.addresses[pair.source],
                "target": network.addresses[pair.target],
            }
            its.append((pair.source, packet))
    return asked


def words(answer: Any) -> str:
    """Return one answer of a node in words; '' where it names no rule, or is of another form."""
    if not isinstance(answer, dict):
        return ""
    manager, place, rule = (str(answer.get(key) or "")[:_LONGEST] for key in ("manager", "place", "rule"))
    if not (manager and place and rule):
        return ""
    return f"{manager} {'stops' if answer.get('is_certain') is True else 'may stop'} them there: {place}, {rule}"


def gather(
    hosts: Sequence[Host],
    found: Candidates,
    pairs: Iterable[PairResult],
    *,
    timeout_s: float,
    control_dir: Path | None = None,
) -> dict[tuple[str, str], str]:
    """Return, by source and target, the rule that stops a connection that failed; a node that cannot say is left out.

    Args:
        hosts: the hosts that answer.
        found: the networks that were tried.
        pairs: what was tried in them.
        timeout_s: seconds for one node.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.ssh.arguments`.
    """
    asked = wanted(found, pairs)
    requests = {
        host: json.dumps({"packets": [packet for _, packet in asked[host.name]]}).encode()
        for host in hosts
        if host.name in asked
    }
    if not requests:
        return {}
    answers, _ = one_trip.ask(requests, MODULE, _read, timeout_s=timeout_s, control_dir=control_dir)
    return _by_pair(asked, answers)


def _by_pair(
    asked: Mapping[str, Sequence[tuple[str, dict[str, Any]]]], answers: Mapping[str, Sequence[Any]]
) -> dict[tuple[str, str], str]:
    return {
        (source, target): said
        for target, its in answers.items()
        for (source, _), answer in zip(asked[target], its, strict=False)
        if (said := words(answer))
    }


def _read(host: Host, ending: python.Ending) -> list[Any] | ProbeFailure:
    answer = python.last_answer(ending.output, ("blocked",))
    if answer is not None and isinstance(answer["blocked"], list):
        found: list[Any] = answer["blocked"]
        return found
    return ProbeFailure(host.name, "error", "no answer about the firewall")
