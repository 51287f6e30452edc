# SPDX-License-Identifier: Apache-2.0
"""How much disk space and memory this host has left for a build, or for another process."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from . import control_groups

# For each version of control groups: what limits the memory, what is used, and the caches of files in memory.stat.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_VERSION_2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))


def free_bytes(path: str) -> int:
    """Return the bytes that a process without privileges may still write below ``path``."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def available_memory_bytes(proc: Path = Path("/proc"), groups: Path = Path(control_groups.ROOT)) -> int:
    """Return the memory that a new process may take: the kernel's, within the limits of our control groups."""
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE))
    room = [int(meminfo["MemAvailable"]) * 1024]
    own = (proc / "self/cgroup").read_text(encoding="utf-8")
    for folder, is_unified in control_groups.folders(str(groups), own, "memory"):
        limit, used, caches = _VERSION_2 if is_unified else _VERSION_1
        with suppress(OSError, ValueError):  # without a limit version 2 says 'max', and its root group has no file
            stat = dict(line.split() for line in Path(folder, "memory.stat").read_text(encoding="ascii").splitlines())
            given_back = sum(int(stat.get(name, 0)) for name in caches)  # on demand
            room.append(_number(folder, limit) - _number(folder, used) + given_back)
    return max(0, min(room))


def _number(folder: str, name: str) -> int:
    return int(Path(folder, name).read_text(encoding="ascii"))
