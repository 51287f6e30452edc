# SPDX-License-Identifier: Apache-2.0
"""The CPU quota of the session's control group, and the kernel's count of how long it held the group back."""

from __future__ import annotations

from . import control_groups
from .reading import Json, read_text

_NS, _US = 1e9, 1e6


def cpu_quota(root: str = control_groups.ROOT, own: str = "/proc/self/cgroup") -> Json:
    """Return the tightest CPU quota between this process and the root of its control groups.

    Args:
        root: where the control groups are mounted.
        own: the list of the control groups of a process.

    Returns:
        Under ``cpu_quota``: ``group`` (the folder of the control group with that quota), ``cores`` (None if nothing
        limits), and what the kernel counted there: ``throttled_periods`` and ``throttled_s``.
    """
    quotas = [
        quota
        for folder, is_unified in control_groups.folders(root, read_text(own, ""), "cpu")
        for quota in _quota(folder, is_unified)
    ]
    least = min(quotas, key=lambda quota: quota["cores"], default=None)
    return {"cpu_quota": least or {"group": "", "cores": None, "throttled_periods": 0, "throttled_s": 0.0}}


def _quota(folder: str, is_unified: bool) -> list[Json]:
    """Return the quota of one control group, [] if it has none."""
    try:
        if is_unified:
            quota, period = (int(word) for word in read_text(f"{folder}/cpu.max").split())
        else:
            quota = int(read_text(f"{folder}/cpu.cfs_quota_us"))
            period = int(read_text(f"{folder}/cpu.cfs_period_us"))
    except (OSError, ValueError):  # such a file is missing, or the quota is "max"
        return []
    if quota <= 0 or period <= 0:
        return []
    counts = dict([*line.split(), "0"][:2] for line in read_text(f"{folder}/cpu.stat", "").splitlines() if line)
    held = int(counts.get("throttled_usec", 0)) / _US or int(counts.get("throttled_time", 0)) / _NS
    return [
        {
            "group": folder,
            "cores": quota / period,
            "throttled_periods": int(counts.get("nr_throttled", 0)),
            "throttled_s": round(held, 3),
        }
    ]
