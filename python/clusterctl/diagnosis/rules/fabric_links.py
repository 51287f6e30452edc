"""Links of the InfiniBand fabric that are slow, silent or gone, and ports of switches whose errors grow."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.diagnosis import growing
from clusterctl.diagnosis.counter_limits import LIMITS
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware, HardwareLooks

ORDER = 73
_NAMES = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
}
_LIMITS = {("fabric_port", name): LIMITS["rdma_port", own] for name, own in _NAMES.items()}
_END = re.compile(r"(.+) port \d+ to (.+) port \d+")
_CURE = "reseat or replace the cable between them, then try another port of the switch"


def findings(view: View) -> Iterator[Finding]:
    """Return one finding for each such link; the host is the one at its end, or the one that read the fabric."""
    for reader, looks in view.hardware.items():
        yield from _slow(view.hardware, reader, looks.now)
        yield from _errors(view.hardware, reader, looks)
        yield from _lost(view.hardware, reader, looks.now)


def _slow(hosts: Collection[str], reader: str, look: Hardware) -> Iterator[Finding]:
    """Name links that could run faster by what both ends can do, where most links of that kind do."""
    lanes, speeds = look.numbers("fabric_link", "lanes"), look.numbers("fabric_link", "lane_gbps")
    kinds, hints = look.texts("fabric_link", "ends"), look.texts("fabric_link", "could_be")
    rates = {link: (lanes[link], speeds[link]) for link in lanes if link in speeds and link in kinds}
    for kind in dict.fromkeys(kinds[link] for link in rates):
        alike = {link: rate for link, rate in rates.items() if kinds[link] == kind}
        usual, number = Counter(alike.values()).most_common(1)[0]
        for link, rate in alike.items():
            if hints.get(link) and rate[0] * rate[1] < usual[0] * usual[1] and number * 2 > len(alike):
                cause = f"the link of {link} runs at {_rate(rate)}, and most such links at {_rate(usual)}"
                yield Finding("fabric", "warning", (_host(hosts, reader, link),), cause, _CURE)


def _rate(rate: tuple[float, float]) -> str:
    return f"{rate[0]:g}X {rate[1]:g} Gb/s"


def _lost(hosts: Mapping[str, HardwareLooks], reader: str, look: Hardware) -> Iterator[Finding]:
    """Name links that an earlier look saw and this one does not, and ports whose other end gives no answer."""
    links, kinds = look.numbers("fabric_link", "lanes"), look.texts("fabric_link", "ends")
    if not links:
        return
    before = _before(hosts)
    there = {end for link in links for end in _ends(link)}
    told: set[str] = set()
    for port in (port for port, ends in kinds.items() if ends == "silent"):
        link = next((one for one in before if port in _ends(one)), port)
        if link not in told:
            told.add(link)
            cause = f"the link of {link} is up, and what is at its other end gives no answer: it loses packets"
            yield Finding("fabric", "error", (_host(hosts, reader, link),), cause, _CURE)
    for link in before:
        if link not in told and there.isdisjoint(_ends(link)):
            cause = f"the link of {link} is gone; an earlier look saw it"
            yield Finding("fabric", "error", (_host(hosts, reader, link),), cause, _CURE)


def _before(hosts: Mapping[str, HardwareLooks]) -> tuple[str, ...]:
    """Return the links of the newest of the hosts' last looks that read the fabric; one host reads it in each run."""
    looks = [looks.past[-1] for looks in hosts.values() if looks.past]
    seen = [(look.time, tuple(look.numbers("fabric_link", "lanes"))) for look in looks]
    return max((one for one in seen if one[1]), default=(0.0, ()))[1]


def _ends(link: str) -> tuple[str, ...]:
    near, _, far = link.partition(" to ")
    return (near, far) if far else (near,)


def _errors(hosts: Mapping[str, HardwareLooks], reader: str, looks: HardwareLooks) -> Iterator[Finding]:
    for one in growing.above(looks, _LIMITS):
        if not _own(hosts, one.device):
            cause = f"{one.limit.what} grew ({one.name}): {one.device} by {one.how}{one.limit.beside}"
            host = _host(hosts, reader, one.device)
            yield Finding("fabric", one.limit.severity, (host,), cause, one.limit.cure, source=one.limit.source)


def _own(hosts: Collection[str], device: str) -> bool:
    """Whether the port is a host's own, whose counters are read on the host."""
    found = _END.fullmatch(device)
    return found is not None and _named(hosts, found.group(1)) != ""


def _host(hosts: Collection[str], reader: str, device: str) -> str:
    found = _END.fullmatch(device)
    ends = found.groups() if found else ()
    return next((host for host in (_named(hosts, end) for end in ends) if host), reader)


def _named(hosts: Collection[str], description: str) -> str:
    """Return the host of a node description such as 'node1 mlx5_0' or 'node1 HCA-1', '' if it is none of them."""
    word = description.partition(" ")[0]
    return next((host for host in hosts if word in {host, host.partition(".")[0]}), "")
