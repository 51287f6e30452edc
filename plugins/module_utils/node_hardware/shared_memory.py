# SPDX-License-Identifier: Apache-2.0
"""Segments in /dev/shm that jobs of MPI and NCCL left, and that no process has mapped any more."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_SHM = "/dev/shm"  # noqa: S108 - read, not written
# Open MPI's sm and vader, NCCL, PyTorch, UCX, PSM2, MPICH; by the names that their sources give.
_JOBS = re.compile(
    r"^(sm_segment\.|vader_segment\.|nccl-|torch_|ucx_|psm2_shm|psm_shm|cuda\.shm\.|mpich_|osc_rdma\.|__KMP_REGISTERED_LIB)"
)
_OLD_S = 600.0
_LEAST = 64 << 20  # bytes; below, nobody misses them
_ANYBODY = -1
# Programs of a login begin with the rights of root, so their mappings are closed. They map no segment.
_LOGINS = ("sshd", "sshd-session", "sudo", "su", "(sd-pam)", "systemd")
_MOST_MAPS = 1 << 24  # bytes of the list of a process's mappings


class _Segment(NamedTuple):
    size: int
    owner: int  # whose processes may map it; _ANYBODY where others may as well


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell how many bytes lie in such segments, with the name of the largest."""
    found = _old(tree)
    if sum(one.size for one in found.values()) < _LEAST:
        return
    mapped, closed = _mapped(tree)
    left = {name: one for name, one in found.items() if name not in mapped}
    stale = {name: one.size for name, one in left.items() if not _may_be_used(one, closed)}
    if sum(stale.values()) >= _LEAST:
        answer.reading("shared memory", _SHM, "stale bytes", sum(stale.values()))
        answer.reading("shared memory", _SHM, "stale segments", len(stale))
        answer.reading("shared memory", _SHM, "largest", max(stale, key=lambda name: stale[name]))
    elif sum(one.size for one in left.values()) >= _LEAST:
        answer.unseen("shared memory", "other users' processes cannot be read, and may use the segments in /dev/shm")


def _may_be_used(one: _Segment, closed: set[int]) -> bool:
    """Whether a process that could not be read may have mapped the segment.

    A process of the same user is closed only where it has more rights than a job has.
    """
    return bool(closed) if one.owner == _ANYBODY else one.owner in closed - {os.geteuid()}


def _old(tree: Tree) -> dict[str, _Segment]:
    """Return by name the segments of jobs that nobody has written to for a while."""
    if tree.recorded:
        told = tree.calls("shared_memory")
        return {
            name: _Segment(one["bytes"], one["owner"])
            for name, one in told.items()
            if _JOBS.match(name) and one["age in s"] > _OLD_S
        }
    found: dict[str, _Segment] = {}
    for name in filter(_JOBS.match, tree.names(_SHM)):
        try:
            state = os.lstat(f"{_SHM}/{name}")
        except OSError:
            continue
        if time.time() - state.st_mtime > _OLD_S:
            owner = _ANYBODY if state.st_mode & 0o077 else state.st_uid
            found[name] = _Segment(state.st_blocks * 512, owner)
    return found


def _mapped(tree: Tree) -> tuple[set[str], set[int]]:
    """Return the names that processes have mapped, and the users of the processes that could not be read."""
    found: set[str] = set()
    closed: set[int] = set()
    for name in filter(str.isdigit, tree.names("/proc")):
        text = (tree.data(f"/proc/{name}/maps", _MOST_MAPS) or b"").decode("utf-8", "replace")
        found.update(re.findall(r" /dev/shm/(\S+)", text))
        if f"/proc/{name}/maps" in tree.problems and (tree.text(f"/proc/{name}/comm") or "").strip() not in _LOGINS:
            with contextlib.suppress(OSError):  # it has ended
                closed.add(os.stat(f"{tree.root}/proc/{name}").st_uid)
    tree.problems.clear()
    return found, closed
