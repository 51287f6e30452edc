"""The module that a training program imports on a node, where clusterctl is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import clusterctl
import pytest
from clusterctl import pace
from clusterctl.jobs import pace as jobs_pace
from clusterctl.support import content

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = content.role_files("validation") / "pace"
# Five steps of 0.4 s by a clock of its own, of which the rank waits 0.3 s.
PROGRAM = """\
import sys, time
clock = [0.0]
time.monotonic = lambda: clock[0]
from clusterctl import pace
for _ in range(6):
    pace.step()
    clock[0] += 0.1
    with pace.waiting():
        clock[0] += 0.2
        with pace.waiting():
            clock[0] += 0.1
print(pace.__file__)
"""


def on_a_node(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # -S: without site-packages, and so without the clusterctl of this environment
    command = [sys.executable, "-S", "-c", PROGRAM]
    path = {"PYTHONPATH": str(FOLDER), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=path | environment, capture_output=True, text=True, check=True)


@pytest.mark.programs
def test_a_report_tells_the_steps_and_what_was_waited_in_them() -> None:
    done = on_a_node({"CLUSTERCTL_PACE": "1", "OMPI_COMM_WORLD_RANK": "7"})
    assert done.stdout.strip() == str(FOLDER / "clusterctl" / "pace.py")
    found = jobs_pace._REPORT.fullmatch(done.stderr.encode())  # noqa: SLF001 - what the other side reads
    assert found is not None, done.stderr
    rank, _, steps, whole_s, waited_s = found.groups()
    assert (rank, steps, whole_s, waited_s) == (b"7", b"3", b"1.200000", b"0.900000")


@pytest.mark.programs
def test_torchruns_rank_goes_before_that_of_the_mpirun_below() -> None:
    done = on_a_node({"CLUSTERCTL_PACE": "1", "OMPI_COMM_WORLD_RANK": "1", "RANK": "3"})
    assert done.stderr.startswith("clusterctl-pace 1 3 ")
    assert on_a_node({"CLUSTERCTL_PACE": "1"}).stderr.startswith("clusterctl-pace 1 - ")


@pytest.mark.programs
def test_without_the_option_it_says_nothing() -> None:
    assert on_a_node({"OMPI_COMM_WORLD_RANK": "7"}).stderr == ""


def test_where_clusterctl_is_installed_it_is_the_same_module(capfd: pytest.CaptureFixture[str]) -> None:
    module: ModuleType = pace._node_module  # noqa: SLF001 - the file behind it
    assert module.__file__ == str(FOLDER / "clusterctl" / "pace.py")
    assert clusterctl.__file__
    pace.step()
    with pace.waiting():
        pass
    pace.step()
    assert capfd.readouterr().err == ""
