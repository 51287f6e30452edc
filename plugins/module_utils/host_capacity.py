# SPDX-License-Identifier: Apache-2.0
"""How much disk space and memory this host has left for a build."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path


def free_bytes(path: str) -> int:
    """Return the bytes that a process without privileges may still write below ``path``."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def available_memory_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that a new process may take: the kernel's, within the limits of our control group."""
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE))
    room = [int(meminfo["MemAvailable"]) * 1024]
    own = re.search(r"^0::/(.*)$", (proc / "self/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
    folder = groups / own.group(1) if own and ".." not in own.group(1) else groups
    for group in [folder, *folder.parents]:
        with suppress(OSError, ValueError):  # without a limit the file holds 'max', and the root group lacks it
            limit = int((group / "memory.max").read_text(encoding="ascii"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            used = int((group / "memory.current").read_text(encoding="ascii"))
            # file caches are given back on demand
            room.append(limit - used + int(stat["inactive_file"]) + int(stat["active_file"]))
        if group == groups:
            break
    return max(0, min(room))
