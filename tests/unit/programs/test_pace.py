"""The module that a training program imports on a node, where clusterctl is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import clusterctl
import node_programs
import pytest
from clusterctl import pace
from clusterctl.jobs import pace as jobs_pace
from clusterctl.support import content

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


# --- no program on a node tries the folder for temporary files out with a file, which a kill would leave there ---


# Fails at the first file that is opened for writing in the folder for temporary files, or that is made there.
WATCHED = """
import os, runpy, sys
folder, program = os.environ["TMPDIR"], sys.argv[1]
def watch(event, arguments):
    if event == "open" and str(arguments[0]).startswith(folder + os.sep) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        os.write(2, f"a file for writing: {arguments[0]}".encode())
        os._exit(3)
sys.addaudithook(watch)
sys.path.insert(0, os.path.dirname(program))
"""
REQUEST = {"job": "unit-scratch-folder", "argv": ["true"], "deadline_s": 20}


def watched(folder: Path, program: str, code: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WATCHED + code, str(content.role_files("validation") / program)],
        env={**os.environ, "TMPDIR": str(folder)},
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("rank_program.py", "import rank_program, tempfile; assert tempfile.gettempdir() == folder"),
        ("job_members.py", "import job_members; job_members.sweep('unit-scratch-folder', 'node1-17')"),
        ("rank_stacks.py", "import rank_stacks; rank_stacks.job_members.folders_of_daemon(17)"),
    ],
)
def test_no_file_is_written_to_choose_the_folder(tmp_path: Path, program: str, code: str) -> None:
    done = watched(tmp_path, program, code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_supervisor_makes_its_own_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    code = "sys.argv[1:] = []; runpy.run_path(program, run_name='__main__')"
    done = watched(tmp_path, "job_supervisor.py", code, json.dumps(REQUEST) + "\n")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "ended"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("TMPDIR",), ("TMP", "TEMP")])
def test_the_folder_is_the_one_that_python_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    for name in names:
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    assert node_programs.load("bounded_run").scratch_folder() == str(tmp_path / names[-1])


def test_a_folder_that_is_missing_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere/at/all")
    assert node_programs.load("bounded_run").scratch_folder() != "/nowhere/at/all"
