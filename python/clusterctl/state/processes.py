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

if TYPE_CHECKING:
    from collections.abc import Callable

_ZOMBIE = b"Z"
_AFTER_NAME = 19  # fields of /proc/PID/stat between the name and the start time, which is field 22 of proc(5)


def this_process() -> ProcessIdentity:
    """Return what identifies the calling process on any machine that shares its state folder."""
    return ProcessIdentity(
        host=platform.node(),
        machine_id=_text("/etc/machine-id"),
        boot_id=_text("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_link("/proc/self/ns/pid"),
        started_ticks=started_ticks(os.getpid()) or 0,
    )


def started_ticks(pid: int) -> int | None:
    """Return when a process of this machine started, in clock ticks since the boot; None where it does not run."""
    try:
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] == _ZOMBIE else int(fields[_AFTER_NAME])
    except (OSError, IndexError, ValueError):
        return None


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


def all_numbers() -> list[int]:
    """Return the numbers of all processes of this machine."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def carries(pid: int, environment: bytes, arguments: bytes = b"") -> bool:
    """Whether a process that runs has a text in its environment, or another one in its arguments."""
    process = Path("/proc") / str(pid)
    try:
        if (process / "stat").read_bytes().rpartition(b")")[2].split()[0] == _ZOMBIE:
            return False
        return environment in (process / "environ").read_bytes() or bool(
            arguments and arguments in (process / "cmdline").read_bytes()
        )
    except OSError:  # it ended meanwhile, or is another user's
        return False


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
    return [pid for pid in all_numbers() if pid != os.getpid() and which(pid)]


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
