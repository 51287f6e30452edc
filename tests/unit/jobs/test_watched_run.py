"""A job that a death ended leaves a record, and the history tells of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.jobs import suspects
from clusterctl.jobs.watched_run import WatchedNodes, WatchedRun
from clusterctl.model.hosts import Host
from clusterctl.model.job_outcome import LoggedKill, MemoryKills, StallRecord
from clusterctl.state import paths, runs
from local_jobs import telling
from past_runs import record, remember, run

KILLED = (
    "step 41\nprterun noticed that process rank 1 with PID 815 on node node2 exited on\nsignal 9 (Killed).\nthe end\n"
)
FACT = "node2: / has less than 1 % of its space free (remove files in /)"


class Job:
    """A job of two nodes, of which the kernel of node2 may have killed something."""

    def __init__(
        self,
        cluster: str,
        tell: Callable[[str], None],
        before: MemoryKills,
        now: MemoryKills,
        silent: int,
        speakers: Sequence[str] | None = None,
    ) -> None:
        nodes = {name: factory.provisioned(name, number) for number, name in enumerate(("node1", "node2"), start=1)}
        hosts = [Host(name, f"10.0.0.{number}") for number, name in enumerate(nodes, start=1)]
        logins = (telling("node2", now, silent=silent),)
        watched = WatchedNodes(cluster, hosts, nodes, logins, ("node1", "node2"), Path("/nowhere"), {"node2": before})
        self.run = WatchedRun("run-12", replace(watched, speakers=speakers), 300.0, tell, ends=speakers is not None)

    def ends(self, output: str, *, by_itself: bool = True) -> None:
        self.run.through(lambda _stream, _data: None)("stderr", output.encode())
        self.run.died(by_itself=by_itself)
        self.run.close()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Callable[..., Job]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(suspects, "facts_of", lambda names, _job: (FACT,) if list(names) == ["node2"] else ())

    def start(
        now: MemoryKills, before: MemoryKills | None = None, silent: int = 0, speakers: Sequence[str] | None = None
    ) -> Job:
        return Job("lab", told.append, before or MemoryKills(all=0, log=()), now, silent, speakers)

    return start


def kept() -> list[StallRecord]:
    return [one for _, one in runs.newest_stalls("lab", 10)]


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


EXITED = """
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-node1-1382@1,1]
   Exit code:    3
"""
PEER = "  Local host: node{}\n  Local PID:  17467\n  Peer host:  node{}\n"


def test_a_rank_that_left_with_a_code_is_named_where_others_lost_it_first(
    job: Callable[..., Job], told: list[str]
) -> None:
    job(MemoryKills(all=0)).ends(PEER.format(1, 2) + EXITED)
    (found,) = kept()
    assert (found.verdict.cause, found.verdict.hosts, found.verdict.ranks) == ("lost rank", ("node2",), (1,))
    assert told[0].startswith("node2 rank 1 ended with exit code 3, and ranks of other nodes lost it; ")


LEFT = """
prterun has exited due to process rank 1 with PID 29565 on node node2 exiting
improperly. There are three reasons this could occur:
"""
SOCKET_CLOSED = """
[node1:00000] *** An error occurred in Socket closed
[node1:00000] *** reported by process [314769409,0]
[node1:00000] *** on a NULL communicator
[node1:00000] *** Unknown error
[node1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[node1:00000] ***    and MPI will try to terminate your MPI job as well)
"""
RULE = "-" * 60
DAEMON_KILLED = f"""{RULE}
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries. In some cases, the daemon was
able to execute, but was unable to complete a TCP connection
back to prterun:

  Local host:    node1
  Remote host:   10.0.0.2
  Daemon exit status: 137

{RULE}
"""
DAEMON_LOST = f"""{RULE}
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-node1-3514@0,0] on node node1
  Remote daemon: [prterun-node1-3514@0,5] on node node2

{RULE}
"""


@pytest.mark.parametrize(
    ("output", "cause", "words"),
    [
        (
            LEFT,
            "lost rank",
            "node2 rank 1 left without MPI_Finalize, as exit() and os._exit() do, and mpirun ended the",
        ),
        (SOCKET_CLOSED + LEFT, "lost rank", "node2 rank 1 left without MPI_Finalize"),
        (SOCKET_CLOSED + EXITED, "lost rank", "node2 rank 1 ended with exit code 3, and ranks of other nodes lost it"),
        (SOCKET_CLOSED, "lost rank", "Ranks of other nodes lost a rank on node2, and one of them aborted"),
        (
            DAEMON_KILLED,
            "launcher",
            "node2: mpirun's daemon there ended with exit status 137; look at the node's kernel log",
        ),
        (
            DAEMON_KILLED.replace("137", "255"),
            "launcher",
            "node2: mpirun's daemon there ended with exit status 255; look at the node's kernel log",
        ),
        (DAEMON_LOST, "launcher", "node2: mpirun lost the daemon on this node; look at the node's kernel log and at "),
    ],
)
def test_what_the_launcher_says_of_a_node_names_it(
    job: Callable[..., Job], told: list[str], output: str, cause: str, words: str
) -> None:
    job(MemoryKills(all=0)).ends(f"step 41\n{output}")
    (found,) = kept()
    assert (found.verdict.cause, found.verdict.hosts) == (cause, ("node2",))
    assert told[0].startswith(words)


def tagged(output: str, rank: int) -> str:
    return "".join(f"[1,{rank}]<stderr>: {line}\n" for line in output.splitlines())


MIXED = "[1,1]<stderr>: half a line" + tagged(KILLED.replace("\n", " "), 0)  # rank 1 has not ended its line


@pytest.mark.parametrize(
    ("output", "out"),
    [
        (KILLED, ("node2",)),
        (DAEMON_KILLED, ("node2",)),
        (tagged(KILLED, 0), ()),
        (tagged(LEFT, 0), ()),
        (tagged(DAEMON_KILLED, 0), ()),
        (tagged(PEER.format(1, 2), 0) + EXITED, ("node2",)),
        (tagged(SOCKET_CLOSED, 0), ()),
        (tagged(KILLED, 1), ("node2",)),  # its own words
        (MIXED, ()),
        (tagged(KILLED.replace("step", "[1,1]<stderr>: step").replace("prterun", "[1,1]<stderr>: prterun"), 0), ()),
    ],
    ids=["killed", "daemon", "forged", "left", "told", "exited", "lost", "own", "mixed", "tags"],
)
def test_no_words_of_another_nodes_ranks_alone_leave_a_node_out(
    job: Callable[..., Job], told: list[str], output: str, out: tuple[str, ...]
) -> None:
    ended = job(MemoryKills(all=0), speakers=("node1", "node2"))
    take = ended.run.through(lambda _stream, _data: None)
    for begin in range(0, len(output), 7):
        take("stderr", output[begin : begin + 7].encode())
        if begin < 7:  # the first line has not ended yet
            take("stdout", b"[1,0]<stdout>: step\n")
    ended.ends("")
    assert ended.run.suspects == out
    doubted = "node2 is not left out: only words of other nodes' ranks name it."
    assert (doubted in told) is (not out and bool(kept()))


def test_a_kill_by_the_kernel_confirms_what_ranks_say(job: Callable[..., Job]) -> None:
    ended = job(MemoryKills(all=2, own=2), MemoryKills(all=0, own=0), speakers=("node1", "node2"))
    ended.ends(tagged(KILLED, 0))
    assert ended.run.suspects == ("node2",)


def test_a_lost_daemon_is_no_good_end(job: Callable[..., Job], told: list[str]) -> None:
    """PRRTE ends with 0 after it has lost a daemon, and ended all ranks by that; seen with a killed prted."""
    output = (
        "PRTE has lost communication with a remote daemon.\n\n"
        "  HNP daemon   : [prterun-node1-13564@0,0] on node node1\n"
        "  Remote daemon: [prterun-node1-13564@0,1] on node node2\n"
    )
    ended = job(MemoryKills(all=0, log=()))
    ended.ends(output)
    assert ended.run.lost_a_daemon
    assert told[0].startswith("node2: mpirun lost the daemon on this node")
    fine = job(MemoryKills(all=0, log=()))
    fine.run.through(lambda _stream, _data: None)("stdout", b"step 1\nthe text: PRTE has lost communication\n")
    assert not fine.run.lost_a_daemon


def test_a_lost_rank_of_one_of_several_nodes_is_not_known(job: Callable[..., Job], told: list[str]) -> None:
    job(MemoryKills(all=0)).ends(SOCKET_CLOSED + SOCKET_CLOSED.replace("node1", "node2"))
    (found,) = kept()
    assert (found.verdict.cause, found.verdict.hosts) == ("not known", ())
    assert told[0].startswith(
        "Ranks on node[1-2] lost a rank of another node and ended the job; which rank ended first"
    )


def test_words_about_a_follower_name_nobody(job: Callable[..., Job], told: list[str]) -> None:
    """The launcher ends node1's rank, and node2 may tell of that before it tells of the one that left."""
    job(MemoryKills(all=1)).ends(PEER.format(2, 1) + EXITED)
    job(MemoryKills(all=1)).ends(PEER.format(1, 2) + PEER.format(2, 1))
    assert kept() == []
    note = "Note: While the job ran, the kernel killed 1 process on node2 for lack of memory; nothing tells that it was"
    assert [words.startswith(note) for words in told] == [True, True]


def test_a_node_that_does_not_tell_its_kills_is_a_note(job: Callable[..., Job], told: list[str]) -> None:
    job(MemoryKills(all=1), silent=2).ends("ValueError: the batch is empty\n")
    why = "ssh: connect to host node2 port 22: Connection timed out"
    assert told == [f"Note: node2 was not asked for kills for lack of memory: {why}."]


def test_a_job_that_was_ended_has_its_kills_told_and_not_what_ended_it(
    job: Callable[..., Job], told: list[str]
) -> None:
    """After --timeout the launcher tells of the signal that clusterctl sent."""
    job(MemoryKills(all=0)).ends(KILLED, by_itself=False)
    assert (kept(), told) == ([], [])
    job(MemoryKills(all=2, own=2), MemoryKills(all=0, own=0)).ends(KILLED, by_itself=False)
    (found,) = kept()
    assert (found.verdict.cause, found.verdict.hosts) == ("lack of memory", ("node2",))


def test_a_program_that_fails_by_itself_leaves_none(job: Callable[..., Job], told: list[str]) -> None:
    job(MemoryKills(all=0)).ends("ValueError: the batch is empty\n")
    assert (kept(), told) == ([], [])


def test_a_record_that_cannot_be_kept_is_told(
    job: Callable[..., Job], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs, "keep_stall", full)
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
    path = runs.keep_stall(cluster, found)
    (paths.stalls_dir(cluster) / "20200101T000000Z-run-1.json").write_text("{")
    done = run("history", inventory)
    assert f"node2 rank 1 was ended by SIGKILL; who sent it is not known. Its record: {path}" in done.stdout
    (listed,) = json.loads(run("history", inventory, "--format", "json").stdout)["stopped_jobs"]
    assert (listed["job"], listed["record"]) == ("run-12", str(path))
    assert told
