"""A sweep kills and removes what belongs to the job's own user, and nothing else that carries the job's id."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import node_programs
import pytest

STRANGER = 65534
JOB = "unit-strangers-job"
members = node_programs.load("job_members")
pytestmark = pytest.mark.programs


def started(folder: str, **identity: object) -> subprocess.Popen[bytes]:
    variables = {"PATH": "/usr/bin:/bin", "CLUSTERCTL_JOB": JOB, "PMIX_SERVER_TMPDIR": folder}
    process = subprocess.Popen(["sleep", "60"], env=variables, **identity)  # type: ignore[call-overload]
    time.sleep(0.2)
    return process  # type: ignore[no-any-return]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_strangers_process_with_the_jobs_id_is_not_swept(tmp_path: Path) -> None:
    secret = tmp_path / "prte.secret"
    secret.write_text("root's")
    with started(str(secret), user=STRANGER, group=STRANGER, extra_groups=[]) as process:
        try:
            answer = members.sweep(JOB, wait_s=1.0)
            assert (answer["killed"], answer["left"]) == ([], [])
            assert process.poll() is None
        finally:
            process.kill()
    assert secret.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x1c", "\x85", "\u2028"], ids=ascii)
def test_nor_is_one_whose_name_holds_a_row_of_its_status(separator: str) -> None:
    name = f"x{separator}Uid:\t0".encode()
    program = f"import ctypes, time; ctypes.CDLL(None).prctl(15, {name!r}); print(flush=True); time.sleep(60)"
    identity = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
    with subprocess.Popen(["/usr/bin/python3", "-c", program], stdout=subprocess.PIPE, **identity) as process:  # type: ignore[call-overload]
        try:
            process.stdout.readline()
            assert not members.is_own(process.pid)
        finally:
            process.kill()


def test_the_folder_of_an_own_process_goes_from_a_known_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(members.bounded_run, "scratch_folder", lambda: str(tmp_path / "scratch"))
    monkeypatch.setattr(members.bounded_run, "SCRATCH_FOLDERS", ())
    for name, goes in (("scratch/prte.here", True), ("elsewhere/prte.there", False), ("scratch/../prte.up", False)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        with started(str(folder)):
            answer = members.sweep(JOB, wait_s=5.0)
        assert len(answer["killed"]) == 1
        assert folder.exists() != goes


def test_what_a_process_shows_is_read_with_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_READ", 10)
    (tmp_path / "environ").write_bytes(b"x" * 100)
    assert members.read_bytes(str(tmp_path / "environ")) == b"x" * 10
