"""Tell whether a recorded process still runs, also after a reboot, and find and end the processes that a run left."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from clusterctl.model.run_record import ProcessIdentity


def this_process() -> ProcessIdentity:
    """Return what identifies the calling process on any machine that shares its state folder."""
    return ProcessIdentity(
        host=platform.node(),
        machine_id=_text("/etc/machine-id"),
        boot_id=boot_id(),
        pid_namespace=_link("/proc/self/ns/pid"),
        started_ticks=started_ticks(os.getpid()) or 0,
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


# --- Read the processes of this machine: from /proc on Linux, by the program ps where /proc is missing, as on macOS ---

_ZOMBIE = "Z"
_AFTER_NAME = 19  # fields of /proc/PID/stat between the name and the start time, which is field 22 of proc(5)
_STARTED = "%a %b %d %H:%M:%S %Y"  # what ps prints as lstart in the locale C
_LSTART_WORDS = 5
_ANSWER_S = 10

PROC = Path("/proc")


def all_numbers() -> list[int]:
    if _has_proc():
        return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    return [int(word) for word in _ps("-A", "-o", "pid=").split()]


def started_ticks(pid: int) -> int | None:
    """Return when a process started; None where it does not run.

    The unit is clock ticks since the boot by /proc, and seconds since 1970 by ps. Only equality matters.
    """
    if _has_proc():
        fields = _stat(pid)
        return int(fields[_AFTER_NAME]) if len(fields) > _AFTER_NAME and fields[0] != _ZOMBIE else None
    words = _ps("-o", "stat=,lstart=", "-p", str(pid)).split()
    if len(words) != 1 + _LSTART_WORDS or words[0].startswith(_ZOMBIE):
        return None
    return int(datetime.strptime(" ".join(words[1:]), _STARTED).replace(tzinfo=timezone.utc).timestamp())


def children(parent: int) -> list[int]:
    if _has_proc():
        return [pid for pid in all_numbers() if _stat(pid)[1:2] == [str(parent)]]
    rows = (line.split() for line in _ps("-A", "-o", "pid=,ppid=").splitlines())
    return [int(row[0]) for row in rows if row[1:] == [str(parent)]]


def names() -> set[str]:
    """Return the names of the programs that run on this machine."""
    found = set()
    if _has_proc():
        for path in PROC.glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                found.add(path.read_text(encoding="utf-8", errors="replace").strip())
        return found
    return {Path(line.strip()).name for line in _ps("-A", "-o", "comm=").splitlines() if line.strip()}


def carries(pid: int, environment: bytes, arguments: bytes = b"") -> bool:
    """Whether a process that runs has a text in its environment, or another one in its arguments.

    ps prints both in one line, so without /proc either text counts anywhere.
    """
    if not _has_proc():
        shown = _with_environment(pid)
        return bool(shown) and (environment in shown or bool(arguments and arguments in shown))
    process = PROC / str(pid)
    try:
        if _stat(pid)[:1] in ([], [_ZOMBIE]):
            return False
        return environment in (process / "environ").read_bytes() or bool(
            arguments and arguments in (process / "cmdline").read_bytes()
        )
    except OSError:  # it ended meanwhile, or is another user's
        return False


def runs(pid: int) -> bool:
    """Whether a process has this number, also one of another user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def boot_id() -> str:
    """Return what changes with each boot of this machine; '' where that is unknown."""
    with contextlib.suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace").strip()
    return _said("sysctl", "-n", "kern.bootsessionuuid") if sys.platform == "darwin" else ""


def _has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name, from the state on; none where it does not run."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2]
    except OSError:
        return []
    return text.decode("ascii", "replace").split()


def _with_environment(pid: int) -> bytes:
    options = ("-E", "-ww") if sys.platform == "darwin" else ("eww",)
    words = _ps(*options, "-o", "stat=,command=", "-p", str(pid))
    return b"" if words.startswith(_ZOMBIE) else os.fsencode(words)


def _ps(*words: str) -> str:
    return _said("ps", *words)


def _said(*argv: str) -> str:
    """Return what a program prints; '' where it is missing, fails, or does not answer."""
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, check=False, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(done.stdout).strip() if done.returncode == 0 else ""
