# SPDX-License-Identifier: Apache-2.0
"""Segments in /dev/shm that jobs of MPI and NCCL left, and that no process has mapped any more."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

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


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell how many bytes lie in such segments, with the name of the largest."""
    if tree.recorded:
        return
    found: dict[str, int] = {}
    for name in tree.names(_SHM):
        if not _JOBS.match(name):
            continue
        try:
            state = os.lstat(f"{_SHM}/{name}")
        except OSError:
            continue
        if time.time() - max(state.st_mtime, state.st_ctime) > _OLD_S:
            found[name] = state.st_blocks * 512
    if sum(found.values()) < _LEAST:
        return
    mapped, closed = _mapped(tree)
    stale = {name: size for name, size in found.items() if name not in mapped}
    if closed and stale:
        answer.unseen("shared memory", "other users' processes cannot be read, and may use the segments in /dev/shm")
        return
    if sum(stale.values()) >= _LEAST:
        answer.reading("shared memory", _SHM, "stale bytes", sum(stale.values()))
        answer.reading("shared memory", _SHM, "stale segments", len(stale))
        answer.reading("shared memory", _SHM, "largest", max(stale, key=lambda name: stale[name]))


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
