"""The processes of a machine, by /proc and by the program ps, which macOS has in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterctl.state import processes

pytestmark = pytest.mark.programs

MARK = "clusterctl-mark-of-a-run"


@pytest.fixture(params=["proc", "ps"])
def by(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes are found; without /proc as on macOS."""
    if request.param == "ps":
        monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    return str(request.param)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "OF_THE_RUN": MARK}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.readline()  # the kernel shows the environment of a new program a moment after its start
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("by")
def test_a_running_process_is_found_with_its_parent_its_start_and_its_mark(child: subprocess.Popen[bytes]) -> None:
    assert {os.getpid(), child.pid} <= set(processes.all_numbers())
    assert child.pid in processes.children(os.getpid())
    assert os.getpid() not in processes.children(os.getpid())
    started = processes.started_ticks(child.pid)
    assert started is not None
    assert started == processes.started_ticks(child.pid)
    assert processes.carries(child.pid, MARK.encode())
    assert processes.carries(child.pid, b"another mark", b"input()")
    assert not processes.carries(child.pid, b"another mark")
    assert any(name.startswith("python") for name in processes.names())
    assert processes.runs(child.pid)


@pytest.mark.usefixtures("by")
def test_a_run_at_work_is_not_taken_for_a_killed_one(child: subprocess.Popen[bytes]) -> None:
    here = processes.this_process()
    recorded = here.model_copy(update={"started_ticks": processes.started_ticks(child.pid)})
    assert not processes.has_ended(recorded, here, processes.started_ticks(child.pid))
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # now a zombie
    assert processes.started_ticks(child.pid) is None
    assert not processes.carries(child.pid, MARK.encode())
    assert processes.has_ended(recorded, here, processes.started_ticks(child.pid))
    child.communicate()
    assert processes.started_ticks(child.pid) is None
    assert not processes.runs(child.pid)


@pytest.mark.usefixtures("by")
def test_what_carries_the_mark_is_ended(child: subprocess.Popen[bytes]) -> None:
    processes.end_all(lambda pid: pid == child.pid and processes.carries(pid, MARK.encode()))
    assert child.wait(timeout=10) == -signal.SIGTERM


def test_without_proc_and_ps_nothing_is_known_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert processes.all_numbers() == []
    assert processes.started_ticks(os.getpid()) is None
    assert processes.names() == set()
    assert not processes.carries(os.getpid(), b"")
