"""No program on a node tries the folder for temporary files out with a file, which a kill would leave there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import node_programs
import pytest

if TYPE_CHECKING:
    from pathlib import Path

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
        [sys.executable, "-c", WATCHED + code, str(node_programs.FOLDER / program)],
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
