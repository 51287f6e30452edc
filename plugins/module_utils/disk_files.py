# SPDX-License-Identifier: Apache-2.0
"""Files on a disk: write one whole, wait for its lock, and say what the disk refused.

A sentence about the disk names the host, the path and the cure.
"""

# Modules run on every node in every run; os starts faster than pathlib and serves as well.
# ruff: noqa: PTH104, PTH108

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Callable, Iterator

# Wait for the lock of a file, and say now and then what is waited for and which process has it.

_NOTE_EVERY_S = 10.0
_POLL_S = 0.1


def on_stderr(text: str) -> None:
    """Tell it where nobody else listens."""
    sys.stderr.write(f"{text}\n")


@contextlib.contextmanager
def held(
    path: str | Path,
    waiting: str,
    note: Callable[[str], None] = on_stderr,
    *,
    quiet_s: float = 0.0,
    within_s: float = math.inf,
    mode: int = 0o666,
) -> Iterator[IO[str]]:
    """Hold the lock of a file, which is made where it is missing, and yield the open file; see :func:`wait_for`."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "r+", encoding="utf-8") as stream:
        wait_for(stream, waiting, note, quiet_s=quiet_s, within_s=within_s)
        yield stream


def wait_for(
    handle: IO[Any],
    waiting: str,
    note: Callable[[str], None],
    *,
    quiet_s: float = 0.0,
    within_s: float = math.inf,
) -> None:
    """Take the lock; it goes with the open file.

    Args:
        handle: the open file.
        waiting: what ``note`` hears while another process holds the lock, at once and then every ten seconds, with
            the process that has it: the user may end that one.
        note: takes a line of life.
        quiet_s: how long ``note`` hears nothing, where a wait is usual.
        within_s: how long to wait.

    Raises:
        TimeoutError: another process had the lock all the time.
        OSError: the file system has no locks.
    """
    next_note = time.monotonic() + quiet_s
    end = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(f"{waiting}{_holder(handle)}") from None
            if time.monotonic() >= next_note:
                note(f"{waiting}{_holder(handle)}")
                next_note = time.monotonic() + _NOTE_EVERY_S
            time.sleep(_POLL_S)
        else:
            return


def _holder(handle: IO[Any]) -> str:
    """Return which process of this machine has the lock; '' where the kernel does not say it."""
    state = os.fstat(handle.fileno())
    wanted = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"
    with contextlib.suppress(OSError, LookupError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == wanted:
                return f" (process {words[4]})"
    return ""


# Write one file of a node so that a reader sees the old content or the new one, never a part.


def write(path: "str | os.PathLike[str]", data: "str | bytes", mode: int = 0o644) -> None:
    """Replace a file by a rename; its folder must exist. A power cut leaves the old content or the new one.

    Raises:
        OSError: the file cannot be written; the old one is still there.
    """
    folder, name = os.path.split(path)
    handle, staged = tempfile.mkstemp(prefix=f".{name}.clusterctl-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(staged, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)
        raise


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
