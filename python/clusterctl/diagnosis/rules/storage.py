"""Rules of storage: file systems, disks, segments of shared memory, and processes that wait for them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules.engines import LEAST, TIMES, beyond, groups, growth
from clusterctl.diagnosis.rules.table import ARRAYS, DISK, DISKS
from clusterctl.model.findings import Finding
from clusterctl.support import content
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from module_utils import fitness_rules as _rules  # mypy finds it by mypy_path

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hardware import HardwareLooks
else:
    _rules = content.module_util("fitness_rules")

_CHECK = "file systems"
_SLOW_S, _SLOW_TO_PEERS_S = 1.0, 0.2
_LEAST_FREE = 0.01
_LOST = frozenset({"Stale file handle", "Transport endpoint is not connected"})  # ESTALE and ENOTCONN
_DEAD = "look at its server and network; then 'umount -l {place}' and mount it again"


def file_systems(view: View) -> Iterator[Finding]:
    """Return file systems that are dead, slow, full, read-only or not mounted."""
    for host, looks in view.hardware.items():
        yield from _state(host, looks, told=_told(view.nodes.get(host)))
    yield from _slow(view)
    yield from _unlike(view)


def _told(node: NodeFacts | None) -> set[int]:
    """Return the sizes of the disks of which the rule of disks tells that little is free."""
    return {disk.total_bytes for disk in (node.disk if node else ()) if _rules.disk(disk.model_dump())[0]}


def _state(host: str, looks: HardwareLooks, told: set[int]) -> Iterator[Finding]:
    seen = looks.now
    for place, answers in seen.flags("filesystem", "answers").items():
        if answers is False:
            kind = seen.text("filesystem", "type", place) or "of an unknown type"
            cause = f"{place} ({kind}) does not answer, and a program that touches it hangs"
            yield Finding(_CHECK, "error", (host,), cause, _DEAD.format(place=place))
    for place, problem in seen.texts("filesystem", "problem").items():
        again = problem in _LOST and place.startswith("/")  # its server may be well: this mount is not
        fix = (("umount", "-l", place), ("mount", place)) if again else ()
        yield Finding(_CHECK, "error", (host,), f"{place} answers '{problem}'", _DEAD.format(place=place), fix)
    for free, whole, unit in (
        ("free bytes", "size in bytes", "of its space"),
        ("free inodes", "inodes", "of its inodes"),
    ):
        sizes = seen.numbers("filesystem", whole)
        for place, left in seen.numbers("filesystem", free).items():
            size = sizes.get(place, 0)
            full = left < size * _LEAST_FREE
            if full and size not in told and seen.flag("filesystem", "read-only", place) is not True:
                cause = f"{place} has less than 1 % {unit} free"
                yield Finding(_CHECK, "warning", (host,), cause, f"remove files in {place}")


def _slow(view: View) -> Iterator[Finding]:
    times: dict[str, dict[str, float]] = {}
    for host, looks in view.hardware.items():
        for place, seconds in looks.now.numbers("filesystem", "answer in s").items():
            times.setdefault(place, {})[host] = seconds
    for place, by_host in times.items():
        usual = statistics.median(by_host.values())
        for host, seconds in by_host.items():
            beside = len(by_host) >= LEAST and seconds > max(_SLOW_TO_PEERS_S, TIMES * usual)
            if seconds > _SLOW_S or beside:
                peers = f", and {usual * 1000:.0f} ms are usual" if beside else ""
                cause = f"{place} took {seconds * 1000:.0f} ms to list a few names{peers}"
                yield Finding(_CHECK, "warning", (host,), cause, "look at the load of its server and at the way there")


def _unlike(view: View) -> Iterator[Finding]:
    """Report a file system that is read-only, or missing, on a node while the others have it."""
    for group in groups(view):
        states: dict[str, dict[str, str]] = {}
        for host, seen in group.items():
            for place, remote in seen.flags("filesystem", "remote").items():
                read_only = seen.flag("filesystem", "read-only", place)
                states.setdefault(place, {})[host] = ("remote " if remote else "") + ("ro" if read_only else "rw")
        for place, by_host in states.items():
            odd = [host for host, state in by_host.items() if state.endswith("ro")]
            if odd and len(odd) * 2 < len(by_host):
                cure = "look in the kernel's log for errors of the disk, check the file system, and mount it again"
                yield Finding(_CHECK, "error", tuple(odd), f"{place} is read-only, and writable on most nodes", cure)
            missing = tuple(
                host
                for host, seen in group.items()
                if host not in by_host and place not in seen.odd_ones("filesystem", "remote")
            )
            remote = any(state.startswith("remote") for state in by_host.values())
            if remote and missing and len(missing) * 2 < len(group):
                cause = f"{place} is not mounted, and most nodes have it"
                fix = (("mount", place),) if place.startswith("/") else ()
                yield Finding(_CHECK, "error", missing, cause, f"mount it: 'mount {place}'", fix)


# --- disks ------------------------------------------------------------------------------------------------------------


def disks(view: View) -> Iterator[Finding]:
    """Return disks that fail or are worn, and arrays that lost a member."""
    for host, looks in view.hardware.items():
        yield from beyond(host, looks.now, DISKS)
        oldest = next(reversed(tuple(looks.earlier())), None)
        for (kind, disk, name), grown in growth(oldest, looks.now).items():
            if kind == "disk" and grown.grown:
                cause = f"{disk} has {grown.grown} more {name} than {grown.seconds / 3600:.2g} h before"
                yield Finding("disks", "warning", (host,), cause, DISK)
        yield from beyond(host, looks.now, ARRAYS)


# --- processes that wait in the kernel and do not come on, and segments of shared memory that jobs left ---------------

_SHOWN_PROCESSES = 3
SEGMENTS_OF_JOBS = (
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


def blocked(view: View) -> Iterator[Finding]:
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
            yield Finding("shared memory", "warning", (host,), cause, cure, removal_of_segments(place))


def removal_of_segments(place: str) -> tuple[tuple[str, ...], ...]:
    """Return the command that removes the segments; their names are those that ``node_look.hardware`` looks for."""
    names = [word for name in SEGMENTS_OF_JOBS for word in ("-o", "-name", name)][1:]
    found = ("find", place, "-xdev", "-maxdepth", "1", "-type", "f", "-mmin", "+10", "(", *names, ")")
    return ((*found, "-exec", "sh", "-c", _UNUSED, "sh", "{}", "+"),)


def _stuck(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    found = growth(looks.first, looks.now).items()
    stuck = [key[1] for key, grown in found if key[0] == "process" and not grown.grown and grown.seconds >= _LEAST_S]
    if stuck:
        words = "a process waits" if len(stuck) == 1 else f"{len(stuck)} processes wait"
        cause = f"{words} in the kernel and cannot be ended: {and_more(stuck, _SHOWN_PROCESSES)}"
        cure = "look at file systems and disks that do not answer; a restart of the node ends them"
        yield Finding("blocked", "warning", (host,), cause, cure)
