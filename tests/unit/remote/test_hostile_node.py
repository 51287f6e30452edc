"""A node that answers with a flood, with garbage or never: one sentence, a bound of memory and time, and no PASS."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import facts, host_key, login_probe, network_probe, python, supervised_job, sync
from clusterctl.support.errors import HostFailedError, UnreachableError
from local_jobs import HERE, carrying, spec

pytestmark = pytest.mark.programs

GIB = 1 << 30
# Gathers the facts of one host in a process of its own, whose greatest size is then known in KiB. The kernel's VmHWM is
# that of the program; ru_maxrss is also that of the process which started it.
GATHER = """
import json, re
from clusterctl.model.hosts import Host
from clusterctl.remote import facts
(failure,) = facts.gather([Host("node7", "192.0.2.7")], timeout_s=60).failures.values()
size_kib = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(json.dumps([failure.kind, failure.message, size_kib]))
"""


def ssh_that(folder: Path, script: str) -> str:
    """Put an ``ssh`` that runs a script in front, and return the PATH."""
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:/usr/bin:/bin"


class Saying(supervised_job.JobLogin):
    """A node on which everything that is started runs this script instead."""

    script = ""

    def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
        del remote, connect_timeout_s
        return ["sh", "-c", self.script]


def saying(script: str) -> Saying:
    login = Saying(Host(name="node7", address="192.0.2.7"))
    object.__setattr__(login, "script", script)
    return login


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (f"exec head -c {GIB} /dev/zero", "answered with more than 16 MiB"),
        (f"head -c {GIB} /dev/zero >&2; exit 255", "node7 (192.0.2.7 port 22): ssh failed"),
    ],
)
def test_a_gigabyte_from_a_node_takes_little_memory(tmp_path: Path, script: str, says: str) -> None:
    environment = {**os.environ, "PATH": ssh_that(tmp_path, script)}
    done = subprocess.check_output([sys.executable, "-c", GATHER], env=environment)
    kind, message, size_kib = json.loads(done)
    assert kind == "error"
    assert "node7" in message
    assert says in message
    assert len(message) < 600
    assert size_kib < 300 << 10


@pytest.mark.parametrize("way", ["a host key", "a copy"])
def test_errors_without_end_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    flood = f"head -c {GIB >> 2} /dev/zero | tr '\\0' '\\n' >&2; echo the end >&2; exit 255"
    monkeypatch.setenv("PATH", ssh_that(tmp_path, flood))
    tracemalloc.start()
    try:
        if way == "a host key":
            with pytest.raises(UnreachableError, match="the end"):
                host_key.shown_key(Host("node7", "192.0.2.7"))
        else:
            (tmp_path / "code").mkdir()
            (tmp_path / "code" / "train.py").write_text("")
            with pytest.raises(HostFailedError, match="the end"):
                sync.copy(tmp_path / "code", "/nowhere", [saying(flood)], {})
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_an_answer_of_a_gigabyte_is_cut_off() -> None:
    reply = python.ask(["sh", "-c", f"exec head -c {GIB} /dev/zero"], b"", 60, {"found"})
    assert (reply.answer, reply.timed_out) == (None, False)
    assert "more than 16 MiB" in reply.problem


def test_a_request_larger_than_a_pipe_arrives_beside_a_large_answer() -> None:
    request = b"x" * (1 << 22)
    done = python.run(["cat"], request, 60)
    assert (done.returncode, done.output == request, done.errors) == (0, True, b"")
    assert python.run(["true"], request, 60).returncode == 0, "a reader that goes away is no error"


def test_a_node_that_never_answers_is_given_up() -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        python.run(["sleep", "60"], b"", 0.3)
    assert time.monotonic() - began < 20


def test_a_job_that_prints_without_end_is_lost_and_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_job, "MOST_TEXT", 1 << 20)
    outcome = supervised_job.run(HERE, spec("endless", "yes", "x" * 1000, deadline_s=60))
    assert (outcome.ending, outcome.rc, outcome.problem) == ("lost", None, "its job printed more than 1 MiB")
    assert sum(len(line.text) for line in outcome.lines) <= 1 << 20
    assert carrying("endless") == []


def test_a_line_without_end_is_lost() -> None:
    outcome = supervised_job.run(saying(f"exec head -c {GIB} /dev/zero"), spec("line", "true"))
    assert outcome.ending == "lost"
    assert "more than 16 MiB" in outcome.problem


ENDED = '{"event":"ended","reason":"exited","seconds":1.0,"rc":0}'


@pytest.mark.parametrize(
    "line",
    [
        ENDED.replace('"rc":0', '"rc":0.0'),
        ENDED.replace('"rc":0', '"rc":false'),
        ENDED.replace('"rc":0', '"rc":"0"'),
        ENDED.replace(',"rc":0', ""),
        ENDED.replace("1.0", "NaN"),
        ENDED.replace("1.0", "1e999"),
        ENDED.replace("1.0", "-5"),
        ENDED.replace('"ended"', '["ended"]'),
        "[" * 100_000,
        "9" * 10_000,
        "null",
        '{"event":{}}',
    ],
)
def test_an_end_of_another_form_is_no_end(line: str) -> None:
    answers = supervised_job.SupervisorAnswers(None, None)
    answers.take(line)
    assert answers.ended is None


def test_what_a_supervisor_says_can_be_kept() -> None:
    heard: list[Any] = []
    answers = supervised_job.SupervisorAnswers(heard.append, lambda *given: heard.append(given))
    for line in (
        '{"event":"line","stream":"stdout","at":1.0,"text":"half a pair \\ud800 of \\ud83d\\ude00"}',
        '{"event":"line","stream":"elsewhere","at":1.0,"text":"x"}',
        '{"event":"data","stream":"stdout","data":"not base64"}',
        '{"event":"data","stream":["stdout"],"data":"eA=="}',
        '{"event":"started","argv":"sh","session":3}',
        '{"event":"swept","killed":[3],"left":[]}',
        '{"event":"swept","killed":null,"left":[]}',
    ):
        answers.take(line)
    (line,) = answers.lines
    assert line.text == "half a pair \ufffd of \U0001f600"
    assert heard == [line]
    assert (answers.argv, answers.session, answers.swept) == ((), "", None)


@pytest.mark.parametrize("answer", ['{"killed": 3, "left": []}', '{"killed": [{"pid": 1}], "left": []}'])
def test_a_sweep_of_another_form_is_a_problem(answer: str) -> None:
    (sweep,) = supervised_job.sweep([saying(f"echo '{answer}'")], "job")
    assert (sweep.host, sweep.problem) == ("node7", "its answer is not readable")


def test_a_look_of_another_form_is_a_problem() -> None:
    answer = '{"found": [], "runs": [], "folder": "", "is": true}'
    (look,) = supervised_job.look([saying(f"echo '{answer}'")], ["sh"], {})
    assert (look.host, look.problem) == ("node7", "its answer is not readable")


@pytest.mark.parametrize(
    "lines",
    [
        ['{"event":"ready"}', '{"event":"clock"}'],
        ['{"event":"ready"}', '{"event":"clock","time":"now"}'],
        ['{"event":"ready"}', '{"event":"clock","time":[]}'],
        ['{"event":"ready"}', *['{"event":"clock","time":1.0}'] * 5, '{"event":"logins"}'],
        ['{"event":"ready"}', *['{"event":"clock","time":1.0}'] * 5, '{"event":"logins","mesh":1,"passed":"x"}'],
        ['{"event":"ready"}', *['{"event":"clock","time":NaN}'] * 5],
    ],
)
def test_logins_of_another_form_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    said = "\n".join(lines)
    monkeypatch.setenv("PATH", ssh_that(tmp_path, f"cat <<'END'\n{said}\nEND\nsleep 5"))
    targets = (login_probe.LoginTarget("node8", "192.0.2.8"), login_probe.LoginTarget("node9", "192.0.2.9"))
    done: list[int] = []
    login = login_probe.Login(Host("node7", "192.0.2.7"), targets)
    report = login_probe.gather([login], timeout_s=20, ended=done.append)["node7"]
    assert report.problem == "its answer is not readable"
    assert done == [2], "a node that failed has done its logins, too"


@pytest.mark.parametrize(
    ("phase", "answer"),
    [
        (1, '"ports":{"10.0.0.0/24":"many"}'),
        (1, '"ports":{"10.0.0.0/24":1e6}'),
        (1, '"ports":[1]'),
        (2, '"results":[["10.0.0.0/24","node1"]]'),
        (2, '"results":[["10.0.0.0/24","node1","perfect",""]]'),
        (2, '"results":[[["10.0.0.0/24"],"node1",{},""]]'),
        (2, '"results":3'),
    ],
)
def test_connections_of_another_form_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: int, answer: str
) -> None:
    first = '"ports":{}' if phase > 1 else answer
    script = f'cat <<\'END\'\n{{"fabric":1,{first}}}\n{{"fabric":2,{answer}}}\nEND\nsleep 5'
    monkeypatch.setenv("PATH", ssh_that(tmp_path, script))

    async def problem() -> str:
        limits = network_probe.TrialLimits(5, 20)
        peer = network_probe._Peer(Host("node7", "192.0.2.7"), limits)  # noqa: SLF001 - one node's part of the probe
        await peer.open({})
        await peer.call([])
        if peer._talk is not None:  # noqa: SLF001
            await peer._talk.close()  # noqa: SLF001
        return peer.problem

    assert asyncio.run(problem()) == "its answer is not readable"


def test_invalid_bytes_and_control_characters_of_a_login_are_named_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", ssh_that(tmp_path, "printf '{\"schema_version\"\\377\\033[2J\\n'"))
    failure = facts.gather([Host("node7", "192.0.2.7")]).failures["node7"]
    assert failure.kind == "error"
    assert "node7 (192.0.2.7 port 22) gave no readable record" in failure.message
