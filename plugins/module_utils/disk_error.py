# SPDX-License-Identifier: Apache-2.0
"""Say in one sentence what a node's disk refused, with the host, the path and the cure."""

from __future__ import annotations

import errno
import shutil

_WORDS = ("No space left", "Wrote only", "Disk quota exceeded")
_LITTLE_BYTES = 64 << 10
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


def is_full(complaint: str, folder: str) -> bool:
    """Tell whether a full disk is behind a program's complaint; tar may say only that it wrote too little."""
    said = any(words in complaint for words in _WORDS)
    return said or (bool(complaint) and shutil.disk_usage(folder).free < _LITTLE_BYTES)
