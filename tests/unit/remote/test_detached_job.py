"""Detached jobs with their real keeper on this machine; ssh alone is left out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from clusterctl.remote import detached_job, supervised_job
from clusterctl.remote.detached_job import DetachedJob
from local_jobs import HERE, STUBBORN, SUPERVISOR, carrying
from local_jobs import spec as any_spec

pytestmark = pytest.mark.programs

ABOUT = {"command": ["a.out", "it's"], "nodes": ["node1"], "prefix": "none", "hosts": []}
RANK = ("env", "OMPI_COMM_WORLD_RANK=0")


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the jobs, which end with the test."""
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path / ".local/state/clusterctl/jobs"
    for job in listed():
        detached_job.stop(HERE, job.job)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module."""
    monkeypatch.syspath_prepend(str(SUPERVISOR.parent))
    import detached_job as found  # type: ignore[import-not-found]  # noqa: PLC0415 - it lies on no path else

    return found  # type: ignore[no-any-return]


def listed() -> tuple[DetachedJob, ...]:
    answer = detached_job.listed([HERE])[HERE.host.name]
    assert not answer.problem
    return answer.jobs


def start(name: str, *argv: str, **more: object) -> DetachedJob:
    answer = detached_job.start(HERE, any_spec(name, *argv, **more), [], ABOUT)  # type: ignore[arg-type]
    assert answer.job is not None, answer.problem
    return answer.job


def log(job: str, **how: object) -> bytes:
    found = bytearray()
    assert detached_job.show_log(HERE, job, found.extend, **how) == ""  # type: ignore[arg-type]
    return bytes(found)


def until_ended(job: str) -> DetachedJob:
    end = time.monotonic() + 30
    while (found := next(one for one in listed() if one.job == job)).runs:
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "NODE_RANK"])
def test_a_job_is_up_with_its_first_rank_or_process_of_a_node(variable: str) -> None:
    answer = detached_job.start(HERE, any_spec("up", "env", f"{variable}=0", "sleep", "600"), [], ABOUT)
    assert answer.up


def test_a_job_goes_on_and_is_stopped(jobs: Path) -> None:
    job = start("on", *RANK, *STUBBORN)
    assert (job.word, job.code, job.node, job.command) == ("running", None, socket.gethostname(), ("a.out", "it's"))
    assert jobs.stat().st_mode & 0o777 == 0o700
    assert log(job.job) == b"up\n"
    answer = detached_job.stop(HERE, job.job)
    assert answer.job is not None
    assert (answer.job.word, answer.job.remains) == ("stopped", ())
    assert carrying("on") == []


def test_the_log_and_the_code_stay_when_it_has_ended() -> None:
    job = start("code", "sh", "-c", "printf 'one\\ntwo\\n\\377\\033[2J'; echo err >&2; exit 9")
    assert (job.word, job.code) == ("ended", 9)
    assert sorted(log(job.job)) == sorted(b"one\ntwo\n\xff\x1b[2Jerr\n")
    assert log(job.job, follow=True) == log(job.job)
    assert log(job.job, lines=1).count(b"\n") == 1
    assert log(job.job, lines=0) == b""
    assert log(job.job, lines=99) == log(job.job)


def test_a_job_is_followed_to_its_end() -> None:
    job = start("follow", *RANK, "sh", "-c", "for n in 1 2 3; do echo $n; sleep 0.4; done")
    assert job.runs
    assert log(job.job, follow=True) == b"1\n2\n3\n"
    assert until_ended(job.job).code == 0


def test_a_deadline_holds_without_a_controller() -> None:
    job = start("late", *RANK, "sleep", "60", deadline_s=1.0)
    assert (until_ended(job.job).word, until_ended(job.job).code) == ("timed out", 124)


def test_the_user_s_umask_is_the_job_s(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        start("umask", "touch", str(tmp_path / "made"))
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("victim", ["keeper", "supervisor"])
def test_a_job_ends_with_its_keeper_and_with_its_supervisor(jobs: Path, victim: str) -> None:
    job = start(victim, *RANK, *STUBBORN)
    pid = json.loads((jobs / job.job / "state.json").read_text())["pid"]
    if victim == "supervisor":
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while carrying(victim):
        assert time.monotonic() < end
        time.sleep(0.1)
    found = until_ended(job.job)
    assert (found.word, found.code) == ("lost", None)


def test_what_does_not_start_says_why(jobs: Path) -> None:
    job = start("nothing", "/no/such/program")
    assert (job.word, "No such file" in job.problem) == ("not started", True)
    jobs.chmod(0o755)
    start("modes", "true")
    assert jobs.stat().st_mode & 0o777 == 0o700, "a folder that others may read is closed again"
    answer = detached_job.start(HERE, any_spec("nothing", "true"), [], ABOUT)
    assert "File exists" in answer.problem


def test_a_controller_that_goes_before_the_job_is_up_leaves_none() -> None:
    argv = HERE.command(HERE.program("detached_job.py", "--start"))
    asked = {"about": ABOUT, "request": supervised_job.request(any_spec("alone", *STUBBORN), [], raw=True)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.close()
        end = time.monotonic() + 20
        while not carrying("alone"):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.stdout.close()
        assert process.wait(20) == 1
    while carrying("alone"):
        assert time.monotonic() < end + 20
        time.sleep(0.1)
    assert until_ended(listed()[0].job).word == "stopped"


def test_a_job_that_cannot_be_listed_is_not_started(program: ModuleType, tmp_path: Path) -> None:
    (program.made_place() / "unit-unlisted" / "state.new").mkdir(parents=True)
    made = tmp_path / "made"
    request = {"job": "unit-unlisted", "argv": ["touch", str(made)], "deadline_s": None}
    program.Keeper("unit-unlisted", {"about": ABOUT, "request": request}).run()
    assert not made.exists()


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".local/state/clusterctl").mkdir(parents=True)
    (tmp_path / ".local/state/clusterctl/jobs").symlink_to("/tmp")  # noqa: S108 - nothing is written there
    answer = detached_job.start(HERE, any_spec("link", "true"), [], ABOUT)
    assert "is not a folder of this user" in answer.problem


@pytest.mark.parametrize(
    "written",
    ["", "[]", "{", '{"job": "unit-bad-state", "node": "HERE", "since": NaN}', "[" * 100_000, '{"job": "unit-other1"}'],
)
def test_a_damaged_state_hides_no_other_job(jobs: Path, written: str) -> None:
    job = start("sound", "true")
    (jobs / "unit-bad-state").mkdir()
    (jobs / "unit-bad-state" / "state.json").write_text(written.replace("HERE", socket.gethostname()))
    assert [one.job for one in listed()] == [job.job]


def test_a_state_behind_a_link_or_pipe_is_not_read(jobs: Path, tmp_path: Path) -> None:
    job = start("first", "true")
    state = (jobs / job.job / "state.json").read_text().replace(job.job, "unit-linked")
    (tmp_path / "elsewhere").write_text(state)
    for name in ("unit-linked", "unit-piped0"):
        (jobs / name).mkdir()
    (jobs / "unit-linked" / "state.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(jobs / "unit-piped0" / "state.json")
    assert [one.job for one in listed()] == [job.job]


def test_a_record_of_another_form_is_a_problem_of_its_node(jobs: Path) -> None:
    job = start("form", "true")
    place = jobs / job.job / "state.json"
    for change in ({"rc": 4000}, {"nodes": ["a b"]}, {"command": "rm"}, {"rc": "0"}, {"rc": True}):
        place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
        answer = detached_job.listed([HERE])[HERE.host.name]
        assert (answer.jobs, answer.problem) == ((), "unreadable records of jobs: 1"), change
        place.write_text(
            json.dumps({**json.loads(place.read_text()), "rc": 0, "nodes": [], "command": [], "state": "ended"})
        )


def test_a_job_of_another_node_with_the_same_home_is_not_listed(jobs: Path) -> None:
    job = start("shared", "true")
    place = jobs / job.job / "state.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "node": "elsewhere"}))
    assert listed() == ()


def test_the_log_keeps_its_end(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SEGMENT", 1000)
    folder = program.made_place() / "unit-capped"
    folder.mkdir()
    kept = program.Log(folder)
    lines = [b"line %d\n" % number for number in range(1000)]
    for line in lines:
        kept.write(line)
    parts = program.segments("unit-capped")
    assert len(parts) == 2
    assert sum(part.size for part in parts) < 2200
    whole = b"".join(lines)
    at, data = program.piece("unit-capped", 0)
    assert at == parts[0].begin > 0
    assert whole[at:].startswith(data)
    end = len(whole)
    assert whole[program.last_lines("unit-capped", 3, end) :] == b"".join(lines[-3:])
    assert whole[program.last_lines("unit-capped", 150, end) :] == b"".join(lines[-150:])
    assert program.last_lines("unit-capped", 900, end) == parts[0].begin
    grew = end - len(b"".join(lines[-40:]))  # where it ended before these came
    assert whole[program.last_lines("unit-capped", 3, grew) : grew] == b"".join(lines[-43:-40])


def test_a_full_disk_ends_no_job(program: ModuleType) -> None:
    folder = program.made_place() / "unit-fulled"
    folder.mkdir()
    kept = program.Log(folder)
    kept.write(b"first\n")
    os.close(kept.target)
    kept.target = os.open("/dev/full", os.O_WRONLY)
    kept.write(b"second\n")
    assert (kept.lost, kept.problem, kept.tail) == (7, "No space left on device", b"first\nsecond\n")


def test_old_jobs_are_forgotten_and_running_ones_stay(jobs: Path, program: ModuleType) -> None:
    running = start("stays", *RANK, "sleep", "60")
    for number in range(program.KEPT + 3):
        folder = jobs / f"unit-old-{number:04}"
        folder.mkdir()
        state = {"job": folder.name, "node": socket.gethostname(), "since": number, "state": "ended", "command": []}
        (folder / "state.json").write_text(json.dumps(state))
    newest = start("newest", "true")
    names = [one.job for one in listed()]
    assert names[:2] == [newest.job, running.job]
    assert len(names) == program.KEPT + 1
    assert not (jobs / "unit-old-0000").exists()


def test_a_node_whose_systemd_ends_sessions_is_refused(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busctl = tmp_path / "busctl"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(
        program.job_members, "read_bytes", lambda _path: b"0::/user.slice/user-1.slice/session-4.scope\n"
    )
    for told, refused in (
        ('b true\nas 1 "root"\nas 0', os.getuid() != 0),
        ("b true\nas 0\nas 0", True),
        ('b true\nas 0\nas 1 "somebody"', False),
        ("b false\nas 0\nas 0", False),
        ("odd", False),
    ):
        busctl.write_text(f"#!{sys.executable}\nprint('''{told}''')\n")
        busctl.chmod(0o755)
        if refused:
            with pytest.raises(ValueError, match="KillUserProcesses=no"):
                program.refuse_logout()
        else:
            program.refuse_logout()


def test_a_node_that_is_gone_is_a_problem() -> None:
    from local_jobs import GONE  # noqa: PLC0415

    assert "No route to host" in detached_job.listed([GONE])[GONE.host.name].problem
    assert detached_job.stop(GONE, "unit-nowhere").silent
    assert "No route to host" in detached_job.show_log(GONE, "unit-nowhere", lambda _data: None)
    assert supervised_job.request(any_spec("x", "true"), [], raw=True)["raw"] is True
