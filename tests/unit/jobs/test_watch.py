"""The watch over real processes of this machine, which stand for the ranks of a job."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from clusterctl.analysis import rank_deaths, rank_evidence
from clusterctl.jobs import watch as watch_module
from clusterctl.jobs.watch import Watch, WatchedJob, how_to_go_on, of_itself, verdict_of
from clusterctl.model.hosts import Host
from clusterctl.model.job_outcome import FlightGroup, FlightLook, NodeLook, RankState, Stack, StallRecord
from clusterctl.support.errors import ConfigError
from local_jobs import GONE, HERE, HereLogin
from pydantic import ValidationError

RANK = "import time\nwhile True: time.sleep(60)"
ONE_RESTS = """
import fcntl, os, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    {}
while True:
    pass
"""
CHATTY = "import time\nwhile True: time.sleep(0.01); open('/dev/null', 'wb', buffering=0).write(bytes(1 << 16))"


@contextlib.contextmanager
def ranks(job: str, count: int, program: str = RANK) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes that carry a job's id, each through a shell as launchers do."""
    started = [
        subprocess.Popen(
            ["sh", "-c", f'"{sys.executable}" -c "$0"; true', program],
            env={**os.environ, "CLUSTERCTL_JOB": job, "OMPI_COMM_WORLD_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(count)
    ]
    try:
        yield started
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def program_of(shell: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        children = subprocess.run(["pgrep", "-P", str(shell.pid)], capture_output=True, text=True, check=False).stdout
        if children:
            return int(children.split()[0])
        time.sleep(0.05)
    raise AssertionError("the shell has started nothing")


def watched(
    job: str,
    *,
    logins: object = (HERE,),
    count: int = 3,
    patience_s: float = 1.0,
    spoke: bool = True,
    wait_s: float = 240,
    told: list[str] | None = None,
) -> list[StallRecord]:
    found: list[StallRecord] = []
    told = [] if told is None else told
    asked: list[tuple[str, ...]] = []

    def facts(hosts: object) -> list[str]:
        asked.append(tuple(hosts))  # type: ignore[arg-type]
        return ["node1: Xid 79"]

    watched = WatchedJob(job, logins, ("node1",) * count, {})  # type: ignore[arg-type]
    watch = Watch(watched, patience_s, facts, list, found.append, told.append)  # type: ignore[arg-type]
    if spoke:
        watch.heard(b"step 1\n")
    end = time.monotonic() + wait_s
    while not found and not told and time.monotonic() < end:
        watch.poll()
        time.sleep(0.05)
    assert watch.stands_still == bool(found)
    watch.heard(b"[1,0]<stderr>:Missing ranks:\n0: [allreduce.a]\n")
    assert watch.stands_still == bool(found), "Horovod's complaint is no sign of life"
    watch.heard(b"step 3\n")
    assert not watch.stands_still
    watch.close()
    return found


def test_a_stopped_rank_is_named_with_the_facts_of_its_node() -> None:
    job = f"unit-watch-stop-{os.getpid()}"
    with ranks(job, 3) as started:
        os.kill(program_of(started[1]), signal.SIGSTOP)
        (found,) = watched(job)
    assert (found.verdict.cause, found.verdict.hosts, found.verdict.ranks) == ("stopped rank", ("node1",), (1,))
    assert found.verdict.sentence.startswith("node1 rank 1 is stopped (a signal, such as SIGSTOP), 2 others wait")
    assert found.facts == ("node1: Xid 79",)
    assert how_to_go_on(found.verdict) == "To run without it: --exclude node1."
    assert {rank.rank for look in found.looks for rank in look.ranks} == {0, 1, 2}


@pytest.mark.parametrize(
    ("rests", "words"),
    [
        ("time.sleep(300)", "node1 rank 1 does nothing (it sleeps in "),
        ("fcntl.flock(os.open({lock!r}, os.O_RDWR), fcntl.LOCK_EX)", "node1 rank 1 waits for the lock of {lock} ("),
        ("fcntl.lockf(os.open({lock!r}, os.O_RDWR), fcntl.LOCK_EX)", "node1 rank 1 waits for the lock of {lock} ("),
    ],
)
def test_without_a_tool_for_stacks_a_rank_that_rests_is_named(
    rests: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lock = f"unit-watch-blind-{os.getpid()}", tmp_path / "lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # before a rank can take it
        fcntl.lockf(held, fcntl.LOCK_EX)
        with ranks(job, 3, ONE_RESTS.format(rests.format(lock=str(lock)))):
            monkeypatch.setenv("PATH", "/nowhere")
            (found,) = watched(job)
    assert found.verdict.sentence.startswith(words.format(lock=lock))
    assert (f"which process {os.getpid()} of its node (" in found.verdict.sentence) == ("lock" in rests)
    assert (found.verdict.hosts, found.verdict.ranks) == (("node1",), (1,))


def test_without_a_tool_for_stacks_a_rank_in_an_endless_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others ask the kernel for messages again and again, as ranks do that wait in MPI over sockets."""
    polls = "import select\n    asks = select.epoll()\n    while True: asks.poll(0)"
    program = ONE_RESTS.replace('"1"', '"1" and False or os.environ["OMPI_COMM_WORLD_RANK"] != "1"').format(polls)
    job = f"unit-watch-loop-{os.getpid()}"
    with ranks(job, 3, program):
        monkeypatch.setenv("PATH", "/nowhere")
        (found,) = watched(job, patience_s=6.0)
    assert (found.verdict.cause, found.verdict.ranks) == ("elsewhere", (1,))
    assert found.verdict.sentence.startswith(
        "node1 rank 1 computes, 2 others wait, as their calls of the kernel show; "
    )


def test_where_nothing_sets_a_rank_apart_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    job, told = f"unit-watch-spin-{os.getpid()}", list[str]()
    with ranks(job, 2, ONE_RESTS.format("pass")):
        monkeypatch.setenv("PATH", "/nowhere")
        assert watched(job, count=2, told=told) == []
    (note,) = told
    assert note.startswith("Note: No output for ")
    assert note.endswith("and no stack could be taken; install py-spy, eu-stack or gdb on the nodes.")


def test_a_rank_that_ended_is_named_before_the_patience_is_over() -> None:
    job = f"unit-watch-dead-{os.getpid()}"
    with ranks(job, 3) as started:
        for one in started:
            program_of(one)
        os.killpg(started[2].pid, signal.SIGKILL)
        started[2].wait()
        (found,) = watched(job)
    assert (found.verdict.cause, found.verdict.ranks) == ("dead rank", (2,))
    assert found.verdict.sentence.startswith("node1 rank 2 has ended or not started, 2 others wait")


def test_a_rank_that_is_missing_from_the_start_has_the_whole_patience() -> None:
    job = f"unit-watch-late-{os.getpid()}"
    with ranks(job, 2):
        (found,) = watched(job, spoke=False, patience_s=4.0)
    assert (found.verdict.cause, found.verdict.ranks) == ("dead rank", (2,))
    assert found.silent_s >= 4


def test_a_rank_has_ended_where_a_look_has_seen_it() -> None:
    rank = RankState(pid=1, rank=0, state="S", cpu_s=0, moved_bytes=0)
    looks = (NodeLook(host="node1", ranks=(rank,)),)
    job = WatchedJob("job", (), ("node1",) * 2, {})
    unseen = verdict_of(job, looks, looks, looks)
    assert unseen is not None
    assert unseen.sentence.startswith("node1 rank 1 has ended or not started, ")
    before = (NodeLook(host="node1", ranks=(rank, rank.model_copy(update={"pid": 2, "rank": 1}))),)
    for found in (verdict_of(job, before, looks, looks), verdict_of(job, looks, looks, looks, seen={0, 1})):
        assert found is not None
        assert found.sentence.startswith("node1 rank 1 has ended, ")


def test_a_node_that_ssh_finds_dead_is_named_and_its_looks_say_why() -> None:
    job = f"unit-watch-gone-{os.getpid()}"
    with ranks(job, 3):
        (found,) = watched(job, logins=(HERE, GONE))
    assert (found.verdict.cause, found.verdict.hosts) == ("silent node", ("node9",))
    assert found.verdict.sentence.startswith("node9 does not answer, 3 others wait")
    assert any("No route to host" in look.problem for look in found.looks)


def test_a_node_that_was_silent_long_before_as_well_needs_no_third_look() -> None:
    """A look that hangs takes 20 s, and the sentence is to come soon."""
    asked: list[str] = []

    class Counting(HereLogin):
        def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
            asked.extend(word for word in remote if word.startswith("--"))
            return super().command(remote, connect_timeout_s)

    job = f"unit-watch-third-{os.getpid()}"
    with ranks(job, 3):
        (found,) = watched(job, logins=(Counting(HERE.host), GONE))
    assert found.verdict.cause == "silent node"
    assert asked == ["--stacks"]


@pytest.mark.parametrize("before", [True, False])
def test_a_node_is_silent_where_it_answered_neither_of_two_looks(before: bool) -> None:
    def look(host: str, *, silent: bool = False) -> NodeLook:
        if silent:
            return NodeLook(host=host, problem="did not answer within 20 s", silent=True)
        return NodeLook(host=host, ranks=(RankState(pid=1, rank=int(host[-1]) - 1, state="S", cpu_s=0, moved_bytes=0),))

    job = WatchedJob("job", (), ("node1", "node2"), {})
    first, second = ((look("node1"), look("node2", silent=silent)) for silent in (before, True))
    found = verdict_of(job, (), first, second)
    assert (found is not None and found.cause == "silent node") == before


def test_a_job_that_spins_is_judged_by_calls_that_two_looks_found_missing() -> None:
    """With NCCL, ranks that wait take a whole core, and no stack may name the call."""

    def looks(at: float, age_s: float, number: int) -> tuple[NodeLook]:
        group = FlightGroup(group="0", last=number, waits=number, call="all_reduce")
        groups = [group, group, FlightGroup(group="0", last=number - 1), group]
        return (
            NodeLook(
                host="node1",
                at=at,
                ranks=[RankState(pid=9 + rank, rank=rank, state="R", cpu_s=at, moved_bytes=0) for rank in range(4)],
                flights=[FlightLook(rank=rank, age_s=age_s, groups=(one,)) for rank, one in enumerate(groups)],
            ),
        )

    job = WatchedJob("job", (), ("node1",) * 4, {})
    found = verdict_of(job, (), looks(100, 150, 7), looks(104, 3, 7))
    assert found is not None
    assert (found.cause, found.ranks) == ("behind", (2,))
    assert found.sentence == "node1 rank 2 has not called all_reduce #7, 3 others wait in all_reduce #7"
    assert verdict_of(job, (), looks(100, 150, 7), looks(104, 3, 8)) is None, "the calls go on"
    assert verdict_of(job, (), looks(100, 150, 7), looks(104, 150, 7)) is None, "the ranks wrote no second record"


WAITS = 'Thread 5 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2810)\n'
COMPUTES = 'Thread 5 (active): "MainThread"\n    save (train.py:9)\n'


@pytest.mark.parametrize(("place", "is_named"), [(WAITS, True), (COMPUTES, False)])
def test_a_rank_of_torchrun_that_left_early_is_named_where_others_wait(place: str, is_named: bool) -> None:
    """torchrun alone knows its ranks; one that left with code 0 may have no more to do."""
    there = [RankState(pid=rank, rank=rank, state="R", cpu_s=0, moved_bytes=0) for rank in (1, 2, 3)]
    stacks = [Stack(host="node1", pid=one.pid, tool="py-spy", text=place) for one in there]
    looks = (NodeLook(host="node1", ranks=there, stacks=stacks, expected=(0, 1, 2, 3)),)
    found = verdict_of(WatchedJob("job", (), (), {}), looks, looks, looks)
    assert (found is not None and found.cause == "dead rank") == is_named
    assert found is None or not is_named or found.sentence == "node1 rank 0 has ended, 3 others wait in all_reduce"


class BrokenLogin(HereLogin):
    """A node whose client is not installed here, or that meets a fault of ours."""

    def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
        del remote, connect_timeout_s
        if self.host.name == "node2":
            raise KeyError("node2")
        return ["/nowhere/ssh"]


@pytest.mark.parametrize(
    ("node", "words"), [("node1", "No such file or directory: '/nowhere/ssh'"), ("node2", "node2")]
)
def test_a_look_that_fails_is_told_once_and_ends_nothing(node: str, words: str) -> None:
    told: list[str] = []
    login = BrokenLogin(Host(node, "127.0.0.1"))
    watch = Watch(
        WatchedJob("unit-watch-broken", (login,), (node,), {}), 0.02, lambda _: [], list, [].append, told.append
    )
    end = time.monotonic() + 60
    while watch.failures < 3 and time.monotonic() < end:
        watch.poll()
        time.sleep(0.01)
    watch.close()
    (sentence,) = told
    assert sentence.startswith("The watch could not look at the nodes: ")
    assert words in sentence
    assert sentence.endswith(" The job goes on, and the watch tries again.")


class HangingLogin(HereLogin):
    """A node whose first look comes back, and no later one."""

    def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
        if "--stacks" in remote:
            return ["sleep", "300"]
        return super().command(remote, connect_timeout_s)


def test_a_look_that_does_not_come_back_is_told_in_a_fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each silence, also where the looks go on for ever."""
    monkeypatch.setattr(watch_module, "_SENTENCE_BY_S", 3.0)
    job, told = f"unit-watch-late-{os.getpid()}", list[str]()
    logins = (HERE, HangingLogin(Host("node2", "127.0.0.1")))
    watch = Watch(WatchedJob(job, logins, (), {}), 1.0, lambda _: [], list, [].append, told.append)
    with ranks(job, 1):
        for _silence in range(2):
            watch.heard(b"step\n")
            end, before = time.monotonic() + 15, len(told)
            while len(told) == before and time.monotonic() < end:
                watch.poll()
                time.sleep(0.05)
    watch.close()
    assert [one.partition(" s: ")[2] for one in told] == ["no answer has come from node2. The watch goes on."] * 2
    assert 4 <= float(told[0].split()[4]) <= 10


def test_a_cause_that_is_not_known_is_told_in_each_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    job, told = f"unit-watch-again-{os.getpid()}", list[str]()
    watch = Watch(WatchedJob(job, (HERE,), (), {}), 1.0, lambda _: [], list, [].append, told.append)
    with ranks(job, 2, ONE_RESTS.format("pass")):
        monkeypatch.setenv("PATH", "/nowhere")
        for silence in range(1, 3):
            watch.heard(b"step\n")
            end = time.monotonic() + 60
            while len(told) < silence and time.monotonic() < end:
                watch.poll()
                time.sleep(0.05)
    watch.close()
    assert len(told) == 2
    assert all("the cause is not known" in one for one in told)


@pytest.mark.parametrize("part", ["facts", "broken"])
def test_what_is_asked_beside_the_looks_may_fail(part: str) -> None:
    def fails(*_given: object) -> list[str]:
        raise ConfigError("this process may open 12 files")

    job = f"unit-watch-beside-{os.getpid()}"
    found: list[StallRecord] = []
    watched = WatchedJob(job, (HERE,), ("node1",) * 3, {})
    asked = (fails, list) if part == "facts" else (lambda _hosts: [], fails)
    watch = Watch(watched, 1.0, *asked, found.append, [].append)  # type: ignore[arg-type]
    with ranks(job, 3) as started:
        if part == "facts":
            os.kill(program_of(started[1]), signal.SIGSTOP)
        end = time.monotonic() + 120
        while not found and time.monotonic() < end:
            watch.poll()
            time.sleep(0.05)
    watch.close()
    (record,) = found
    facts = ("the hardware of node1 was not looked at: this process may open 12 files",)
    assert (record.verdict.cause, record.facts) == (("stopped rank", facts) if part == "facts" else ("not known", ()))


@pytest.mark.parametrize("program", [CHATTY])
def test_a_silent_job_that_moves_data_goes_on(program: str) -> None:
    job = f"unit-watch-busy-{os.getpid()}"
    with ranks(job, 3, program):
        assert watched(job, told=(told := list[str]())) == []
    assert told[0].endswith("s: the job goes on: most ranks have moved data since.")


def _told(host: str, ranks: Sequence[int], line: int, at: float, flights: Sequence[FlightLook] = ()) -> NodeLook:
    text = f"{WAITS}    f (a.py:{line})"
    return NodeLook(
        host=host,
        at=at,
        ranks=tuple(RankState(pid=9 + rank, rank=rank, state="S", cpu_s=0, moved_bytes=0) for rank in ranks),
        stacks=tuple(Stack(host=host, pid=9 + rank, tool="py-spy", text=text) for rank in ranks),
        flights=tuple(flights),
    )


def _flight(rank: int, waits: int) -> FlightLook:
    return FlightLook(rank=rank, age_s=1, groups=(FlightGroup(group="0", last=6, waits=waits, call="all_reduce"),))


@pytest.mark.parametrize(
    ("line", "ranks", "flights"),
    [
        (12, (2, 3), (_flight(0, -1), *(_flight(rank, 7) for rank in (1, 2, 3)))),
        (13, range(2, 40), ()),
        (13, range(-40, 4), ()),
        (13, (2, 3) * 20, ()),
    ],
    ids=["a record of another node's rank", "more ranks than the job has", "ranks of other nodes", "one rank often"],
)
@pytest.mark.parametrize("by_torchrun", [False, True])
def test_a_node_speaks_for_no_rank_of_another_and_outvotes_none(
    line: int, ranks: Sequence[int], flights: Sequence[FlightLook], by_torchrun: bool
) -> None:
    counts = {"node1": 2, "node2": 2}
    job = WatchedJob("job", (), () if by_torchrun else ("node1", "node1", "node2", "node2"), {}, counts=counts)
    looks = [
        [of_itself(look, job) for look in (_told("node1", (0, 1), 12, at), _told("node2", ranks, line, at, flights))]
        for at in (0, 100, 104)
    ]
    found = verdict_of(job, *looks)
    assert found is not None
    assert "node1" not in found.hosts


def test_a_look_of_more_ranks_and_words_than_any_node_has_is_refused() -> None:
    one = {"pid": 1, "rank": 1, "state": "S", "cpu_s": 0, "moved_bytes": 0}
    for told in ({"ranks": [one] * 5000}, {"ranks": [{**one, "file": "a" * 20000}]}, {"ras": ["a"] * 500}):
        with pytest.raises(ValidationError):
            NodeLook.model_validate({"host": "node1", **told})


def test_no_answer_of_nccls_ras_and_no_words_of_torchrun_take_long_to_read() -> None:
    begin = [
        "  Communicator ranks have different AllReduce operation counts",
        "  1 ranks have not launched any operations",
    ]
    began = time.process_time()
    rank_evidence.behind_by_ras([*begin, *["  managed by process 1 on node a"] * 40000], lambda _node, _pid: None, 4)
    rank_deaths.first_death("Root Cause\n" * 6 + "rank : 1 x\nexitcode : 1 " + " " * 16000 + "x\n")
    assert time.process_time() - began < 1
