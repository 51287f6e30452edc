# SPDX-License-Identifier: GPL-3.0-or-later
"""End a process of the background with the process that it works for."""

from __future__ import annotations

import os
import signal
import threading
import time

_LOOK_S = 0.5


def end_with(parent: int) -> None:
    """Interrupt this process when another one has ended, and return at once.

    SIGINT and SIGTERM raise KeyboardInterrupt in the main thread from now on, so that it can clean up.

    Args:
        parent: number of the other process.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        try:
            os.kill(parent, 0)
        except PermissionError:
            pass
        except OSError:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # it may wait for a server
            return
        time.sleep(_LOOK_S)
