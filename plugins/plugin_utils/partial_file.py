# SPDX-License-Identifier: Apache-2.0
"""Partial files of the controller's cache: a lock holds each while its process lives; the rest is litter of kills."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".partial-"


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a temporary file beside its target; it is gone afterwards unless it was renamed.

    Raises:
        OSError: the file cannot be made.
    """
    while True:
        handle, name = tempfile.mkstemp(dir=folder, prefix=_PREFIX)
        if _hold(handle, name):
            break
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is gone afterwards.

    Raises:
        OSError: the folder cannot be made.
    """
    while True:
        name = tempfile.mkdtemp(dir=folder, prefix=_PREFIX)
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        if _hold(handle, name):
            break
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
        os.close(handle)


def forget_abandoned(folder: Path) -> list[Path]:
    """Remove the partial files and folders that no process holds, and return them."""
    gone = []
    for path in folder.glob(f"{_PREFIX}????????"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
                gone.append(path)
            finally:
                os.close(handle)
    return gone


def _hold(handle: int, name: str) -> bool:
    """Lock what was just made; False where another process took it for litter in between."""
    with suppress(OSError):
        with suppress(OSError):  # a file system without locks has no litter removed from it
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(handle), Path(name).lstat()):
            return True
    os.close(handle)
    return False
