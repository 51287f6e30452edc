"""Counters of links that grow faster than their limits: errors, recoveries and losses of interfaces and RDMA ports.

A total tells nothing, since it may be years old. Growth is that since the first look of this run, or since the last run
where the node was not restarted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.analysis.counter_growth import growth, is_above
from clusterctl.diagnosis.counter_limits import BESIDE_PEERS, LIMITS, SATURATED, SUMS
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clusterctl.analysis.counter_growth import CounterKey, Growth
    from clusterctl.diagnosis.counter_limits import GrowthLimit
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import HardwareLooks

ORDER = 71
_SHOWN = 4
_LOSSES = {key: LIMITS[key] for key in (("interface", "carrier_changes"), ("rdma_port", "link_downed"))}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def flapping(looks: HardwareLooks) -> set[str]:
    """Return the interfaces and RDMA devices of which the findings of this module tell that their link was lost."""
    unused = _unused(looks)
    return {device.partition("/")[0] for kind, device, name in _above(looks, _LOSSES) if (kind, device) not in unused}


def findings(view: View) -> Iterator[Finding]:
    """Return one finding for each counter of a node that grows too fast, with the devices and the figures."""
    for host, looks in view.hardware.items():
        unused = _unused(looks)
        explained: set[str] = set()  # interfaces whose sums are told by what they sum
        for limits in (LIMITS, SUMS):
            found = {
                key: grown
                for key, grown in _above(looks, limits).items()
                if key[:2] not in unused and not (limits is SUMS and key[1] in explained)
            }
            explained.update(device for kind, device, _ in found if kind == "interface")
            for kind, name in dict.fromkeys((kind, name) for kind, _, name in found):
                limit = limits[kind, name]
                devices = {key[1]: grown for key, grown in found.items() if (key[0], key[2]) == (kind, name)}
                yield Finding("links", limit.severity, (host,), _cause(name, limit, devices), limit.cure)


def _unused(looks: HardwareLooks) -> set[tuple[str, str]]:
    """Return the interfaces that are switched off."""
    wanted = looks.now.flags("interface", "wanted_up")
    return {("interface", device) for device, up in wanted.items() if not up}


def _above(looks: HardwareLooks, limits: Mapping[tuple[str, str], GrowthLimit]) -> dict[CounterKey, Growth]:
    found: dict[CounterKey, Growth] = {}
    earlier = [look for look in (looks.first, looks.past[-1] if looks.past else None) if look is not None]
    for look in earlier:
        for key, grown in growth(look, looks.now).items():
            limit = limits.get((key[0], key[2]))
            if limit and key not in found and is_above(grown, limit.per_hour, limit.at_least):
                found[key] = grown
    return found


def _cause(name: str, limit: GrowthLimit, devices: Mapping[str, Growth]) -> str:
    shown = and_more((f"{device} by {_grown(one)}" for device, one in devices.items()), _SHOWN)
    beside = f", and the limit is {limit.per_hour:g} an hour" if limit.per_hour else ""
    return f"{limit.what} grew ({name}): {shown}{beside}"


def _grown(one: Growth) -> str:
    return f"{one.grown} in {span(one.seconds)}"


def span(seconds: float) -> str:
    """Return a time in words, in the unit in which it is short."""
    for unit, name in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def notes(view: View) -> Iterator[str]:
    """Return which counters tell nothing: those at their highest value, and those that are smaller than before."""
    yield from _folded(
        ((host, what) for host, looks in view.hardware.items() for what in _saturated(looks)),
        "is at its highest value and stays there, so its growth is unknown; 'perfquery -R' resets it",
    )
    yield from _folded(
        ((host, what) for host, looks in view.hardware.items() for what in _smaller(looks)),
        "is smaller than before: it was reset or it wrapped, and its growth is unknown",
    )


def _folded(entries: Iterable[tuple[str, str]], words: str) -> Iterator[str]:
    hosts: dict[str, list[str]] = {}
    for host, what in entries:
        hosts.setdefault(what, []).append(host)
    for what, names in hosts.items():
        yield f"On {nodeset.folded(names)}, {what} {words}."


def _saturated(looks: HardwareLooks) -> Iterator[str]:
    for one in looks.now.counters:
        if one.kind == "rdma_port" and one.value == SATURATED.get(one.name):
            yield f"{one.name} of {one.device}"


def _smaller(looks: HardwareLooks) -> Iterator[str]:
    before = looks.first
    if before is None or before.boot_id != looks.now.boot_id:
        return
    values = {(one.kind, one.device, one.name): one.value for one in before.counters}
    for kind, device, name, value in looks.now.counters:
        known = (kind, name) in LIMITS or (kind, name) in SUMS or (kind, name) in BESIDE_PEERS
        if known and value < values.get((kind, device, name), value):
            yield f"{name} of {device}"
