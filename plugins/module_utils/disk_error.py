# SPDX-License-Identifier: Apache-2.0
"""Say in one sentence what a node's disk refused, with the host, the path and the cure."""

from __future__ import annotations

import errno
import os

FULL = (errno.ENOSPC, errno.EDQUOT)
# What the system's refusals mean: cause and cure.
_MEANINGS = {
    errno.ENOSPC: ("the disk is full", "make room there and run again"),
    errno.EDQUOT: ("the quota is used up", "make room there and run again"),
    errno.EROFS: (
        "the file system is read-only",
        "make it writable and run again ('dmesg' tells of disk errors)",
    ),
    errno.EIO: ("the disk reports an error", "read 'dmesg' on this host, and replace the disk"),
}
REFUSALS = {os.strerror(number): meaning for number, meaning in _MEANINGS.items()}


def sentence(host: str, error: OSError) -> str:
    """Return the sentence of an error of the system."""
    where = f"{host}: {error.filename}" if error.filename else host
    meaning = _MEANINGS.get(error.errno or 0)
    return f"{where}: {'; '.join(meaning)}." if meaning else f"{host}: {error}"


def is_of_disk(error: BaseException) -> bool:
    """Tell whether the disk is behind an error, and not what was read from it."""
    return isinstance(error, OSError) and error.errno in _MEANINGS


def no_room(whose: str, folder: str, what: str, number: int, cure: str = "make room there and run again") -> str:
    """Return the sentence where something did not fit on a disk.

    Args:
        whose: of which machine the disk is, as the sentence begins: ``node1: the`` or ``The controller's``.
        folder: on that disk.
        what: what did not fit.
        number: the system's number of the error: ENOSPC or EDQUOT.
        cure: what to do.
    """
    state = os.statvfs(folder)
    if number == errno.EDQUOT:
        cause = f"quota on {folder} is used up, so {what} did not fit"
    elif state.f_files and not state.f_favail:
        cause = f"disk is full: {folder} has no inode free, and {what} did not fit"
    else:
        free = state.f_bavail * state.f_frsize
        cause = f"disk is full: {folder} has {free} bytes free and {what} did not fit"
    return f"{whose} {cause}; {cure}."
