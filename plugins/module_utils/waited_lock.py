# SPDX-License-Identifier: Apache-2.0
"""Wait for the lock of a file, and say now and then what is waited for and which process has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path
from typing import IO, Any, Callable, Iterator

_NOTE_EVERY_S = 10.0
_POLL_S = 0.1


def on_stderr(text: str) -> None:
    """Tell it where nobody else listens."""
    sys.stderr.write(f"{text}\n")


@contextlib.contextmanager
def held(
    path: str | Path, waiting: str, note: Callable[[str], None] = on_stderr, *, quiet_s: float = 0.0, mode: int = 0o666
) -> Iterator[IO[str]]:
    """Hold the lock of a file, which is made where it is missing, and yield the open file; see :func:`wait_for`."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "r+", encoding="utf-8") as stream:
        wait_for(stream, waiting, note, quiet_s=quiet_s)
        yield stream


def wait_for(handle: IO[Any], waiting: str, note: Callable[[str], None], *, quiet_s: float = 0.0) -> None:
    """Take the lock; it goes with the open file.

    Args:
        handle: the open file.
        waiting: what ``note`` hears while another process holds the lock, at once and then every ten seconds, with
            the process that has it: the user may end that one.
        note: takes a line of life.
        quiet_s: how long ``note`` hears nothing, where a wait is usual.

    Raises:
        OSError: the file system has no locks.
    """
    next_note = time.monotonic() + quiet_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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
