"""Does the memory of nodes make errors, and have all modules come up?"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterctl.analysis.counter_growth import growth
from clusterctl.diagnosis.rules import alike
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware, HardwareLooks

ORDER = 79
_CHECK = "memory"
_CORRECTED_A_DAY = 10  # for a module
_MCELOG = "mcelog.conf, ce-error-threshold"
_DAY_S = 86_400.0
_SHOWN = 4
_LESS = 0.98  # of the memory that most nodes of the kind have
_CURE = "run its memory test, then replace the module; until then leave the node out"


def findings(view: View) -> Iterator[Finding]:
    """Return modules whose errors grow, and nodes with less memory than their like."""
    for host, looks in view.hardware.items():
        yield from _grown(host, looks)
    cure = "look in the firmware's log for a module that failed, and seat or replace it"
    yield from alike.compare_readings(view, _CHECK, "memory", "memory modules", cure)
    for group in alike.groups(view):
        yield from _less(group, cure)


def _less(group: Mapping[str, Hardware], cure: str) -> Iterator[Finding]:
    """Name nodes with less memory than is usual, in sum or on a NUMA node; a node's modules may be named already."""
    sizes = {host: int(seen.number("memory", "memory in KiB") or 0) for host, seen in group.items()}
    usual = statistics.median_high(sizes.values())
    places = {host: seen.numbers("numa", "memory in KiB") for host, seen in group.items()}
    counted = {seen.number("memory", "memory modules") for seen in group.values()}
    for host, size in sizes.items():
        short = {
            place: (int(own), most)
            for place, own in places[host].items()
            if own < (most := statistics.median_high(int(other.get(place, 0)) for other in places.values())) * _LESS
        }
        if 0 < size < usual * _LESS:
            where = f", less on {and_more(short, _SHOWN)}" if short else ""
            cause = f"it has {size >> 20} GiB of memory, and {usual >> 20} GiB are usual on its like{where}"
            if len(counted) < 2:  # noqa: PLR2004 - else the modules are named
                yield Finding(_CHECK, "warning", (host,), cause, cure)
        elif size:
            for place, (own, most) in short.items():
                cause = f"its NUMA {place} has {own >> 20} GiB of memory, and {most >> 20} GiB are usual on its like"
                yield Finding(_CHECK, "warning", (host,), cause, cure)


def _grown(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    """Compare with the oldest look of the last day, so that single errors add up."""
    day = [look for look in looks.earlier() if looks.now.time - look.time <= _DAY_S]
    if not day:
        return
    for (kind, device, name), grown in growth(day[-1], looks.now).items():
        if kind != "memory" or not grown.grown:
            continue
        hours = grown.seconds / 3600
        errors = "1 error" if grown.grown == 1 else f"{grown.grown} errors"
        cause = f"the memory module {device} made {errors} in {hours:.2g} h that were {name}"
        if name == "uncorrected":
            yield Finding(_CHECK, "error", (host,), cause, _CURE)
        elif grown.grown >= _CORRECTED_A_DAY:
            yield Finding(
                _CHECK, "warning", (host,), f"{cause}; {_CORRECTED_A_DAY} a day are the limit", _CURE, source=_MCELOG
            )
