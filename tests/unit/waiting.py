"""Waiting in tests: for something to be true, and for a process that was told to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def eventually(is_true: Callable[[], object], within_s: float = 20.0) -> bool:
    """Wait until something is true; false where it is not within that many seconds."""
    until = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "XZ"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends(pid: int) -> bool:
    """Wait for the end of a process that was killed: the kernel ends it after the signal, not with it."""
    return eventually(lambda: not runs(pid))
