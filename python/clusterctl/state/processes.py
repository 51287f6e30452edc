"""Tell whether a recorded process still runs, also after a reboot, and find and end the processes that a run left."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.run_record import ProcessIdentity
from clusterctl.state import process_table

if TYPE_CHECKING:
    from collections.abc import Callable


def this_process() -> ProcessIdentity:
    """Return what identifies the calling process on any machine that shares its state folder."""
    return ProcessIdentity(
        host=platform.node(),
        machine_id=_text("/etc/machine-id"),
        boot_id=process_table.boot_id(),
        pid_namespace=_link("/proc/self/ns/pid"),
        started_ticks=process_table.started_ticks(os.getpid()) or 0,
    )


def has_ended(process: ProcessIdentity, here: ProcessIdentity, started: int | None) -> bool:
    """Whether a process is known to have ended; False where this machine cannot know.

    Args:
        process: the recorded process.
        here: the calling process.
        started: when the process that now has the recorded number started; None where none has it.
    """
    if (process.host, process.machine_id) != (here.host, here.machine_id):
        return False
    if process.boot_id != here.boot_id:
        return True
    return process.pid_namespace == here.pid_namespace and process.started_ticks != started


def end_all(which: Callable[[int], bool], patience_s: float = 2.0) -> None:
    """End all processes that ``which`` selects, children included that start meanwhile: first by TERM, then by KILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience_s
        left = _selected(which)
        for pid in left:
            send(pid, number)
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = _selected(which)
        if not left:
            return


def send(pid: int, number: int) -> None:
    """Send a signal to a process, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _selected(which: Callable[[int], bool]) -> list[int]:
    return [pid for pid in process_table.all_numbers() if pid != os.getpid() and which(pid)]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
