"""A job that a death ended leaves a record, and the history tells of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import factory
import pytest
from clusterctl.jobs import suspects
from clusterctl.jobs.watched_run import WatchedNodes, WatchedRun
from clusterctl.model.hosts import Host
from clusterctl.model.memory_kills import LoggedKill, MemoryKills
from clusterctl.model.stall import NodeLook, StallRecord
from clusterctl.remote import rank_look
from clusterctl.state import paths, stalls
from past_runs import record, remember, run

if TYPE_CHECKING:
    from collections.abc import Callable

KILLED = (
    "step 41\nprterun noticed that process rank 1 with PID 815 on node node2 exited on\nsignal 9 (Killed).\nthe end\n"
)
FACT = "node2: / has less than 1 % of its space free (remove files in /)"


class Job:
    """A job of two nodes, of which the kernel of node2 may have killed something."""

    def __init__(self, cluster: str, tell: Callable[[str], None], before: MemoryKills) -> None:
        nodes = {name: factory.provisioned(name, number) for number, name in enumerate(("node1", "node2"), start=1)}
        hosts = [Host(name, f"10.0.0.{number}") for number, name in enumerate(nodes, start=1)]
        watched = WatchedNodes(cluster, hosts, nodes, (), ("node1", "node2"), Path("/nowhere"), {"node2": before})
        self.run = WatchedRun("run-12", watched, 300.0, tell)

    def ends(self, output: str) -> None:
        self.run.through(lambda _stream, _data: None)("stderr", output.encode())
        self.run.died()
        self.run.close()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Callable[..., Job]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(suspects, "facts_of", lambda names, _job: (FACT,) if list(names) == ["node2"] else ())

    def start(now: MemoryKills, before: MemoryKills | None = None) -> Job:
        looks = (NodeLook(host="node2", memory=now),)
        monkeypatch.setattr(rank_look, "looks", lambda *_asked: looks)
        return Job("lab", told.append, before or MemoryKills(all=0, log=()))

    return start


def kept() -> list[StallRecord]:
    return [one for _, one in stalls.newest("lab", 10)]


def test_a_killed_rank_leaves_a_record_with_the_reason_and_the_end_of_the_output(
    job: Callable[..., Job], told: list[str]
) -> None:
    kill = LoggedKill(number=7, pid=815, uid=1000, name="train.py")
    job(MemoryKills(all=1, log=(kill,), uid=1000)).ends(KILLED)
    (found,) = kept()
    assert (found.verdict.cause, found.verdict.hosts, found.verdict.ranks) == ("killed rank", ("node2",), (1,))
    assert [(one.host, one.count, one.tie, one.log) for one in found.kills] == [("node2", 1, "log", (kill,))]
    assert (found.facts, found.output[0], found.output[-1]) == ((FACT,), "step 41", "the end")
    (path,) = paths.stalls_dir("lab").iterdir()
    assert told == [
        (
            "node2 rank 1 was ended by SIGKILL: the kernel has killed 1 process of its control group for lack of memory"
            f"; {FACT}. To run without it: --exclude node2. Its record: {path}."
        )
    ]


def test_a_kill_that_the_launcher_does_not_tell_of_leaves_one_too(job: Callable[..., Job], told: list[str]) -> None:
    job(MemoryKills(all=3, own=3, uid=1000), MemoryKills(all=0, own=0)).ends("Segmentation of the mesh failed\n")
    (found,) = kept()
    assert (found.verdict.cause, found.verdict.hosts) == ("lack of memory", ("node2",))
    assert [(one.host, one.count, one.tie) for one in found.kills] == [("node2", 3, "group")]
    assert told[0].startswith("node2 lost 3 processes of the job's user to the kernel")
    assert found.facts == (FACT,)
    assert f"; {FACT}. To run without it: " in told[0]


def test_a_program_that_fails_by_itself_leaves_none(job: Callable[..., Job], told: list[str]) -> None:
    job(MemoryKills(all=0)).ends("ValueError: the batch is empty\n")
    assert (kept(), told) == ([], [])


def test_a_record_that_cannot_be_kept_is_told(
    job: Callable[..., Job], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stalls, "keep", full)
    job(MemoryKills(all=0)).ends(KILLED)
    assert told[0].startswith("What was seen is not kept: ")
    assert told[1].endswith("--exclude node2.")


@pytest.mark.programs
def test_the_history_shows_stopped_jobs_with_their_records(
    job: Callable[..., Job], tmp_path: Path, told: list[str]
) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1\nnode2\n")
    remember(inventory, record(1))
    cluster = paths.cluster_id(inventory)
    job(MemoryKills(all=0)).ends(KILLED)
    (found,) = kept()
    path = stalls.keep(cluster, found)
    (paths.stalls_dir(cluster) / "20200101T000000Z-run-1.json").write_text("{")
    done = run("history", inventory)
    assert f"node2 rank 1 was ended by SIGKILL; who sent it is not known. Its record: {path}" in done.stderr
    (listed,) = json.loads(run("history", inventory, "--format", "json").stdout)["stopped_jobs"]
    assert (listed["job"], listed["record"]) == ("run-12", str(path))
    assert told
