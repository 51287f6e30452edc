"""The kernel's count of processes that it has killed for lack of memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from clusterctl.support import content

sys.path.insert(0, str(content.role_files("validation")))
import job_look

EVENTS = "low 0\nhigh 0\nmax 41\noom 3\noom_kill {}\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"  # of version 1


def grouped(root: Path, own: str, files: dict[str, int]) -> tuple[Path, Path]:
    """Write the groups that counted kills, and the group of the process itself."""
    for folder, kills in files.items():
        place = root / folder
        place.mkdir(parents=True, exist_ok=True)
        name, text = ("memory.oom_control", CONTROL) if folder.startswith("memory") else ("memory.events", EVENTS)
        (place / name).write_text(text.format(kills))
    (root / "own").write_text(own)
    return root, root / "own"


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
    assert job_look.count(*grouped(tmp_path, own, files)) == count


SLICE = f"user.slice/user-{os.getuid()}.slice"


@pytest.mark.parametrize(
    ("own", "files", "count"),
    [
        (f"0::/{SLICE}/session-3.scope", {"user.slice": 9, SLICE: 2, f"{SLICE}/session-3.scope": 0}, 2),
        ("0::/user.slice/user-77777.slice/session-3.scope", {"user.slice": 9}, -1),
        (
            "0::/system.slice/slurmstepd.scope/job_41/step_0/user/task_0",
            {"system.slice": 9, "system.slice/slurmstepd.scope/job_41": 1},
            1,
        ),
        ("0::/", {"": 5}, -1),
        ("4:memory:/slurm/uid_1000/job_5\n0::/", {"memory/slurm/uid_1000/job_5": 3}, 3),
    ],
)
def test_the_count_of_this_user_alone_is_apart(tmp_path: Path, own: str, files: dict[str, int], count: int) -> None:
    assert job_look.own_count(*grouped(tmp_path, own, files)) == count


# Of mm/oom_kill.c: the words of Linux 6 for a group's limit and for the whole node, and those of Linux 4.
GROUP = (
    "3,811,5124,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:2400kB, anon-rss:1500kB, "
    "file-rss:4kB, shmem-rss:0kB, UID:1001 pgtables:80kB oom_score_adj:0\n SUBSYSTEM=x"
)
NODE = "3,9,7,-;Out of memory: Killed process 12 (my (odd) name) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:8kB"
OLD = "3,10,8,-;Memory cgroup out of memory: Killed process 13 (solver), total-vm:1kB, anon-rss:1kB"


@pytest.mark.parametrize(
    ("record", "number", "uid", "name"),
    [(GROUP, 811, 1001, "python"), (NODE, 9, 0, "my (odd) name"), (OLD, 10, -1, "solver")],
)
def test_a_kill_in_the_kernels_log_is_read(record: str, number: int, uid: int, name: str) -> None:
    (found,) = job_look.killed(record)
    assert (found["number"], found["uid"], found["name"]) == (number, uid, name)


FORGED = "6,1,2,-;job[7]: segfault at 0 ip 1 sp 2 error 4 in Out of memory: Killed process 5 (a), total-vm:1kB"


@pytest.mark.parametrize(
    "record", ["", ";", "3,x;Out of memory: Killed process 1 (a) ", "6,1,2,-;usb 1-1: new device", FORGED]
)
def test_other_records_tell_of_no_kill(record: str) -> None:
    assert job_look.killed(record) == []


def test_a_log_that_is_not_readable_is_not_an_empty_one(tmp_path: Path) -> None:
    assert job_look.logged(str(tmp_path / "kmsg")) is None


def test_this_machines_log_is_read_to_its_end_where_it_may_be() -> None:
    try:
        os.close(os.open(job_look.LOG, os.O_RDONLY))
    except OSError:
        assert job_look.logged() is None
    else:
        assert job_look.logged() is not None
