"""Tell whether a recorded process still runs, also after a reboot and when another process has got its number."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from clusterctl.model.run_record import ProcessIdentity

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
