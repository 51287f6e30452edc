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
_JOBS = (
    "sm_segment.*",
    "vader_segment.*",
    "nccl-*",
    "torch_*",
    "ucx_*",
    "psm2_shm*",
    "psm_shm*",
    "cuda.shm.*",
    "mpich_*",
    "osc_rdma.*",
    "__KMP_REGISTERED_LIB*",
)
# It removes old files of those names that no process has open or mapped; without fuser, it removes none.
_UNUSED = 'command -v fuser >/dev/null || exit 1; for file; do fuser -s "$file" || rm -- "$file"; done'
_LEAST_S = 2.0  # between two looks; a busy disk keeps a reader for less


def findings(view: View) -> Iterator[Finding]:
    """Return what blocks, and what is left in /dev/shm."""
    for host, looks in view.hardware.items():
        yield from _stuck(host, looks)
        sizes = looks.now.numbers("shared memory", "stale bytes")
        for place, size in sizes.items():
            count = looks.now.number("shared memory", "stale segments", place)
            largest = looks.now.text("shared memory", "largest", place)
            what = f"the segment {largest}" if count == 1 else f"{count} segments (the largest is {largest})"
            cause = f"ended jobs left {what} with {int(size) >> 20} MiB in {place}"
            cure = f"remove them: 'rm {place}/{largest}' and the like"
            yield Finding("shared memory", "warning", (host,), cause, cure, _removal(place))


def _removal(place: str) -> tuple[tuple[str, ...], ...]:
    """Return the command that removes the segments; their names are those that ``node_look.hardware`` looks for."""
    names = [word for name in _JOBS for word in ("-o", "-name", name)][1:]
    found = ("find", place, "-xdev", "-maxdepth", "1", "-type", "f", "-mmin", "+10", "(", *names, ")")
    return ((*found, "-exec", "sh", "-c", _UNUSED, "sh", "{}", "+"),)


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
