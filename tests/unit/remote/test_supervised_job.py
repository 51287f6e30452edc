"""The supervisor and its controller with real processes; ssh alone is left out, its pipe is the same."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from clusterctl.model.job_outcome import OutputLine
from clusterctl.remote import supervised_job
from local_jobs import GONE, HERE, MUTE, STUBBORN, SUPERVISOR, carrying, spec

pytestmark = pytest.mark.programs


def test_a_job_that_ends_by_itself() -> None:
    heard: list[OutputLine] = []
    outcome = supervised_job.run(HERE, spec("plain", "sh", "-c", "echo out; echo err >&2"), on_line=heard.append)
    assert (outcome.ending, outcome.rc, outcome.sweeps) == ("exited", 0, ())
    assert {(line.stream, line.text) for line in outcome.lines} == {("stdout", "out"), ("stderr", "err")}
    assert tuple(heard) == outcome.lines


def test_the_user_s_python_does_not_reach_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A PYTHONHOME or a json.py in PYTHONPATH of a session would end our program; the job keeps both."""
    tmp_path.joinpath("json.py").write_text("raise SystemExit('not json')\n")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = supervised_job.run(HERE, spec("python", "sh", "-c", "echo $PYTHONHOME $PYTHONPATH"))
    assert outcome.rc == 0
    assert [line.text for line in outcome.lines] == [f"/nowhere {tmp_path}"]


def test_the_end_of_a_job_is_not_waited_for_in_turns() -> None:
    program = "import job_supervisor as ours; ours.TURN_S = 60; ours.supervise()"
    quiet = "exec >&- 2>&-; sleep 0.02"  # its output ends a moment before it does, as mpirun's
    request = {"job": f"unit-turns-{os.getpid()}", "argv": ["sh", "-c", quiet], "deadline_s": None}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=SUPERVISOR.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        ended = json.loads(process.stdout.readlines()[-1])
    assert ended["reason"] == "exited"
    assert ended["seconds"] < 30


def test_the_deadline_ends_what_ignores_term() -> None:
    outcome = supervised_job.run(HERE, spec("deadline", *STUBBORN, deadline_s=1))
    assert outcome.ending == "deadline"
    assert 1 <= outcome.ending_s < 2
    assert outcome.seconds < 10
    assert carrying("deadline") == []


def test_an_interrupt_ends_it_and_goes_on() -> None:
    def interrupt(_line: OutputLine) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervised_job.run(HERE, spec("interrupt", *STUBBORN), on_line=interrupt)
    assert carrying("interrupt") == []


def test_a_supervisor_told_to_end_ends_its_job() -> None:
    process = subprocess.Popen([sys.executable, str(SUPERVISOR)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    name = f"unit-term-{os.getpid()}"
    process.stdin.write(json.dumps({"job": name, "argv": STUBBORN, "deadline_s": 60}).encode() + b"\n")
    process.stdin.flush()
    process.stdout.readline()
    end = time.monotonic() + 15
    while not carrying("term") and time.monotonic() < end:  # the kernel shows the variables a moment after the exec
        time.sleep(0.05)
    assert carrying("term")
    process.send_signal(signal.SIGTERM)
    events = [json.loads(line) for line in process.stdout]
    assert process.wait(20) == 0
    assert events[-1]["reason"] == f"signal {int(signal.SIGTERM)}"
    assert carrying("term") == []


def test_a_controller_that_does_not_read_cannot_stop_the_deadline() -> None:
    process = subprocess.Popen([sys.executable, str(SUPERVISOR)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    name = f"unit-flood-{os.getpid()}"
    request = {"job": name, "argv": ["sh", "-c", "exec yes clusterctl"], "deadline_s": 1}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    end = time.monotonic() + 15
    time.sleep(1.5)
    while carrying("flood") and time.monotonic() < end:
        time.sleep(0.1)
    assert carrying("flood") == []
    process.kill()
    process.communicate()


def test_a_line_of_any_length_and_of_any_bytes_arrives() -> None:
    program = "import sys; sys.stdout.buffer.write(b'x' * 200000 + b'\\n\\xff\\x00end')"
    outcome = supervised_job.run(HERE, spec("bytes", sys.executable, "-c", program))
    assert "".join(line.text for line in outcome.lines) == "x" * 200000 + "\ufffd\0end"


def test_what_cannot_be_started_is_said() -> None:
    outcome = supervised_job.run(HERE, spec("missing", "/no/such/mpirun"))
    assert outcome.ending == "not_started"
    assert "/no/such/mpirun" in outcome.problem


def test_a_node_that_is_gone_is_lost_with_ssh_s_own_words() -> None:
    outcome = supervised_job.run(GONE, spec("gone", "true"))
    assert (outcome.ending, outcome.problem) == ("lost", "ssh: connect to host node9 port 22: No route to host")
    assert [(sweep.host, sweep.problem) for sweep in outcome.sweeps] == [("node9", outcome.problem)]


def test_a_node_that_stops_answering_is_lost_after_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_job, "_END_WAIT_S", 0.1)
    outcome = supervised_job.run(MUTE, spec("mute", "true", deadline_s=0.9))
    assert (outcome.ending, outcome.problem) == ("lost", "it did not answer within 1 s")


def test_files_are_private_and_gone_afterwards() -> None:
    outcome = supervised_job.run(
        HERE,
        spec(
            "files", "sh", "-c", 'stat -c %a "$1"; cat "$1/hostfile"', "sh", "{work_dir}", files={"hostfile": "node1\n"}
        ),
    )
    assert [line.text for line in outcome.lines] == ["700", "node1"]
    assert not Path(outcome.argv[-1]).exists()


def test_a_sweep_kills_its_own_job_alone() -> None:
    others = [
        subprocess.Popen(["sleep", "300"], env={**os.environ, "CLUSTERCTL_JOB": f"unit-{name}-{os.getpid()}"})
        for name in ("mine", "theirs")
    ]
    # A daemon of Open MPI carries the id on its command line, in two tokens that stand together.
    daemon = subprocess.Popen(["sh", "-c", "sleep 300; true", "--mca", "clusterctl_job", f"unit-mine-{os.getpid()}"])
    reapers = [threading.Thread(target=process.wait) for process in (others[0], daemon)]
    for reaper in reapers:
        reaper.start()
    try:
        (swept,) = supervised_job.sweep([HERE], f"unit-mine-{os.getpid()}")
        assert sorted(words.split()[0] for words in swept.killed) == ["sh", "sleep"]
        assert others[0].returncode == daemon.returncode == -signal.SIGKILL
        assert others[1].poll() is None
    finally:
        for process in (*others, daemon):
            process.kill()
        for reaper in reapers:
            reaper.join()
        others[1].wait()


def test_the_folder_of_a_daemon_that_is_killed_while_it_cleans_up_is_swept_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that ends removes the file that names its mpirun first, and its folder last."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    job = f"unit-prted-{os.getpid()}"
    daemon = subprocess.Popen(["sh", "-c", "sleep 300; true", "--prtemca", "clusterctl_job", job])
    reaper = threading.Thread(target=daemon.wait)
    reaper.start()
    half_removed = tmp_path / f"prted.node1.{daemon.pid}.{os.getuid()}"
    of_another_job = tmp_path / f"prted.node1.1{daemon.pid}.{os.getuid()}"
    try:
        for folder in (half_removed, of_another_job):
            (folder / "1").mkdir(parents=True)
        (swept,) = supervised_job.sweep([HERE], job)
        assert [words.split()[0] for words in swept.killed] == ["sh"]
        assert [folder.exists() for folder in (half_removed, of_another_job)] == [False, True]
    finally:
        daemon.kill()
        reaper.join()


def test_shared_memory_that_nobody_has_mapped_is_swept_and_no_other() -> None:
    places = [Path(f"/dev/shm/sm_segment.unit-{name}.{os.getpid()}") for name in ("orphan", "mapped")]  # noqa: S108
    for place in places:
        place.write_bytes(bytes(mmap.PAGESIZE))
    try:
        with places[1].open("r+b") as stream, mmap.mmap(stream.fileno(), 0):
            supervised_job.sweep([HERE], f"unit-none-{os.getpid()}")
            assert [place.exists() for place in places] == [False, True]
    finally:
        for place in places:
            place.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "request_line",
    [
        b"",
        b"no json\n",
        b'{"job": "x", "argv": ["true"], "deadline_s": 1}\n',
        b'{"job": "unit-bad-1", "argv": [], "deadline_s": 1}\n',
        b'{"job": "unit-bad-1", "argv": ["true"], "deadline_s": -1}\n',
        b'{"job": "unit-bad-1", "argv": ["true"], "deadline_s": 1, "files": {"../x": ""}}\n',
        b'{"job": "unit-bad-1", "argv": ["true"], "deadline_s": 1, "peers": [{"name": "-oX=x", "argv": []}]}\n',
    ],
)
def test_a_bad_request_is_refused(request_line: bytes) -> None:
    done = subprocess.run([sys.executable, str(SUPERVISOR)], input=request_line, capture_output=True, check=False)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["reason"]) == (2, "bad_request")
    assert answer["problem"]


RANKS = """
import sys, time
sys.path.insert(0, sys.argv[1])
import rank_program

def where_it_hangs():
    time.sleep(300)

arguments = rank_program.parser("A rank.", ["stuck"]).parse_args(["--check", "stuck"])
rank_program.run(arguments, lambda rank: where_it_hangs())
"""


def test_the_stacks_of_stuck_ranks_are_taken_before_they_are_ended() -> None:
    environment = {"OMPI_COMM_WORLD_RANK": "3"}
    command = (sys.executable, "-c", RANKS, str(SUPERVISOR.parent))
    outcome = supervised_job.run(
        HERE, spec("stacks", *command, deadline_s=2, stacks=True, environment=environment), peers=[GONE]
    )
    assert (outcome.ending, carrying("stacks")) == ("deadline", [])
    assert 2 <= outcome.ending_s < 3
    assert outcome.seconds < 2 + 6 + 4
    [stack] = outcome.stacks  # of the process that works, not of the one that watches over it
    assert (stack.host, stack.rank) == ("node1", 3)
    assert "sleeping" in stack.text
    assert "in where_it_hangs" in stack.text
    assert stack.tool in {"faulthandler", "gdb", "py-spy"}


def test_an_interrupt_does_not_wait_for_stacks() -> None:
    process = subprocess.Popen([sys.executable, str(SUPERVISOR)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"job": f"unit-wait-{os.getpid()}", "argv": ["sleep", "300"], "deadline_s": 0.5, "stacks": True}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    for line in process.stdout:
        if b'"ending"' in line:
            break
    began = time.monotonic()
    process.stdin.close()
    ended = [json.loads(line) for line in process.stdout][-1]
    assert ended["reason"] == "stdin_closed"
    assert time.monotonic() - began < 3
    assert process.wait(10) == 0
    process.stdout.close()


def test_nobody_takes_stacks_where_nobody_asked() -> None:
    outcome = supervised_job.run(HERE, spec("quiet", "sleep", "300", deadline_s=1))
    assert (outcome.ending, outcome.stacks) == ("deadline", ())
    assert outcome.seconds < 3
