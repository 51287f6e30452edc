"""Watch a running job: notice that it stands still, and find out which rank or node is the cause.

While the job prints, this costs nothing: the watch keeps the time of the last output. A silent job is looked at twice,
in one trip to each node: after half of the patience, and when it is over. Stacks are taken at the second look and a
few seconds later, and the two must agree. A job that stands still is told and goes on; it is never ended here. Where
the looks do not tell, a note says why. Of each silence at least one sentence is told, in a fixed time after the
patience.
"""

from __future__ import annotations

import math
import re
import threading
import time
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.analysis import rank_deaths, rank_evidence, stall
from clusterctl.analysis.rank_evidence import Place
from clusterctl.jobs import suspects
from clusterctl.model.job_outcome import StallRecord, StallVerdict
from clusterctl.model.nodeset import folded
from clusterctl.support import machine_load

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from clusterctl.analysis.rank_evidence import Behind
    from clusterctl.jobs.suspects import Stacks
    from clusterctl.model.job_outcome import MemoryKills, NodeLook, RankState
    from clusterctl.remote.supervised_job import JobLogin

_Found = TypeVar("_Found")

STALL_AFTER_S = 300.0
_BETWEEN_S = 4.0  # the two looks with stacks
_FACTS_BY_S = 25.0  # since the stall was noticed: facts stand beside the sentence, and do not hold it up for long
_LEAST_FACTS_S = 3.0
_SENTENCE_BY_S = 45.0  # after the patience: by then a note says what is still waited for
_TRIALS_S = 30.0  # of connections between nodes
_FRESH_S = 60.0  # of a flight record: the look before has asked for it
_WORDS_BY = 1024  # bytes of a line
# What Horovod's stall inspector prints (horovod/common/stall_inspector.cc), behind mpirun's tag or without one.
_STALL_WORDS = re.compile(rb"(?:\[[^\]]*\](?:<\w+>:?)?\s*)*(?:.*stall_inspector\.cc|Missing ranks:|\d+: \[)")


@dataclass(frozen=True)
class WatchedJob:
    """What the watch knows of a job."""

    job: str
    logins: Sequence[JobLogin]
    ranks: Sequence[str]  # the node of each rank, empty where the launcher alone knows
    addresses: Mapping[str, str]  # the name of the node that has an address
    # what each node had killed for lack of memory before the job
    memory: Mapping[str, MemoryKills] = field(default_factory=dict)
    # how many ranks each node has at most, as far as that is known
    counts: Mapping[str, int] = field(default_factory=dict)


class BlindError(Exception):
    """No node could be looked at."""


class Watch:
    """The watch over one job. Its methods are called from the thread that reads the output, and never wait."""

    def __init__(
        self,
        job: WatchedJob,
        stall_after_s: float,
        facts: Callable[[Sequence[str]], Sequence[str]],
        broken: Callable[[], Sequence[stall.FailedWay]],
        on_stall: Callable[[StallRecord], None],
        tell: Callable[[str], None],
    ) -> None:
        """Begin to count from now.

        ``facts`` reads what the hardware of some nodes tells, a sentence each. ``broken`` has the nodes connect to each
        other and returns what failed. Both may take seconds. ``on_stall`` gets what was found, once for each silence.
        ``tell`` gets a sentence about looks that failed, that are late, or that found no stall.
        """
        self._job, self._patience = job, stall_after_s
        self._facts, self._broken, self._on_stall, self._tell = facts, broken, on_stall, tell
        self.failures = 0  # looks that told nothing
        self._heard = time.monotonic()
        self._noticed = 0.0
        self._half: tuple[NodeLook, ...] = ()
        self.seen: dict[str, set[int]] = {}  # the processes of ranks, by node, as far as a look was taken
        self._ranks: set[int] = set()  # that a look has seen
        self._spoke = False
        self._running: Future[tuple[NodeLook, ...]] | None = None
        self._ending: Future[StallRecord | str] | None = None
        self._told = False
        self._noted: set[str] = set()
        self._silent_since = self._heard
        self._spoken = False  # about this silence
        self._open: set[str] = set()  # nodes whose look has not ended
        self._pool = ThreadPoolExecutor(1)
        self._closed = threading.Event()

    def heard(self, data: bytes) -> None:
        """Note that the job has printed something; Horovod's own words about a stall are none of it."""
        if all(_STALL_WORDS.match(line[:_WORDS_BY]) for line in data.splitlines() if line.strip()):
            return
        self._heard = self._silent_since = time.monotonic()
        self._spoke, self._spoken = True, False
        self._half, self._told = (), False
        self._noted = {words for words in self._noted if stall.goes_on(words)}

    @property
    def stands_still(self) -> bool:
        """Whether a stall was told and the job has not printed since."""
        return self._told

    def poll(self) -> None:
        """Look at the nodes when it is time, and tell what a look has found; a look that fails ends nothing."""
        now = time.monotonic()
        self._say_what_is_late(now)
        if self._ending is not None:
            if self._ending.done():
                ending, self._ending = self._ending, None
                if self._has_told(ending):
                    self._conclude(ending.result())
            return
        if self._running is not None:
            if self._running.done():
                running, self._running = self._running, None
                self._half = running.result() if self._has_told(running) else ()
            return
        silent = now - self._heard
        if self._told or silent < self._patience / 2:
            return
        if not self._half:
            self._running = self._start(lambda: self._look("none"))
        elif silent >= self._patience or (self._spoke and _has_lost_ranks(self._half, self._job.ranks)):
            self._noticed, half = now, self._half
            self._ending = self._start(lambda: self._examine(half, silent))

    def _say_what_is_late(self, now: float) -> None:
        silent = now - self._silent_since
        if self._spoken or silent < self._patience + _SENTENCE_BY_S:
            return
        late = folded(sorted(self._open))
        what = f"no answer has come from {late}" if late else "what the nodes tell is not judged yet"
        self._speak(f"Note: No output for {silent:.0f} s: {what}. The watch goes on.")

    def _speak(self, words: str) -> None:
        self._spoken = True
        self._tell(words)

    def _start(self, look: Callable[[], _Found]) -> Future[_Found]:
        try:
            return self._pool.submit(look)
        except RuntimeError as error:  # this machine starts no more threads
            failed: Future[_Found] = Future()
            failed.set_exception(error)
            return failed

    def _has_told(self, look: Future[Any]) -> bool:
        """Return whether a look went well; after one that failed, the patience begins anew."""
        error = look.exception()
        if error is None:
            return True
        self._heard, self._half = time.monotonic(), ()
        self.failures += 1
        if not self._spoken:
            words = str(error) or type(error).__name__
            self._speak(f"The watch could not look at the nodes: {words}. The job goes on, and the watch tries again.")
        return False

    def close(self) -> None:
        """End the watch; what is under way is not waited for."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _conclude(self, found: StallRecord | str) -> None:
        if self._heard > self._noticed:  # it spoke while it was looked at
            return
        if isinstance(found, str):
            if found and found not in self._noted:
                self._speak(f"Note: No output for {self._noticed - self._heard:.0f} s: {found}.")
            self._spoken = True  # at least before
            self._noted.add(found)
            self._heard, self._half = time.monotonic(), ()
            return
        self._told = self._spoken = True
        self._on_stall(found)

    def _killed(self, verdict: StallVerdict, looks: Sequence[NodeLook]) -> list[str]:
        """Return what the named nodes lost to the kernel; where all ranks are there, only what was surely the job's."""
        lost = rank_deaths.losses(self._job.memory, {look.host: look.memory for look in looks})
        blamed = rank_deaths.blame(lost, "", {}, self.seen)
        dead = verdict.cause == "dead rank"
        named = [name for name in lost if name in verdict.hosts and (name in blamed.ours or dead)]
        return [suspects.lost_words(name, lost[name], blamed.ours.get(name)) for name in named]

    def _look(self, stacks: Stacks) -> tuple[NodeLook, ...]:
        self._open = {login.host.name for login in self._job.logins}
        seen = suspects.looks(self._job.logins, self._job.job, stacks, on_look=self._open.discard)
        found = tuple(of_itself(look, self._job) for look in seen)
        for look in found:
            self.seen.setdefault(look.host, set()).update(rank.pid for rank in look.ranks)
            self._ranks.update(rank.rank for rank in look.ranks)
        if all(look.problem for look in found):
            raise BlindError(self._blind_words(found))
        return found

    def _blind_words(self, looks: Sequence[NodeLook]) -> str:
        words = looks[0].problem if looks else "the job has no nodes"
        if busy := machine_load.busy_words():  # new logins would be late as well
            return f"{words}; {busy}"
        silent = {look.host for look in looks if look.silent}
        halted = suspects.halted_logins([login for login in self._job.logins if login.host.name in silent])
        return stall.with_logins(words, halted)

    def _examine(self, half: tuple[NodeLook, ...], silent_s: float) -> StallRecord | str:
        """Return who stops the job, or a clause that says why nobody is named."""
        began = time.monotonic()
        first = self._look("full")
        if sum(_moved(half, first)) * 2 > max(1, len(_moved(half, first))):
            return "the job goes on: most ranks have moved data since"
        # What takes seconds is asked while the second look waits, for the suspects of the first.
        early = verdict_of(self._job, half, first, first, self._ranks)
        ahead = _Ahead(early, self._facts, self._broken, self._job.logins)
        try:
            second, verdict = first, early
            if early is None or not _were_silent(early, half):
                if self._closed.wait(_BETWEEN_S):
                    return ""
                second = self._look("quick")
                verdict = verdict_of(self._job, half, first, second, self._ranks)
            if verdict is None:
                words = stall.undecided(sights_of(self._job, half, first, second))
                failed = () if stall.goes_on(words) else ahead.broken() or ()
                if not failed:
                    return words
                verdict = stall.after_probe(StallVerdict(cause="not known", sentence=words), failed)
            elif _needs_probe(verdict):
                verdict = stall.after_probe(verdict, tried) if (tried := ahead.broken()) is not None else verdict
            verdict = ahead.after_logins(verdict)
            found = ahead.facts(verdict.hosts, max(_LEAST_FACTS_S, _FACTS_BY_S - (time.monotonic() - began)))
        finally:
            ahead.close()
        told = self._killed(verdict, second)
        return StallRecord(
            job=self._job.job,
            at=datetime.now(timezone.utc),
            silent_s=round(silent_s, 1),
            named_s=round(time.monotonic() - began, 1),
            verdict=verdict,
            facts=(*told, *found),
            looks=(*first, *second),
        )


class _Ahead:
    """What is asked of nodes before the suspects are sure: their hardware, new logins, or which do not connect."""

    def __init__(
        self,
        early: StallVerdict | None,
        facts: Callable[[Sequence[str]], Sequence[str]],
        broken: Callable[[], Sequence[stall.FailedWay]],
        logins: Sequence[JobLogin],
    ) -> None:
        self._read, self._probe = facts, broken
        self._pool = ThreadPoolExecutor(3)
        self._hosts = early.hosts if early is not None else ()
        self._found = self._pool.submit(self._read, self._hosts) if self._hosts else None
        self._tried = self._pool.submit(self._probe) if early is not None and _needs_probe(early) else None
        silent = [
            one for one in logins if early is not None and early.cause == "silent node" and one.host.name in early.hosts
        ]
        self._halted = self._pool.submit(suspects.halted_logins, silent)

    def facts(self, hosts: Sequence[str], within_s: float) -> Sequence[str]:
        """Return what the hardware of some nodes tells, or that it did not answer in time."""
        if not hosts:
            return ()
        if self._found is None or tuple(hosts) != tuple(self._hosts):
            self._found = self._pool.submit(self._read, hosts)
        try:
            error = self._found.exception(within_s)
        except futures.TimeoutError:
            return (f"the hardware of {folded(hosts)} was not looked at: no answer in time",)
        return (f"the hardware of {folded(hosts)} was not looked at: {error}",) if error else self._found.result()

    def broken(self) -> Sequence[stall.FailedWay] | None:
        """Return the connections that failed, None where they could not be tried in time."""
        self._tried = self._tried or self._pool.submit(self._probe)
        try:
            return None if self._tried.exception(_TRIALS_S) else self._tried.result()
        except futures.TimeoutError:
            return None

    def after_logins(self, verdict: StallVerdict) -> StallVerdict:
        """Return a verdict on silent nodes with how new logins to them ended."""
        if verdict.cause != "silent node" or self._halted.exception() is not None:
            return verdict
        halted = [host for host in self._halted.result() if host in verdict.hosts]
        return verdict.model_copy(update={"sentence": stall.with_logins(verdict.sentence, halted)})

    def close(self) -> None:
        """Wait for nothing."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def of_itself(look: NodeLook, job: WatchedJob) -> NodeLook:
    """Return what a node tells of its own ranks, each once: nobody speaks for another node, or outvotes it."""
    placed = dict(enumerate(job.ranks))
    first = {one.rank: one for one in reversed(look.ranks) if placed.get(one.rank, look.host) == look.host}
    there = [one for one in look.ranks if one is first.get(one.rank)][: job.counts.get(look.host)]
    pids, numbers = {one.pid for one in there}, {one.rank for one in there}
    return look.model_copy(
        update={
            "ranks": tuple(there),
            "stacks": tuple(one for one in look.stacks if one.pid in pids),
            "flights": tuple(one for one in look.flights if one.rank in numbers),
        }
    )


def _were_silent(verdict: StallVerdict, looks: Sequence[NodeLook]) -> bool:
    """Whether nodes that do not answer did not answer at an earlier look, long before: a third look tells no more."""
    silent = {look.host for look in looks if look.silent}
    return verdict.cause == "silent node" and silent.issuperset(verdict.hosts)


def _needs_probe(verdict: StallVerdict) -> bool:
    return not verdict.hosts and verdict.cause in {"network", "not known"}


def _seen_again(first: Place, second: Place) -> Place:
    """Return the second place, with the call of the first where a quick stack shows only that it is the same line."""
    return first if first.call and not second.call and first.where == second.where else second


def sights_of(
    job: WatchedJob, half: Sequence[NodeLook], first: Sequence[NodeLook], second: Sequence[NodeLook]
) -> list[stall.RankSight]:
    """Return what two looks, and the one before them, showed of each rank of the second."""
    long, before = (
        {(look.host, rank.pid): (look, rank) for look in looks for rank in look.ranks} for looks in (half, first)
    )
    stacks = [
        {(look.host, stack.pid): stack.text for look in looks for stack in look.stacks} for looks in (first, second)
    ]
    places = [{key: rank_evidence.place(text) for key, text in found.items()} for found in stacks]
    sights = []
    for look in second:
        ranks = {rank.pid: rank.rank for rank in look.ranks}
        for rank in look.ranks:
            key = (look.host, rank.pid)
            old_look, old = before.get(key, (look, rank))
            spent = _spent(old_look, old, look, rank)
            was_idle: bool | None = None
            system: tuple[float, float] | None = None
            if key in long and key in before:
                earlier = _spent(*long[key], old_look, old)
                was_idle = earlier.rests and (earlier.moved <= stall.LEAST_MOVED or bool(old.full))
                system = _system(_spent(*long[key], look, rank), spent)
            lock = rank.lock if rank.lock == old.lock else ""
            sights.append(
                stall.RankSight(
                    rank=rank.rank,
                    host=look.host,
                    state=rank.state,
                    cpu_share=spent.cpu_share,
                    wanted_share=spent.wanted_share,
                    system=system,
                    moved=spent.moved,
                    now=_seen_again(places[0].get(key, Place()), places[1].get(key, Place())),
                    before=places[0].get(key, Place()),
                    file=rank.file if rank.file == old.file else "",
                    silent_hosts=tuple(
                        job.addresses[peer]
                        for peer in rank.silent_peers
                        if peer in job.addresses and peer in old.silent_peers
                    ),
                    lock=lock,
                    holder=_holder(rank, ranks) if lock else "",
                    holder_rank=ranks.get(rank.lock_pid, -1) if lock else -1,
                    full=tuple(place for place in rank.full if place in old.full),
                    kernel=rank_evidence.asleep_in(stacks[1].get(key, "")),
                    was_idle=was_idle,
                )
            )
    return sights


def _spent(before: NodeLook, old: RankState, after: NodeLook, rank: RankState) -> stall.Spent:
    """Return what a rank took and moved between two looks."""
    span, cpu_s = after.at - before.at, rank.cpu_s - old.cpu_s
    moved = rank.moved_bytes - old.moved_bytes
    if span <= 0:
        return stall.Spent(moved=moved)
    wanted = (rank.wanted_s - old.wanted_s) / span
    return stall.Spent(
        moved=moved,
        cpu_s=cpu_s,
        cpu_share=cpu_s / span,
        system_share=(rank.system_s - old.system_s) / cpu_s if cpu_s > 0 else 0.0,
        wanted_share=wanted if old.wanted_s >= 0 and wanted >= 0 else None,  # less is of threads that ended
    )


def _system(whole: stall.Spent, last: stall.Spent) -> tuple[float, float] | None:
    """Return the shares in calls of the kernel, of the whole time and of the last seconds; None where that is little.

    On busy cores, seconds may be too short to tell. Then the whole time counts for them.
    """
    if whole.cpu_s < stall.LEAST_CPU_S:
        return None
    return whole.system_share, last.system_share if last.cpu_s * 2 >= stall.LEAST_CPU_S else whole.system_share


def _holder(rank: RankState, ranks: Mapping[int, int]) -> str:
    if rank.lock_pid in ranks:
        return f"rank {ranks[rank.lock_pid]}"
    program = f" ({rank.lock_program})" if rank.lock_program else ""
    return f"process {rank.lock_pid} of its node{program}" if rank.lock_pid else ""


def verdict_of(
    job: WatchedJob,
    half: Sequence[NodeLook],
    first: Sequence[NodeLook],
    second: Sequence[NodeLook],
    seen: Collection[int] = (),
) -> StallVerdict | None:
    """Return who keeps a job from going on; None if it goes on.

    ``half`` is an earlier look, whose ranks should still be there; ``first`` has stacks, and ``second`` is later.
    ``seen`` are the ranks that any look before has seen.
    """
    sights = sights_of(job, half, first, second)
    mute = {look.host for look in first if look.silent}
    silent = [look.host for look in second if look.silent and look.host in mute]
    at_half = {rank.rank: look.host for look in half for rank in look.ranks}
    # A rank of torchrun may leave when it has no more to do, so it is missed where others wait.
    waits = any(one.waits for one in sights)
    by_torchrun = {rank: look.host for look in second for rank in look.expected if waits}
    expected = {**at_half, **by_torchrun, **dict(enumerate(job.ranks))}
    told = _behind(job, second, _FRESH_S)
    behind = next((one for one in told if one is not None), None)
    return stall.judge(
        sights,
        missing=missing_ranks(second, expected),
        unseen=expected.keys() - {*seen, *at_half, *by_torchrun, *(rank.rank for look in first for rank in look.ranks)},
        silent=silent,
        behind=behind,
        lasts=behind in _behind(job, first, math.inf),
    )


def _behind(job: WatchedJob, looks: Sequence[NodeLook], fresh_s: float) -> tuple[Behind | None, Behind | None]:
    """Return the ranks for which others wait by the flight recorder's newer records, and by NCCL's RAS."""
    flights = {record.rank: record.groups for look in looks for record in look.flights if record.age_s < fresh_s}
    return rank_evidence.behind(flights), _behind_by_ras(job, looks)


def _behind_by_ras(job: WatchedJob, looks: Sequence[NodeLook]) -> Behind | None:
    """Return the ranks for which others wait by NCCL's RAS, which knows them by address and process number.

    RAS tells of all nodes, so it counts only from those that are asked: of the first and of the last rank. They agree.
    """
    ranks = {(look.host, rank.pid): rank.rank for look in looks for rank in look.ranks}

    def rank_of(node: str, pid: int) -> int | None:
        return ranks.get((job.addresses.get(node, node), pid))

    ends = {min(ranks.values(), default=0), max(ranks.values(), default=0)}
    asked = [look for look in looks if look.ras and ends & {rank.rank for rank in look.ranks}]
    told = [rank_evidence.behind_by_ras(look.ras, rank_of, len(ranks)) for look in asked]
    found = [one for one in told if one is not None]
    return found[0] if len({one.ranks for one in found}) == 1 else None


def missing_ranks(looks: Sequence[NodeLook], expected: Mapping[int, str]) -> dict[int, str]:
    """Return the node of each rank that should run on a node that answers, and does not run there."""
    there = {(look.host, rank.rank) for look in looks for rank in look.ranks if rank.state not in "ZX"}
    answered = {look.host for look in looks if not look.problem}
    return {rank: host for rank, host in expected.items() if host in answered and (host, rank) not in there}


def _has_lost_ranks(looks: Sequence[NodeLook], ranks: Sequence[str]) -> bool:
    lost = missing_ranks(looks, dict(enumerate(ranks)))
    return bool(lost) and len(lost) < len(ranks)


def _moved(first: Sequence[NodeLook], second: Sequence[NodeLook]) -> list[bool]:
    before = {(look.host, rank.pid): rank.moved_bytes for look in first for rank in look.ranks}
    return [
        rank.moved_bytes - before[look.host, rank.pid] > stall.LEAST_MOVED
        for look in second
        for rank in look.ranks
        if (look.host, rank.pid) in before
    ]


def how_to_go_on(verdict: StallVerdict) -> str:
    """Return what to do next, in a sentence; '' where no node is the cause."""
    return go_without(verdict.hosts) if verdict.hosts else ""


def go_without(hosts: Sequence[str]) -> str:
    """Return how to run without some nodes, in a sentence."""
    return f"To run without {'it' if len(hosts) == 1 else 'them'}: --exclude {folded(hosts)}."
