# SPDX-License-Identifier: Apache-2.0
"""How much disk space and memory this host has left for a build."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


def free_bytes(path: str) -> int:
    """Return the bytes that a process without privileges may still write below ``path``."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def available_memory_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that a new process may take: the kernel's, within the limits of our control group."""
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE))
    room = [int(meminfo["MemAvailable"]) * 1024]
    own = (proc / "self/cgroup").read_text(encoding="utf-8")
    for folder, names in _memory_groups(own, groups):
        with suppress(OSError, ValueError):  # without a limit version 2 says 'max', and its root group has no file
            limit = int((folder / names.limit).read_text(encoding="ascii"))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            used = int((folder / names.used).read_text(encoding="ascii"))
            # file caches are given back on demand
            room.append(limit - used + sum(int(stat.get(name, 0)) for name in names.cached))
    return max(0, min(room))


class _Names(NamedTuple):
    """How a version of control groups names what it tells of memory."""

    limit: str
    used: str
    cached: tuple[str, str]


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_VERSION_2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))


def _memory_groups(own: str, groups: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the control groups that may limit the memory of a process, and those above them.

    A container may see its own group at the root, under a path that is the host's. Such a path does not exist.

    Args:
        own: the list of the control groups of the process.
        groups: where the control groups are mounted.
    """
    for line in own.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            root, names = groups, _VERSION_2
        elif "memory" in controllers.split(","):
            root, names = groups / "memory", _VERSION_1
        else:
            continue
        folder = root if ".." in path else root / path.lstrip("/")
        for group in [folder, *folder.parents]:
            yield group, names
            if group == root:
                break
