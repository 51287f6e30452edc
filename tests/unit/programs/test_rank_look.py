"""The look at the ranks of a job on a node, at real processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from clusterctl.support import content

sys.path.insert(0, str(content.role_files("validation")))
import flight_record
import rank_look
import rank_stacks
from waiting import eventually


def test_every_rank_of_a_large_node_is_listed_and_only_some_stacks_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_look, "STACKS_S", 0.0)  # the kernel's view alone
    job, count = f"unit-look-{os.getpid()}", rank_look.MOST_STACKS + 2
    started = [
        subprocess.Popen(["sleep", "300"], env={**os.environ, "CLUSTERCTL_JOB": job, "OMPI_COMM_WORLD_RANK": str(rank)})
        for rank in range(count)
    ]
    try:
        found: dict[str, Any] = rank_look.answer(job, with_stacks=True)
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert [one["rank"] for one in found["ranks"]] == list(range(count))
    assert [one["rank"] for one in found["stacks"]] == list(range(rank_look.MOST_STACKS))


def test_each_look_asks_the_ranks_for_a_flight_record_that_the_next_one_reads() -> None:
    job = f"unit-look-flight-{os.getpid()}"
    assert flight_record.make(job) == ""
    pipe = flight_record.folder(job) / "pipe_0.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    rank = subprocess.Popen(["sleep", "300"], env={**os.environ, "CLUSTERCTL_JOB": job, "OMPI_COMM_WORLD_RANK": "0"})
    try:
        rank_look.answer(job, with_stacks=False)
        assert os.read(reader, 16)
    finally:
        rank.kill()
        rank.wait()
        os.close(reader)
        flight_record.remove(job)


def test_the_ranks_that_torchrun_started_are_known_from_one_that_is_there() -> None:
    job = f"unit-look-torch-{os.getpid()}"
    given = {"TORCHELASTIC_RUN_ID": "x", "RANK": "6", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    rank = subprocess.Popen(["sleep", "300"], env={**os.environ, "CLUSTERCTL_JOB": job, **given})
    try:
        found = rank_look.answer(job, with_stacks=False)
    finally:
        rank.kill()
        rank.wait()
    assert found["expected"] == [4, 5, 6, 7]


def test_the_launcher_of_a_node_is_no_rank_beside_those_that_it_started() -> None:
    """DeepSpeed's own has the number of its node, which is also that of a rank on the first node."""
    job = f"unit-look-launcher-{os.getpid()}"
    of = [{"NODE_RANK": "1"}, *({"NODE_RANK": "1", "RANK": str(2 + one), "LOCAL_RANK": str(one)} for one in range(2))]
    started = [subprocess.Popen(["sleep", "300"], env={**os.environ, "CLUSTERCTL_JOB": job, **its}) for its in of]
    try:
        assert eventually(lambda: rank_look.ranks_of(job) == {started[1].pid: 2, started[2].pid: 3})
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "RANK": "5", "LOCAL_RANK": "1"}, 5),  # DeepSpeed's launcher under mpirun
        ({"OMPI_COMM_WORLD_RANK": "1", "RANK": "5"}, 1),
        ({"NODE_RANK": "3"}, 3),
        ({"NODE_RANK": "3", "LOCAL_RANK": "1"}, 3),
    ],
)
def test_the_number_of_a_rank_is_that_of_its_launcher(given: dict[str, str], number: int) -> None:
    with subprocess.Popen(["sleep", "300"], env={"PATH": os.environ["PATH"], **given}) as rank:
        try:
            while not rank_look.environment_of(rank.pid):  # it is about to become the program
                time.sleep(0.02)
            assert rank_stacks.rank_of(rank.pid) == number
        finally:
            rank.kill()


def of_ray(job: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process named as the program of Ray on a node, with a raylet, a driver, a helper and two workers."""
    names = ["raylet", "ray::DashboardAgent", "ray::IDLE", "ray::nap", "driver"]
    code = (
        "import os, subprocess, sys; "
        "[subprocess.Popen(['sleep', '300'], env={**os.environ, 'RAY_ADDRESS': 'x'}) if name == 'driver' else "
        "subprocess.Popen([name, '300'], executable='/bin/sleep') for name in sys.argv[2:]]; sys.stdin.read()"
    )
    program = folder / "ray_node.py"
    program.write_text(code, encoding="utf-8")
    given = {**os.environ, "CLUSTERCTL_JOB": job, "NODE_RANK": "1"}
    return subprocess.Popen([sys.executable, str(program), "--", *names], env=given, stdin=subprocess.PIPE)


def test_one_process_of_ray_stands_for_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = f"unit-look-ray-{os.getpid()}"
    monkeypatch.setattr(rank_look, "_RAY_NODE", os.fsencode(tmp_path / "ray_node.py"))

    def found() -> str:
        chosen = rank_look.ranks_of(job)
        assert list(chosen.values()) == [1]
        (pid,) = chosen
        title = rank_stacks.text(f"/proc/{pid}/cmdline").split("\0")[0]
        return "driver" if "RAY_ADDRESS" in rank_look.environment_of(pid) else title

    node = of_ray(job, tmp_path)
    try:
        end = time.monotonic() + 60
        while len(pids := rank_look.job_members.members(job)) < 6 and time.monotonic() < end:
            time.sleep(0.02)
        titles = {rank_stacks.text(f"/proc/{pid}/cmdline").split("\0")[0]: pid for pid in pids if pid != node.pid}
        assert eventually(lambda: found() == "driver")
        os.kill(titles["ray::nap"], signal.SIGSTOP)
        assert eventually(lambda: found() == "ray::nap")
        os.kill(titles["ray::nap"], signal.SIGCONT)
        os.kill(titles["sleep"], signal.SIGKILL)
        assert eventually(lambda: found() == "ray::nap")
        os.kill(titles["ray::nap"], signal.SIGKILL)
        assert eventually(lambda: found() == sys.executable), "neither a worker without a task nor a helper counts"
    finally:
        rank_look.job_members.sweep(job)
        node.communicate()


def test_a_full_file_system_is_told_of_the_rank_that_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its open file lies there; a mount point that no rank uses is not asked."""
    point = rank_look.mount_of(os.getpid(), str(tmp_path))[0]
    code = "with open(sys.argv[1], 'w'): sys.stdin.read()"
    argv = [sys.executable, "-c", f"import sys\n{code}", str(tmp_path / "kept")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, cwd="/proc", env={"HOME": "/proc"}) as rank:
        end = time.monotonic() + 60
        while not (tmp_path / "kept").exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert point not in rank_look.full_places([rank.pid]).get(rank.pid, [])
        little = f"import sys\nfor place in sys.argv[1:]: print(int(place == {point!r}))"
        monkeypatch.setattr(rank_look, "_SPACE", little)
        assert rank_look.full_places([rank.pid]) == {rank.pid: [point]}
        rank.communicate(b"")
