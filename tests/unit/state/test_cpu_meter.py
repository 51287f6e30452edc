from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusterctl.state import process_table
from clusterctl.state.cpu_meter import CpuMeter, tree
from clusterctl.state.process_table import CpuUse

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.programs
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this machine has no /proc")

WORK = 0.3  # processor seconds of each program here
TICKS = 0.05  # what the kernel's clock and the end of Python may take away or add
# Works for so long, says so, and waits until its input ends.
WORKER = textwrap.dedent(f"""
    import sys, time
    while time.process_time() < {WORK}:
        pass
    print("done", flush=True)
    sys.stdin.read()
""")
# Leaves its parent, as the master of a shared ssh connection does, and works then.
LEAVER = f"import os, sys\nif os.fork():\n    sys.exit()\nos.setsid()\n{WORKER}"


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> CpuMeter:
    monkeypatch.setenv("CLUSTERCTL_CPU_METER", "")  # so that the test's own environment comes back
    return CpuMeter()


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", request.param], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        if process.stdin is not None:
            process.stdin.close()


def _is_done(process: subprocess.Popen[str]) -> bool:
    return process.stdout is not None and process.stdout.readline() == "done\n"


@needs_proc
@pytest.mark.parametrize("worker", [WORKER, LEAVER], ids=["child", "left its parent"], indirect=True)
def test_what_runs_counts_and_still_counts_after_its_end(meter: CpuMeter, worker: subprocess.Popen[str]) -> None:
    assert _is_done(worker)
    running = meter.seconds()
    assert running is not None
    assert running > WORK - TICKS
    worker.communicate()
    ended = meter.seconds()
    assert ended is not None
    assert ended >= running


@needs_proc
def test_a_child_that_ended_between_two_readings_counts(meter: CpuMeter) -> None:
    subprocess.run([sys.executable, "-c", WORKER], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    found = meter.seconds()
    assert found is not None
    assert found > WORK - TICKS


@needs_proc
def test_a_process_that_began_elsewhere_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_CPU_METER", "")
    program = [sys.executable, "-c", LEAVER]  # started before the meter, so it has no mark
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) as process:
        meter = CpuMeter()
        assert _is_done(process)
        found = meter.seconds()
        process.communicate()
    assert found is not None
    assert found < WORK


def test_without_proc_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLUSTERCTL_CPU_METER", "")
    monkeypatch.setattr(process_table, "PROC", tmp_path)
    assert CpuMeter().seconds() is None


def test_a_tree_has_all_generations_and_nothing_else() -> None:
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 13: 11, 20: 1, 21: 20}
    uses = {pid: CpuUse(parent, 5, 1.0) for pid, parent in parents.items()}
    assert tree(uses, 10) == {10, 11, 12, 13}
