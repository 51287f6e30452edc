# SPDX-License-Identifier: Apache-2.0
"""Say in one sentence what a node's disk refused, with the host, the path and the cure."""

from __future__ import annotations

import errno
import os
import shutil

FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = ("No space left", "Wrote only", "Disk quota exceeded")
_LITTLE_BYTES = 64 << 10
_UNSTARTED = (
    "Traceback (most recent call last)",
    "Failed to create temporary directory",
    "mkdir: ",
    "failed to transfer",
)
_NO_TEMPORARY_FOLDER = ("No usable temporary directory", "Failed to create temporary directory")
_CURES = {
    errno.ENOSPC: "the disk is full; make room there and run again",
    errno.EDQUOT: "the quota is used up; make room there and run again",
    errno.EROFS: "the file system is read-only; make it writable and run again ('dmesg' tells of disk errors)",
    errno.EIO: "the disk reports an error; read 'dmesg' on this host, and replace the disk",
}


def sentence(host: str, error: OSError) -> str:
    """Return the sentence of an error of the system."""
    where = f"{host}: {error.filename}" if error.filename else host
    cure = _CURES.get(error.errno or 0)
    return f"{where}: {cure}." if cure else f"{host}: {error}"


def is_of_disk(error: BaseException) -> bool:
    """Tell whether the disk is behind an error, and not what was read from it."""
    return isinstance(error, OSError) and error.errno in _CURES


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


def is_full(complaint: str, folder: str) -> bool:
    """Tell whether a full disk is behind a program's complaint; tar may say only that it wrote too little."""
    said = any(words in complaint for words in _WORDS)
    return said or (bool(complaint) and shutil.disk_usage(folder).free < _LITTLE_BYTES)


def before_a_module(host: str, said: str) -> str:
    """Return the sentence where a disk kept a module from starting; '' elsewhere.

    Args:
        host: the host.
        said: what Ansible says of the task. A module that started names the path itself.
    """
    if not any(words in said for words in _UNSTARTED):
        return ""
    for number, cure in _CURES.items():
        if os.strerror(number) in said:
            return f"{host}: {cure}."
    if any(words in said for words in _NO_TEMPORARY_FOLDER):
        return (
            f"{host}: a temporary folder cannot be made, because the disk is full or read-only; make room, or make it"
            " writable, and run again ('df' and 'dmesg' tell which)."
        )
    return ""
