"""Lost packets and congestion on RDMA ports and interfaces, in relation to their traffic and beside other nodes.

Such counters grow on healthy nodes under load. One node counts only where it stands out among nodes that carry traffic
on the same device, or where PFC is off on a port of RoCE that loses packets.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.analysis.counter_growth import growth
from clusterctl.diagnosis.counter_limits import BESIDE_PEERS
from clusterctl.diagnosis.growing import span
from clusterctl.diagnosis.rules import alike
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import HardwareLooks

ORDER = 72
_TRAFFIC = 10_000  # packets between two looks; fewer say nothing of a share
_COUNT = 100
_TIMES = 10.0  # as much as the median of the others
_LEAST_LOSS, _LEAST_CONGESTION = 1e-5, 1e-3  # shares of packets below which nobody feels it
_PEERS = 2
_LOSS_CURE = "set PFC for the priority of RoCE on the card and on the switch's ports, and look for a bad cable"
_LOAD_CURE = "look at what else uses this link, and at the PFC and ECN settings of its port of the switch"


class _Share(NamedTuple):
    grown: int
    share: float
    seconds: float


def findings(view: View) -> Iterator[Finding]:
    """Return the ports that lose packets without PFC, and those that stand out."""
    for group in alike.groups(view, least=1):
        yield from _of_group({host: view.hardware[host] for host in group})


def _of_group(group: Mapping[str, HardwareLooks]) -> Iterator[Finding]:
    shares = _shares(group)
    lossy: set[tuple[str, str]] = set()
    for (kind, device, name), hosts in shares.items():
        for host, one in hosts.items():
            interface = _without_pfc(group[host], device)
            if interface and BESIDE_PEERS[kind, name][1] and _is_much(one, _LEAST_LOSS) and (host, device) not in lossy:
                lossy.add((host, device))
                cause = f"{device} loses packets: {_words(name, one)}, and PFC is off on {interface}"
                yield Finding("roce", "warning", (host,), cause, _LOSS_CURE)
    yield from _odd(shares, lossy)


def _odd(shares: Mapping[tuple[str, str, str], Mapping[str, _Share]], lossy: set[tuple[str, str]]) -> Iterator[Finding]:
    told: set[tuple[str, str, bool]] = {(host, device, True) for host, device in lossy}
    for (kind, device, name), hosts in shares.items():
        is_loss = BESIDE_PEERS[kind, name][1]
        for host, one in hosts.items():
            is_much = _is_much(one, _LEAST_LOSS if is_loss else _LEAST_CONGESTION)
            if not is_much or len(hosts) <= _PEERS or (host, device, is_loss) in told:
                continue
            usual = statistics.median(other.share for peer, other in hosts.items() if peer != host)
            if one.share > _TIMES * usual:
                told.add((host, device, is_loss))
                what = "loses packets" if is_loss else "is congested"
                cause = f"{device} {what}: {_words(name, one)}, and {usual:.2g} is the median of the other nodes"
                yield Finding("congestion", "warning", (host,), cause, _LOSS_CURE if is_loss else _LOAD_CURE)


def _is_much(one: _Share, least: float) -> bool:
    return one.grown >= _COUNT and one.share >= least


def _words(name: str, one: _Share) -> str:
    return f"{name} grew by {one.grown} in {span(one.seconds)}, {one.share:.2g} of its packets"


def _shares(group: Mapping[str, HardwareLooks]) -> dict[tuple[str, str, str], dict[str, _Share]]:
    """Return the growth of each counter in relation to the packets, by host, of those that carry traffic."""
    found: dict[tuple[str, str, str], dict[str, _Share]] = defaultdict(dict)
    for host, looks in group.items():
        grown = growth(looks.first, looks.now) if looks.first is not None else {}
        for (kind, device, name), one in grown.items():
            packets = BESIDE_PEERS.get((kind, name))
            traffic = grown.get((kind, device, packets[0])) if packets else None
            if traffic and traffic.grown >= _TRAFFIC:
                found[kind, device, name][host] = _Share(one.grown, one.grown / traffic.grown, one.seconds)
    return found


def _without_pfc(looks: HardwareLooks, device: str) -> str:
    """Return the interface of a port of RoCE on which PFC is known to be off, '' if there is none."""
    interface = looks.now.text("rdma_port", "interface", device)
    return interface if looks.now.text("lossless", "pfc", interface) == "off" else ""
