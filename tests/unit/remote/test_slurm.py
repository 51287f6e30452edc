"""An allocation of Slurm is waited for under a deadline, and never outlasts the process that holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import waiting
from clusterctl.remote.slurm import Allocation, Slurm
from clusterctl.remote.slurm_text import SlurmRequest
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError
from stand_in_slurm import StandIn
from waiting import eventually

pytestmark = pytest.mark.programs

REQUEST = SlurmRequest(nodes=2, time_s=90, partition="main", account="hpc", nodelist=("node1", "node2"))
_HOLD = """
import sys
from clusterctl.remote.slurm import Allocation, Slurm
from clusterctl.remote.slurm_text import SlurmRequest
with Allocation(Slurm(), SlurmRequest(nodes=2, time_s=90), 60.0) as allocation:
    if sys.argv[1] == "granted":
        allocation.wait()
    print("held", flush=True)
    sys.stdin.read()
"""


def test_an_allocation_is_granted_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "granted").use(monkeypatch)
    with Allocation(Slurm(), REQUEST, 20.0) as allocation:
        grant = allocation.wait()
        assert (grant.job, grant.names, grant.cpus) == (42, ("node1", "node2"), (2, 2))
        assert allocation.ended(look=True) == ""
        assert "scancel 42" not in slurm.read("log")
    assert "scancel 42" in slurm.read("log")
    assert {"released", "cancelled"} & set(slurm.read("log"))
    options = slurm.read("options")
    assert {"--nodes=2", "--partition=main", "--account=hpc", "--nodelist=node1,node2", "--time=2"} <= set(options)
    assert "--exclusive" in options


def test_an_error_inside_gives_it_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "granted").use(monkeypatch)

    def interrupted() -> None:
        with Allocation(Slurm(), REQUEST, 20.0) as allocation:
            allocation.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "scancel 42" in slurm.read("log")
    assert waiting.ends(int(slurm.read("pid")[0]))


def test_one_that_never_starts_is_cancelled_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "pending").use(monkeypatch)
    monkeypatch.setattr("clusterctl.remote.slurm._LOOK_EVERY_S", 0.3)
    told: list[str] = []
    began = time.monotonic()
    with (
        pytest.raises(ValidationCouldNotRunError) as refused,
        Allocation(Slurm(), REQUEST, 1.5, told.append) as allocation,
    ):
        allocation.wait()
    assert time.monotonic() - began < 10
    assert refused.value.exit_code is ExitCode.VALIDATION_ERROR
    for word in ("42", "Resources", "--start-within", "cancelled"):
        assert word in str(refused.value)
    assert {"cancelled", "scancel 42"} <= set(slurm.read("log"))
    assert any("42 waits" in words and "Resources" in words for words in told)


def test_a_job_that_can_not_start_is_cancelled_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "pending").use(monkeypatch)
    slurm.say("state", "PENDING||AccountNotAllowed")
    with pytest.raises(ValidationCouldNotRunError) as refused, Allocation(Slurm(), REQUEST, 60.0) as allocation:
        allocation.wait()
    for word in ("account 'hpc'", "partition 'main'", "AccountNotAllowed", "-A", "cancelled"):
        assert word in str(refused.value)
    assert {"cancelled", "scancel 42"} <= set(slurm.read("log"))


def test_it_is_given_back_when_the_steps_in_it_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "granted").use(monkeypatch)
    slurm.say("steps", "42.extern\n42.0\n")
    with Allocation(Slurm(), REQUEST, 20.0) as allocation:
        allocation.wait()
        ending = threading.Timer(1.0, slurm.say, ("steps", "42.extern\n"))
        ending.start()
        began = time.monotonic()
    assert 0.9 < time.monotonic() - began < 8
    assert {"released", "cancelled"} & set(slurm.read("log"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("scancel: error: Kill job error on job id 42: Invalid job id specified", ()),
        ("scancel: error: Unable to contact slurm controller", ("job 42 may still be", "scancel 42", "scontrol ping")),
    ],
)
def test_a_job_that_can_not_be_cancelled_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, words: tuple[str, ...]
) -> None:
    slurm = StandIn(tmp_path, "granted").use(monkeypatch)
    slurm.say("refusal", said)
    with Allocation(Slurm(), REQUEST, 20.0) as allocation:
        allocation.wait()
        assert allocation.left == ""
    assert bool(allocation.left) is bool(words)
    for word in words:
        assert word in allocation.left


@pytest.mark.parametrize(
    ("mode", "words"),
    [("refused", ("account 'hpc'", "-A")), ("down", ("controller does not answer", "scontrol ping"))],
)
def test_a_refusal_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, words: tuple[str, ...]) -> None:
    StandIn(tmp_path, mode).use(monkeypatch)
    with (
        pytest.raises(ValidationCouldNotRunError) as refused,
        Allocation(Slurm(), REQUEST, 20.0) as allocation,
    ):
        allocation.wait()
    for word in words:
        assert word in str(refused.value)


def test_the_end_by_the_time_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "timeout").use(monkeypatch)
    with Allocation(Slurm(), REQUEST, 20.0) as allocation:
        allocation.wait()
        assert allocation.ended(look=True) == ""
        slurm.say("late", "")
        assert eventually(lambda: allocation.ended(look=False) != "")
        words = allocation.ended(look=False)
    for word in ("42", "time limit of 2 min", "--time"):
        assert word in words


def test_the_end_is_told_when_the_job_is_no_longer_completing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "cancelled").use(monkeypatch)
    with Allocation(Slurm(), REQUEST, 20.0) as allocation:
        allocation.wait()
        slurm.say("late", "")
        assert eventually(lambda: slurm.read("state")[0].startswith("COMPLETING"))
        ending = threading.Timer(1.0, slurm.say, ("state", "CANCELLED|node[1-2]|None"))
        ending.start()
        assert "42 is gone: it was cancelled" in allocation.ended(look=True)


@pytest.mark.parametrize("mode", ["granted", "pending"])
def test_it_ends_with_a_process_that_is_killed(tmp_path: Path, mode: str) -> None:
    slurm = StandIn(tmp_path, mode)
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PATH": slurm.path, "STAND_IN": str(slurm.folder)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert eventually(lambda: bool(slurm.read("options")))
        (pid,) = slurm.read("pid")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert waiting.ends(int(pid))
    assert {"released", "cancelled"} & set(slurm.read("log"))


def test_nodes_come_from_the_named_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn(tmp_path, "granted").use(monkeypatch)
    slurm = Slurm()
    assert [node.name for node in slurm.nodes()] == ["node1", "node2"]
    assert [node.gpus for node in slurm.nodes("gpu")] == [8]
    assert slurm.cluster_name() == "sandbox"
    with pytest.raises(ValidationCouldNotRunError, match=r"partition 'other' has no node.*-p"):
        slurm.nodes("other")


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValidationCouldNotRunError, match=r"This machine has no sinfo.*--submit-host"):
        Slurm().nodes()
    with (
        pytest.raises(ValidationCouldNotRunError, match="This machine has no salloc"),
        Allocation(Slurm(), REQUEST, 20.0) as allocation,
    ):
        allocation.wait()
