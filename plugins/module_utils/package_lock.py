# SPDX-License-Identifier: Apache-2.0
"""Who holds the locks of apt and dpkg on a node: unattended upgrades take them for minutes after a boot."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Sequence

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
_FLOCK = "hhqqi"  # struct flock of fcntl(2): type, whence, start, length, process


def holder(locks: Sequence[str] = LOCKS) -> str:
    """Return the process that holds one of the locks, for example ``unattended-upgr (process 812)``; '' without one."""
    for path in locks:
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                found = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
            finally:
                os.close(handle)
            if found[0] != fcntl.F_UNLCK:
                return _named(int(found[4]))
    return ""


def _named(pid: int) -> str:
    with suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        return f"{name} (process {pid})"
    return f"process {pid}"
