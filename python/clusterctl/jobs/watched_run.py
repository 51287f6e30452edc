"""The watch of ``clusterctl run``: tells the user who stops the job, keeps the record, and repeats it at the end."""

from __future__ import annotations

import signal
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from clusterctl.analysis import rank_deaths, stall
from clusterctl.jobs import suspects
from clusterctl.jobs.watch import Watch, WatchedJob, how_to_go_on
from clusterctl.launch import mpirun
from clusterctl.model import fabric
from clusterctl.model.job_outcome import NodeKills, StallRecord, StallVerdict
from clusterctl.model.nodeset import folded
from clusterctl.support.errors import ClusterctlError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.analysis.rank_deaths import MemoryBlame, NodeLoss
    from clusterctl.jobs.output_lines import Take
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Host
    from clusterctl.model.job_outcome import MemoryKills
    from clusterctl.remote.supervised_job import JobLogin

_CONNECT_S = 2.0
_LOGIN_S = 12.0
_TAIL = 16 * 1024  # bytes of the output that the launcher's last words fit into
_LAST_LINES = 100
_LAUNCHER = ""  # in the place of a node


@dataclass(frozen=True)
class WatchedNodes:
    """The nodes of a job."""

    cluster: str
    hosts: Sequence[Host]  # the hosts as the inventory has them, with ``become`` where root may be asked
    facts: Mapping[str, NodeFacts]  # by host name
    logins: Sequence[JobLogin]  # how the job's user is reached
    ranks: Sequence[str]  # the node of each rank, as far as it is known before the start
    control: Path  # folder of shared connections
    # what each node had killed for lack of memory before the job
    memory: Mapping[str, MemoryKills] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # how many ranks each node has at most
    # the node of each rank that mpirun tags a line of output with; None where lines have no tags
    speakers: Sequence[str] | None = None


class _LastWords:
    """The end of a job's output, by line, with the node whose rank printed it where mpirun tags the lines."""

    def __init__(self, speakers: Sequence[str] | None) -> None:
        self._speakers = speakers
        self._rest = {"stdout": b"", "stderr": b""}
        self._lines: deque[tuple[str | None, bytes]] = deque()  # None: the launcher's own, or nobody's for certain
        self._size = 0

    def take(self, stream: str, data: bytes) -> None:
        """Take some output; of a line that is too long its beginning is kept."""
        *complete, rest = (self._rest[stream] + data).split(b"\n")
        self._rest[stream] = rest[:_TAIL]
        for line in complete:
            self._lines.append(self._told(line[:_TAIL]))
            self._size += len(self._lines[-1][1]) + 1
            while self._size > _TAIL:
                self._size -= len(self._lines.popleft()[1]) + 1

    def text(self, of: str | None = None) -> str:
        """Return the words of all, or those of the launcher and of one node's ranks."""
        lines = [*self._lines, *(self._told(rest) for rest in self._rest.values() if rest)]
        kept = (words for speaker, words in lines if of is None or speaker in {_LAUNCHER, of})
        return b"\n".join(kept).decode("utf-8", "replace")

    def _told(self, line: bytes) -> tuple[str | None, bytes]:
        if self._speakers is None:
            return _LAUNCHER, line
        rank, words = mpirun.untagged(line)
        if rank is None:
            return (None if mpirun.has_tag(line) else _LAUNCHER), line
        # Lines of two ranks may share one that has no end yet; it is nobody's.
        is_one = not mpirun.has_tag(words) and rank < len(self._speakers)
        return (self._speakers[rank] if is_one else None), words


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: the exit code, and what its watch knows."""

    code: int
    hosts: tuple[str, ...]
    suspects: tuple[str, ...] = ()
    stood_still: bool = False


class StoodStillError(Exception):
    """The job stood still, and the user wants it ended then."""


class WatchedRun:
    """One job under a watch."""

    def __init__(
        self, job: str, nodes: WatchedNodes, stall_after_s: float, tell: Callable[[str], None], *, ends: bool = False
    ) -> None:
        """Begin to watch.

        With ``ends``, a job that stands still is ended.
        """
        self._ends = ends
        self.stood_still = False
        self.suspects: tuple[str, ...] = ()
        self._job, self._nodes, self._tell = job, nodes, tell
        self._addresses = {
            address.address: name
            for name, node in nodes.facts.items()
            for interface in node.interfaces
            for address in interface.addresses
            if interface.kind != "loopback"
        }
        watched = WatchedJob(job, nodes.logins, nodes.ranks, self._addresses, nodes.memory, nodes.counts)
        self._watch = Watch(watched, stall_after_s, self._facts, self._broken, self._stalled, tell)
        self._heard = _LastWords(nodes.speakers)
        self._looked: dict[tuple[str, ...], Sequence[str]] = {}
        self._found: StallRecord | None = None
        self._kept = ""

    def through(self, take: Take) -> Take:
        """Return a taker of output that the watch hears as well."""

        def both(stream: str, data: bytes) -> None:
            self._watch.heard(data)
            self._heard.take(stream, data)
            take(stream, data)

        return both

    def poll(self) -> None:
        """Let the watch look whether it is time.

        Raises:
            StoodStillError: the job stands still and is to be ended.
        """
        self._watch.poll()
        if self._ends and self.stood_still:
            raise StoodStillError

    def close(self) -> None:
        """End the watch, and say once more what it has found if the job has not gone on since."""
        self._watch.close()
        if self._found is not None and self._watch.stands_still and not self._ends:
            self._tell(f"The job stood still: {_words(self._found)}{self._record_words()}")

    @property
    def lost_a_daemon(self) -> bool:
        """Whether the launcher gave the job up because a node's daemon was gone."""
        return rank_deaths.lost_a_daemon(self._heard.text())

    def died(self, *, by_itself: bool) -> None:
        """Say which rank a signal ended or which node lacked memory, where the launcher or a node tells of one.

        A rank that loses its peer may end before the launcher hears of that one. So a kill for lack of memory goes
        before the launcher's words, where it was surely one of the job's processes. What is said is kept. Where
        somebody ended the job, the launcher's words tell of what ended it.
        """
        began = time.monotonic()
        output = self._heard.text()
        lost, untold = suspects.lost_since(self._nodes.logins, self._job, self._nodes.memory)
        words = output if by_itself else ""
        blamed = rank_deaths.blame(lost, words, self._names(), self._watch.seen)
        found = self._ended_by(words, blamed, lost)
        if found is not None:
            verdict, facts = found
            self.suspects = tuple(host for host in verdict.hosts if self._is_confirmed(host, blamed, lost, by_itself))
            record = StallRecord(
                job=self._job,
                at=datetime.now(timezone.utc),
                silent_s=0.0,
                named_s=round(time.monotonic() - began, 1),
                verdict=verdict,
                facts=tuple(facts),
                kills=tuple(
                    NodeKills(host=name, count=one.count, tie=blamed.ours.get(name, ""), log=one.log or ())
                    for name, one in lost.items()
                ),
                output=tuple(output.splitlines()[-_LAST_LINES:]),
            )
            self._keep(record)
            self._tell(f"{_words(record)}{self._record_words()}")
            if self._ends and (doubted := [host for host in verdict.hosts if host not in self.suspects]):
                self._tell(f"{folded(doubted)} is not left out: only words of other nodes' ranks name it.")
        if blamed.others:
            self._tell(f"Note: {suspects.others_words(blamed, lost)}")
        if untold:
            self._tell(f"Note: {suspects.untold_words(untold)}")

    def _is_confirmed(self, host: str, blamed: MemoryBlame, lost: Mapping[str, NodeLoss], by_itself: bool) -> bool:
        """Whether the kernel, the launcher or the node's own ranks name it: the others' ranks can print any words."""
        words = self._heard.text(host) if by_itself else ""
        left = rank_deaths.first_exit(words)
        if left is not None and tuple(self._nodes.ranks[left.rank : left.rank + 1]) == (host,):
            return True
        found = self._ended_by(words, blamed, lost)
        return found is not None and host in found[0].hosts

    def _ended_by(
        self, output: str, blamed: MemoryBlame, lost: Mapping[str, NodeLoss]
    ) -> tuple[StallVerdict, Sequence[str]] | None:
        """Return who ended the job, with what the hardware of that node tells; None where nothing tells of anybody."""
        names = self._names()
        death = rank_deaths.first_death(output)
        named = names.get(death.host, "") if death else ""
        if blamed.ours and named not in blamed.ours:
            words = suspects.ours_words(blamed, lost)
            verdict = StallVerdict(cause="lack of memory", sentence=words, hosts=tuple(blamed.ours))
            return verdict, self._facts(verdict.hosts)
        lost_on = rank_deaths.lost_before_abort(output, names)
        if death is not None and not (lost_on and death.signal == signal.SIGABRT):  # such a rank has lost its peer
            facts = self._facts([named]) if named else ()
            words = suspects.death_words(death, named, self._killed(named, blamed, lost), facts)
            hosts = (named,) if named else ()
            return StallVerdict(cause="killed rank", sentence=words, hosts=hosts, ranks=(death.rank,)), facts
        left = rank_deaths.first_exit(output)
        left_on = self._nodes.ranks[left.rank] if left and left.rank < len(self._nodes.ranks) else ""
        told_by = rank_deaths.lost_sockets(output, names)
        is_lost = left_on in rank_deaths.lost_peers(output, names)[:1] or (told_by and left_on not in told_by)
        if left and left_on and is_lost:
            words = suspects.exit_words(left, left_on)
            verdict = StallVerdict(cause="lost rank", sentence=words, hosts=(left_on,), ranks=(left.rank,))
            return verdict, self._facts([left_on])
        last = _told_last(output, lost_on, names, [host.name for host in self._nodes.hosts])
        return None if last is None else (last, self._facts(last.hosts))

    def _killed(self, name: str, blamed: MemoryBlame, lost: Mapping[str, NodeLoss]) -> int | None:
        """Return how many processes of the job the kernel has killed on a node, None where it hides that."""
        if name in blamed.ours:
            return lost[name].count
        return 0 if name in self._nodes.memory and self._nodes.memory[name].all >= 0 else None

    def _names(self) -> dict[str, str]:
        """Return the node of each name and address by which programs call it."""
        found = {host.address: host.name for host in self._nodes.hosts} | self._addresses
        for name, node in self._nodes.facts.items():
            found.update(dict.fromkeys((node.hostname.partition(".")[0], node.hostname, name), name))
        return found

    def _facts(self, names: Sequence[str]) -> Sequence[str]:
        asked = tuple(names)
        if asked not in self._looked:
            self._looked[asked] = self._look(asked)
        return self._looked[asked]

    def _look(self, names: Sequence[str]) -> Sequence[str]:
        nodes = self._nodes
        try:
            return suspects.facts_of(names, suspects.JobNodes(nodes.cluster, nodes.hosts, nodes.facts, nodes.control))
        except (ClusterctlError, OSError, ValueError) as error:  # what stands beside a sentence must not keep it back
            return (f"the hardware of {folded(names)} was not looked at: {error}",)

    def _broken(self) -> Sequence[stall.FailedWay]:
        from clusterctl.remote import network_probe  # noqa: PLC0415 - a job that goes on does without it

        there = [replace(host, become=False) for host in self._nodes.hosts]
        found = fabric.candidates(self._nodes.facts)
        limits = network_probe.TrialLimits(_CONNECT_S, _LOGIN_S, control_dir=self._nodes.control)
        tried = network_probe.confirmed(there, found, limits, network_probe.probe(there, found, limits))
        return [_way(one) for one in tried if one.kind not in {"ok", "error"}]

    def _stalled(self, record: StallRecord) -> None:
        self._found, self.stood_still, self.suspects = record, True, record.verdict.hosts
        end = "The job is ended." if self._ends else "The job is not ended."
        self._tell(f"No output for {record.silent_s:.0f} s: {_words(record)} {end}")
        self._keep(record)

    def _keep(self, record: StallRecord) -> None:
        from clusterctl.state import runs  # noqa: PLC0415 - a job that ends well does without it

        try:
            self._kept = str(runs.keep_stall(self._nodes.cluster, record))
        except (ConfigError, OSError) as error:
            self._tell(f"What was seen is not kept: {error}")

    def _record_words(self) -> str:
        return f" Its record: {self._kept}." if self._kept else ""


def _way(tried: fabric.PairResult) -> stall.FailedWay:
    """Return the way on which a connection lost something; what is lost on its way back goes the other way."""
    source, target = (tried.target, tried.source) if tried.kind == "cut_back" else (tried.source, tried.target)
    return stall.FailedWay(source, target, tried.kind in {"cut", "cut_back"})


def _told_last(output: str, lost_on: str, names: Mapping[str, str], nodes: Sequence[str]) -> StallVerdict | None:
    """Return what the launcher tells of a rank or node, where it tells neither of a signal nor of an exit code."""
    if early := rank_deaths.first_left(output):
        rank, host = early
        node = names.get(host, "")
        words = suspects.left_words(rank, node or host)
        return StallVerdict(cause="lost rank", sentence=words, hosts=(node,) if node else (), ranks=(rank,))
    if lost_on:
        return StallVerdict(cause="lost rank", sentence=suspects.peer_words(lost_on), hosts=(lost_on,))
    if told := rank_deaths.told_of_node(output, names):
        node, words = told
        return StallVerdict(cause="launcher", sentence=f"{node}: {words}", hosts=(node,))
    if tellers := rank_deaths.lost_sockets(output, names):
        others = tuple(name for name in nodes if name not in tellers)
        if len(others) == len(tellers) == 1:  # of more nodes, one that only lost an aborted rank may tell as well
            return StallVerdict(cause="lost rank", sentence=suspects.peer_words(others[0]), hosts=others)
        return StallVerdict(cause="not known", sentence=suspects.unknown_peer_words(tellers))
    return None


def _words(record: StallRecord) -> str:
    cure = how_to_go_on(record.verdict)
    return f"{record.verdict.sentence}{_beside(record.facts)}.{' ' if cure else ''}{cure}"


def _beside(facts: Sequence[str]) -> str:
    return "".join(f"; {fact}" for fact in facts)
