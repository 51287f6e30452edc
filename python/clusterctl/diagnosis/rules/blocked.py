"""Processes that wait in the kernel and do not come on, and segments of shared memory that jobs left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.analysis.counter_growth import growth
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import HardwareLooks

ORDER = 77
_SHOWN = 3
_LEAST_S = 2.0  # between two looks; a busy disk keeps a reader for less


def findings(view: View) -> Iterator[Finding]:
    """Return what blocks, and what is left in /dev/shm."""
    for host, looks in view.hardware.items():
        yield from _stuck(host, looks)
        sizes = looks.now.numbers("shared memory", "stale bytes")
        for place, size in sizes.items():
            count = looks.now.number("shared memory", "stale segments", place)
            largest = looks.now.text("shared memory", "largest", place)
            cause = f"ended jobs left {count} segments with {int(size) >> 20} MiB in {place}, the largest is {largest}"
            yield Finding(
                "shared memory", "warning", (host,), cause, f"remove them: 'rm {place}/{largest}' and the like"
            )


def _stuck(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    if looks.first is None:
        return
    found = growth(looks.first, looks.now).items()
    stuck = [key[1] for key, grown in found if key[0] == "process" and not grown.grown and grown.seconds >= _LEAST_S]
    if stuck:
        words = "a process waits" if len(stuck) == 1 else f"{len(stuck)} processes wait"
        cause = f"{words} in the kernel and cannot be ended: {and_more(stuck, _SHOWN)}"
        cure = "look at file systems and disks that do not answer; a restart of the node ends them"
        yield Finding("blocked", "warning", (host,), cause, cure)
