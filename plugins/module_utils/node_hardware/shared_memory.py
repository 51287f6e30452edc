# SPDX-License-Identifier: Apache-2.0
"""Segments in /dev/shm that jobs of MPI and NCCL left, and that no process has mapped any more."""

from __future__ import annotations

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


class _Segment(NamedTuple):
    size: int
    private: bool  # only processes of the user that looks, and of root, may map it


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell how many bytes lie in such segments, with the name of the largest."""
    found = _old(tree)
    if sum(one.size for one in found.values()) < _LEAST:
        return
    mapped, closed = _mapped(tree)
    left = {name: one for name, one in found.items() if name not in mapped}
    stale = {name: one.size for name, one in left.items() if one.private or not closed}
    if sum(stale.values()) >= _LEAST:
        answer.reading("shared memory", _SHM, "stale bytes", sum(stale.values()))
        answer.reading("shared memory", _SHM, "stale segments", len(stale))
        answer.reading("shared memory", _SHM, "largest", max(stale, key=lambda name: stale[name]))
    elif sum(one.size for one in left.values()) >= _LEAST:
        answer.unseen("shared memory", "other users' processes cannot be read, and may use the segments in /dev/shm")


def _old(tree: Tree) -> dict[str, _Segment]:
    """Return by name the segments of jobs that nobody has written to for a while."""
    if tree.recorded:
        told = tree.calls("shared_memory")
        return {
            name: _Segment(one["bytes"], one["private"])
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
            private = state.st_uid == os.geteuid() and not state.st_mode & 0o077
            found[name] = _Segment(state.st_blocks * 512, private)
    return found


def _mapped(tree: Tree) -> tuple[set[str], bool]:
    """Return the names that processes have mapped, and whether a process could not be read."""
    found: set[str] = set()
    for name in tree.names("/proc"):
        if name.isdigit():
            text = tree.text(f"/proc/{name}/maps") or ""
            found.update(re.findall(r" /dev/shm/(\S+)", text))
    closed = any(why == os.strerror(13) for why in tree.problems.values())
    tree.problems.clear()
    return found, closed
