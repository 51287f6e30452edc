"""The kernel's count of processes that it has killed for lack of memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from clusterctl.support import content

if TYPE_CHECKING:
    from pathlib import Path

sys.path.insert(0, str(content.role_files("validation")))
import memory_kills

EVENTS = "low 0\nhigh 0\nmax 41\noom 3\noom_kill {}\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"  # of version 1


@pytest.mark.parametrize(
    ("own", "files", "count"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope", {"user.slice": 2, "user.slice/user-1000.slice": 0}, 2),
        ("0::/", {"": 5}, 5),
        ("0::/../other", {"": 4}, 4),
        ("0::/", {}, -1),
        ("4:memory:/libpod_parent/libpod-b3\n0::/", {"memory": 7}, 7),
        ("4:memory:/user.slice\n3:cpu:/\n0::/", {"memory/user.slice": 1, "memory": 9}, 1),
        ("garbage", {"": 5}, -1),
    ],
)
def test_the_widest_group_that_counts_below_it_is_read(
    tmp_path: Path, own: str, files: dict[str, int], count: int
) -> None:
    root = tmp_path / "cgroup"
    for folder, kills in files.items():
        place = root / folder
        place.mkdir(parents=True, exist_ok=True)
        name, text = ("memory.oom_control", CONTROL) if folder.startswith("memory") else ("memory.events", EVENTS)
        (place / name).write_text(text.format(kills))
    (tmp_path / "own").write_text(own)
    assert memory_kills.count(root, tmp_path / "own") == count
