# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for the lock of a file, and say now and then what is waited for and which process has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTE_EVERY_S = 10.0


def wait_for(handle: IO[Any], waiting: str, note: Callable[[str], None], poll_s: float) -> None:
    """Take the lock; it goes with the open file.

    Args:
        handle: the open file.
        waiting: what ``note`` hears while another process holds the lock, at once and then every ten seconds, with
            the process that has it: the user may end that one.
        note: takes a line of life.
        poll_s: seconds between two attempts.

    Raises:
        OSError: the file system has no locks.
    """
    noted = 0.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - noted > _NOTE_EVERY_S:
                note(f"{waiting}{_holder(handle)}")
                noted = time.monotonic()
            time.sleep(poll_s)
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
