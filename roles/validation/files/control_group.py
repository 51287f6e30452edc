"""Count for how long this node's control group holds its processes back, by the kernel's own count.

A group with a CPU quota may use so many seconds of processor time in each period; for the rest of the period its
processes stand still. The kernel counts the periods and the seconds in ``cpu.stat``. Both versions of control groups
are read. The quota may be that of a group further up, so all groups above this process are looked at.

It needs the standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, NamedTuple

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
NANOSECOND, MICROSECOND = 1e-9, 1e-6


class Count(NamedTuple):
    """What the kernel counted in the group with the tightest quota; ``cores`` is that quota."""

    cores: float = 0.0  # 0: nothing limits
    periods: int = 0
    throttled: int = 0
    seconds: float = 0.0

    def since(self, before: Count) -> dict[str, float]:
        """Return what came since an earlier count, {} if nothing was held back."""
        seconds, periods = self.seconds - before.seconds, self.periods - before.periods
        if not self.cores or seconds <= 0 or periods <= 0:
            return {}
        part = (self.throttled - before.throttled) / periods
        return {"held_s": round(seconds, 3), "held_part": round(part, 3), "quota_cores": round(self.cores, 3)}


def count(root: Path = CGROUPS, own: Path = OWN) -> Count:
    """Return the count of the group with the tightest quota, above this process or its own."""
    found = [one for folder, unified in folders(root, read(own)) for one in counted(folder, unified)]
    return min(found, key=lambda one: one.cores, default=Count())


def folders(root: Path, own: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the groups of a process and of all above; a container may see its own as the root."""
    for line in own.splitlines():
        number, _unused, rest = line.partition(":")
        controllers, _unused, path = rest.partition(":")
        if number == "0" and not controllers:
            tops = [root if (root / "cgroup.controllers").exists() else root / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [root / controllers, root / "cpu"]
        else:
            continue
        top = next((folder for folder in tops if folder.is_dir()), None)
        if top is not None:
            place = Path(path.lstrip("/"))
            for folder in (place, *place.parents):
                yield top / folder, number == "0"


def counted(folder: Path, unified: bool) -> list[Count]:
    """Return the count of one group, [] for a group without a quota."""
    try:
        if unified:
            quota, period = (int(word) for word in read(folder / "cpu.max").split())
        else:
            quota, period = int(read(folder / "cpu.cfs_quota_us")), int(read(folder / "cpu.cfs_period_us"))
    except ValueError:  # such a file is missing, or says "max"
        return []
    if quota <= 0 or period <= 0:
        return []
    words = dict(line.split(None, 1) for line in read(folder / "cpu.stat").splitlines() if " " in line)
    seconds = int(words.get("throttled_usec", 0)) * MICROSECOND or int(words.get("throttled_time", 0)) * NANOSECOND
    return [Count(quota / period, int(words.get("nr_periods", 0)), int(words.get("nr_throttled", 0)), seconds)]


def read(path: Path) -> str:
    """Return a small file's text, empty without the file."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
