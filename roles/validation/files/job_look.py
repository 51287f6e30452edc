"""Say what a job needs to know of this node before its start: where its files are, and what lack of memory has killed.

The supervisor answers by it, and so does the record of the node's facts, which takes it along. It needs the standard
library only.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Sequence


def home() -> str:
    """Return the user's home, or the root folder where it is missing."""
    return str(Path.home()) if _is_folder(Path.home()) else "/"


# Up to Python 3.13, Path.is_file() and is_dir() raise PermissionError below a folder that may not be searched.
def _is_file(place: Path) -> bool:
    return os.path.isfile(place)  # noqa: PTH113 - see above


def _is_folder(place: Path) -> bool:
    return os.path.isdir(place)  # noqa: PTH112 - see above


def look(names: Sequence[str], path: str, directory: str = "") -> dict[str, Any]:
    """Return where this node has files, and what the kernel has killed so far.

    Args:
        names: a path counts from ``directory`` or the home. A bare name is an executable in one of the folders of
            ``path``.
        path: folders as in PATH.
        directory: where the job starts; the home where it is empty.

    Returns:
        ``found`` has by name the path, empty where it is missing. ``runs`` are the names of files that may be executed.
        ``folder`` is where the job starts, and ``is`` tells whether it is there. ``memory`` is as in
        :func:`memory_kills`.
    """
    folder = Path(directory) if directory.startswith("/") else Path(home(), directory or ".")
    found: dict[str, str] = {}
    for name in names:
        places = [folder / name] if "/" in name else [Path(part, name) for part in path.split(":") if part]
        here = [str(place) for place in places if _is_file(place) and ("/" in name or os.access(place, os.X_OK))]
        found[name] = here[0] if here else ""
    runs = [name for name, place in found.items() if place and os.access(place, os.X_OK)]
    place = {"folder": str(folder), "is": _is_folder(folder)}
    return {"found": found, "runs": runs, **place, "memory": memory_kills()}


# --- what the kernel has killed for lack of memory: its counts of control groups, and its log if readable -------------

CGROUPS, OWN, LOG = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), "/dev/kmsg"
MOST_KEPT = 64  # kills of the log, the newest
_RECORD = 8192  # bytes; the kernel refuses a smaller buffer for a long record
_MOST_RECORDS = 1 << 16
_KILLS = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
_SLURM_JOB = re.compile(r"job_\d+")
_FIRST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO: the numbers of the log are those of this space
# mm/oom_kill.c of Linux: __oom_kill_process(). UID is there since 5.3. Only the begin of a line counts: the kernel also
# names the file in which a process crashes, and any user chooses that name.
_KILLED = re.compile(
    r"(?:Memory cgroup o|O)ut of memory[^:]*: Killed process (?P<pid>\d+) \((?P<name>.*)\),? total-vm:"
    r"(?:.* UID:(?P<uid>\d+))?"
)


def memory_kills(root: Path = CGROUPS, own: Path = OWN, log: str = LOG) -> dict[str, object]:
    """Return which processes the kernel has killed for lack of memory, as its counts and its log tell.

    ``all`` counts those of the widest group, and ``own`` those of a group that only this user or this job has: the
    user's slice, or the Slurm job. -1 is a count that is hidden. ``log`` has the kills that the kernel's log tells of,
    or is None where it is not readable. ``uid`` is this user.
    """
    return {"all": count(root, own), "own": own_count(root, own), "log": logged(log), "uid": os.getuid()}


def count(root: Path = CGROUPS, own: Path = OWN) -> int:
    """Return the kills of the widest group around this process that has a count, -1 where none has.

    The groups of two sessions differ, and a group of version 2 counts those below it. So the group at the top is asked
    first: that of a container, or the slice of all users. A group of version 1 counts its own processes alone.
    """
    for top, name, place, nested in _places(root, own):
        folders = [top / part for part in (place, *place.parents)]
        for folder in reversed(folders) if nested else folders:
            found = _KILLS.search(_read(folder / name))
            if found:
                return int(found.group(1))
    return -1


def own_count(root: Path = CGROUPS, own: Path = OWN) -> int:
    """Return the kills of a group that holds this user's or this job's processes alone, -1 where there is none."""
    slice_of_user = f"user-{os.getuid()}.slice"
    for top, name, place, _nested in _places(root, own):
        for part in reversed((place, *place.parents)):
            if part.name == slice_of_user or _SLURM_JOB.fullmatch(part.name):
                found = _KILLS.search(_read(top / part / name))
                if found:
                    return int(found.group(1))
    return -1


def logged(path: str = LOG) -> list[dict[str, object]] | None:
    """Return the newest kills of the kernel's log, None where this user may not read it.

    ``number`` is that of the record, which tells a kill from every other one since the node was started. ``pid`` is -1
    in a container, whose processes have other numbers there.
    """
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found: list[dict[str, object]] = []
    try:
        for _record in range(_MOST_RECORDS):
            try:
                record = os.read(source, _RECORD)
            except BrokenPipeError:  # it was overwritten meanwhile; the next read goes on behind it
                continue
            except BlockingIOError:
                break
            if not record:
                break
            found += killed(record.decode("utf-8", "replace"))
    except OSError:
        return None
    finally:
        os.close(source)
    return found[-MOST_KEPT:]


def killed(record: str) -> list[dict[str, object]]:
    """Return the kill that a record of /dev/kmsg tells of, in a list that is empty without one."""
    head, _unused, text = record.partition(";")
    numbers = head.split(",")
    match = _KILLED.match(text.partition("\n")[0])
    if match is None or len(numbers) < 2 or not numbers[1].isdigit():  # noqa: PLR2004 - level and number
        return []
    pid = int(match["pid"]) if _sees_all_pids() else -1
    uid = int(match["uid"]) if match["uid"] else -1
    return [{"number": int(numbers[1]), "pid": pid, "uid": uid, "name": match["name"][:32]}]


def _sees_all_pids() -> bool:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PIDS
    return False


def _places(root: Path, own: Path) -> list[tuple[Path, str, Path, bool]]:
    """Return folder and file of the counts, this process's group below the folder, and whether counts are nested."""
    found = []
    for line in _read(own).splitlines():
        number, _unused, rest = line.partition(":")
        controllers, _unused, path = rest.partition(":")
        place = Path(path.lstrip("/"))
        if (number, controllers) == ("0", ""):
            found.append((root, "memory.events", place, True))
        elif controllers == "memory":
            found.append((root / "memory", "memory.oom_control", place, False))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
