# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for the lock of a file, and say now and then what is waited for."""

from __future__ import annotations

import fcntl
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTE_EVERY_S = 10.0


def wait_for(handle: IO[Any], waiting: str, note: Callable[[str], None], poll_s: float) -> None:
    """Take the lock; it goes with the open file.

    Args:
        handle: the open file.
        waiting: what ``note`` hears while another process holds the lock, at once and then every ten seconds.
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
                note(waiting)
                noted = time.monotonic()
            time.sleep(poll_s)
        else:
            return
