"""Count the processes that the kernel has killed for lack of memory, by its own count for control groups.

It needs the standard library only.
"""

from __future__ import annotations

import re
from pathlib import Path

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_KILLS = re.compile(r"^oom_kill (\d+)", re.MULTILINE)


def count(root: Path = CGROUPS, own: Path = OWN) -> int:
    """Return the kills of the widest group around this process that has a count, -1 where none has.

    The groups of two sessions differ, and a group of version 2 counts those below it. So the group at the top is asked
    first: that of a container, or the slice of all users. A group of version 1 counts its own processes alone.
    """
    for line in _read(own).splitlines():
        number, _unused, rest = line.partition(":")
        controllers, _unused, path = rest.partition(":")
        if (number, controllers) != ("0", "") and controllers != "memory":
            continue
        top, name = (root / "memory", "memory.oom_control") if controllers else (root, "memory.events")
        place = Path(path.lstrip("/"))
        folders = [top / part for part in (place, *place.parents)]
        for folder in folders if controllers else reversed(folders):
            found = _KILLS.search(_read(folder / name))
            if found:
                return int(found.group(1))
    return -1


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
