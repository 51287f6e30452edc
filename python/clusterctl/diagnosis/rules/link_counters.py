"""Counters of links that grow faster than their limits: errors, recoveries and losses of interfaces and RDMA ports.

A total tells nothing, since it may be years old. Growth is that since the first look of this run, or since the last run
where the node was not restarted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import growing
from clusterctl.diagnosis.counter_limits import LIMITS, SATURATED, SUMS
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.growing import Growing
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import HardwareLooks

ORDER = 71
_SHOWN = 4
_LOSSES = {key: LIMITS[key] for key in (("interface", "carrier_changes"), ("rdma_port", "link_downed"))}


def flapping(looks: HardwareLooks) -> set[str]:
    """Return the interfaces and RDMA devices of which the findings of this module tell that their link was lost."""
    unused = _unused(looks)
    lost = growing.above(looks, _LOSSES)
    return {one.device.partition("/")[0] for one in lost if (one.kind, one.device) not in unused}


def findings(view: View) -> Iterator[Finding]:
    """Return one finding for each counter of a node that grows too fast, with the devices and the figures."""
    for host, looks in view.hardware.items():
        unused = _unused(looks)
        explained: set[str] = set()  # interfaces whose sums are told by what they sum
        for limits in (LIMITS, SUMS):
            found: dict[str, list[Growing]] = {}
            for one in growing.above(looks, limits):
                if (one.kind, one.device) not in unused and not (limits is SUMS and one.device in explained):
                    found.setdefault(one.name, []).append(one)
            explained.update(one.device for grown in found.values() for one in grown if one.kind == "interface")
            for name, grown in found.items():
                limit = grown[0].limit
                shown = and_more((f"{one.device} by {one.how}" for one in grown), _SHOWN)
                cause = f"{limit.what} grew ({name}): {shown}{limit.beside}"
                yield Finding("links", limit.severity, (host,), cause, limit.cure, source=limit.source)


def _unused(looks: HardwareLooks) -> set[tuple[str, str]]:
    """Return the interfaces that are switched off."""
    wanted = looks.now.flags("interface", "wanted_up")
    return {("interface", device) for device, up in wanted.items() if not up}


def notes(view: View) -> Iterator[str]:
    """Return which counters tell nothing since they are at their highest value."""
    hosts: dict[str, list[str]] = {}
    for host, looks in view.hardware.items():
        for one in looks.now.counters:
            if one.kind == "rdma_port" and one.value == SATURATED.get(one.name):
                hosts.setdefault(f"{one.name} of {one.device}", []).append(host)
    for what, names in hosts.items():
        words = "is at its highest value and stays there, so its growth is unknown; 'perfquery -R' resets it"
        yield f"On {nodeset.folded(names)}, {what} {words}."
