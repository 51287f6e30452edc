"""Why a rank died: what the end of a job's output tells, and whether the kernel killed it for lack of memory."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from module_utils import error_meanings  # mypy finds it by mypy_path

    from clusterctl.model.job_outcome import LoggedKill, MemoryKills
else:
    error_meanings = content.module_util("error_meanings")

_RULE = re.compile(r"^-{20,}$", re.MULTILINE)  # a help message of mpirun stands between two
_MOST_TEXT = 4096
_LOOK_AT_DAEMON = "look at the node's kernel log, at what ended its daemon, and at the ssh login there"
# The whole line: a program may print these words among its own.
_DAEMON_LOST = re.compile(r"^(?:PRTE|ORTE) has lost communication with a remote daemon\.$", re.MULTILINE)
# help-plm-base.txt of PRRTE. It supposes a firewall; for a job that ran, the daemon has ended.
_DAEMON_ENDED = re.compile(
    r"(?s)daemon failed to report back after being spawned.{0,500}?Remote host:\s*(?P<host>\S+)\s+"
    r"Daemon exit status:\s*(?P<status>\d{1,3})\b"
)

_MPIRUN = re.compile(
    r"process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<by>\d{1,9})\b"
)
# torchrun's words about the worker of its node that ended first.
_TORCHRUN = re.compile(
    r"Root Cause[^\n]*\n(?:[^\n]*\n){1,6}?(?:[^\S\n]*host\s*: (?P<host>\S+)[^\n]*\n)?"
    r"[^\S\n]*rank\s*: (?P<rank>\d{1,9}) [^\n]*\n"
    r"[^\S\n]*exitcode\s*: (?P<code>-?\d{1,9}) (?:[^\n]*\((?P<signal>SIG\w+)\)[^\S\n]*\n|[^\n]*\n)"
)
_EXITED = re.compile(
    r"The first process to do so was: Process name: \[\S+,(?P<rank>\d{1,9})\] Exit code: (?P<code>\d{1,3})\b"
)
# help-prun.txt of PRRTE and help-orterun.txt of ORTE: a rank that ended between MPI_Init and MPI_Finalize.
_LEFT = re.compile(r"due to process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) exiting improperly")
# Open MPI 5 (mca_btl_tcp with ompi_mpi_errors_are_fatal) on the node of a rank whose peer on another node is gone.
_SOCKET_CLOSED = re.compile(r"^\[(?P<host>[^\]:\s]+):\d+\] \*\*\* An error occurred in Socket closed", re.MULTILINE)
# In the words of PRRTE for a rank that called MPI_Abort, in its help-prun.txt.
_ABORTED = re.compile(r'due to process rank \d{1,9} with PID \d+ on node (?P<host>\S+) calling "abort"')
# Open MPI (help-mpi-btl-tcp.txt, "peer hung up") and Gloo (gloo/transport/tcp/pair.cc).
_LOST_PEER = re.compile(r"Peer host: +(?P<host>[^\s\]>]+)|Connection closed by peer \[(?P<address>[0-9a-fA-F:.]+)\]")


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker as the torchrun of its node tells it; ``code`` is negative and ``signal`` set by a signal."""

    rank: int
    host: str
    code: int
    signal: str


@dataclass(frozen=True)
class RankDeath:
    """A rank that a signal ended, and the node as the launcher names it."""

    rank: int
    host: str
    signal: int

    @property
    def words(self) -> str:
        """How it ended, such as ``was ended by SIGKILL``."""
        names = {known.value: known.name for known in signal.Signals}
        return f"was ended by {names.get(self.signal, f'signal {self.signal}')}"


@dataclass(frozen=True)
class RankExit:
    """A rank that ended with an exit code."""

    rank: int
    code: int


def torchrun_ends(output: str) -> tuple[WorkerEnd, ...]:
    """Return the worker that each torchrun names as the first that ended, in the order of the output."""
    found = _TORCHRUN.finditer(f"{output}\n")
    return tuple(WorkerEnd(int(end["rank"]), end["host"] or "", int(end["code"]), end["signal"] or "") for end in found)


def first_death(output: str) -> RankDeath | None:
    """Return the rank whose death ended the job; None where the launcher tells of none."""
    for end in torchrun_ends(output):
        if end.host and end.code < 0:
            return RankDeath(end.rank, end.host, -end.code)
    if found := _MPIRUN.search(" ".join(output.split())):
        return RankDeath(int(found["rank"]), found["host"], int(found["by"]))
    return None


def first_exit(output: str) -> RankExit | None:
    """Return the rank that mpirun tells of as the first that ended with an exit code; None where it tells of none."""
    found = _EXITED.search(" ".join(output.split()))
    return RankExit(int(found["rank"]), int(found["code"])) if found else None


def first_left(output: str) -> tuple[int, str] | None:
    """Return the rank that mpirun tells of as one that left without MPI_Finalize, and its node as mpirun names it."""
    found = _LEFT.search(" ".join(output.split()))
    return (int(found["rank"]), found["host"]) if found else None


def lost_sockets(output: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes whose ranks say that a connection to a rank of another node was closed."""
    told = (names.get(match["host"], "") for match in _SOCKET_CLOSED.finditer(output))
    return tuple(dict.fromkeys(name for name in told if name))


def lost_a_daemon(output: str) -> bool:
    """Whether mpirun ended the job because a node's daemon was gone; PRRTE then ends with 0 all the same."""
    return _DAEMON_LOST.search(output) is not None


def told_of_node(output: str, names: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a node of which mpirun or ssh tell, with cause and cure in words; None where they tell of none.

    A lost daemon often follows from another fault, so another message goes before it. ``output`` is the end of the
    job's output; ``names`` has the node of each name and address that it may use.
    """
    told = []
    for block in _RULE.split(output):
        if (ended := _DAEMON_ENDED.search(block)) and ended["host"] in names:
            words = f"mpirun's daemon there ended with exit status {ended['status']}; {_LOOK_AT_DAEMON}"
            told.append((True, names[ended["host"]], words))
            continue
        passages = [block] if len(block) < _MOST_TEXT else []
        for text in (*passages, *(line[:_MOST_TEXT] for line in block.splitlines())):
            found = error_meanings.find("mpirun", text)
            node = names.get(found.words.get("node", ""), "") if found is not None and found.row.whom == "node" else ""
            if found is not None and node:
                told.append((found.row.kind == "lost", node, "; ".join(found.meaning(speaker=node))))
    return next(((node, words) for _lost, node, words in sorted(told, key=lambda one: one[0])), None)


def lost_peers(output: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the peers that ranks say they have lost, in the order of the output.

    When the launcher ends the others, they lose each other too. Under load, such words may come first. ``output`` is
    the end of the job's output; ``names`` has the node of each name and address that it may use.
    """
    told = (names.get(match["host"] or match["address"], "") for match in _LOST_PEER.finditer(output))
    return tuple(dict.fromkeys(name for name in told if name))


def lost_peer(output: str, names: Mapping[str, str]) -> str:
    """Return the one node whose ranks others say they have lost; empty without one, and where it may be another one.

    A rank that aborts lost its peer before, so its node does not count beside another one.
    """
    lost = lost_peers(output, names)
    others = [name for name in lost if len(lost) == 1 or name != _aborted_on(output, names)]
    return others[0] if len(others) == 1 else ""


def lost_before_abort(output: str, names: Mapping[str, str]) -> str:
    """Return the node of a rank that ended before another node's rank aborted; empty where the output tells no such.

    A rank that loses its peer may abort before mpirun hears how the peer ended. mpirun then names the wrong rank.
    """
    lost = lost_peer(output, names)
    return lost if _aborted_on(output, names) not in {"", lost} else ""


def _aborted_on(output: str, names: Mapping[str, str]) -> str:
    """Return the node of the rank that aborted by mpirun's words, or that SIGABRT ended."""
    if found := _ABORTED.search(" ".join(output.split())):
        return names.get(found["host"], "")
    death = first_death(output)
    return names.get(death.host, "") if death is not None and death.signal == signal.SIGABRT else ""


# --- was a process that the kernel killed for lack of memory one of the job, or other work on the node ----------------

Tie: TypeAlias = Literal["log", "group", "launcher", "worker", "peers"]

# A rank that one of these ended has failed by itself; losing a peer ends a rank otherwise.
_OWN_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS})
_ROOT = 0
# torch/utils/data/_utils/signal_handling.py and dataloader.py
_LOST_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal: Killed|exited unexpected)"
)


@dataclass(frozen=True)
class NodeLoss:
    """What a node has lost to the kernel since the job began."""

    count: int  # so many processes, at least
    own: bool = False  # whether the count is of a group that only the job's user or job has
    log: tuple[LoggedKill, ...] | None = None  # the new kills in the kernel's log, None where it could not be read
    uid: int = -1  # of the job's user on the node


@dataclass(frozen=True)
class MemoryBlame:
    """The nodes that lost processes: ``ours`` with what ties the kill to the job, and ``others`` where nothing does."""

    ours: Mapping[str, Tie] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def losses(before: Mapping[str, MemoryKills], now: Mapping[str, MemoryKills]) -> dict[str, NodeLoss]:
    """Return the nodes that lost processes between two looks; a count that is hidden or was reset tells nothing."""
    found = {}
    for name, seen in now.items():
        old = before.get(name)
        if old is None:
            continue
        wide = seen.all - old.all if min(seen.all, old.all) >= 0 else 0
        # A user's slice is made at the first login, so it may not have been there before the job.
        narrow = seen.own - max(old.own, 0) if seen.own >= 0 and (old.own >= 0 or wide > 0) else 0
        log = None
        if seen.log is not None and old.log is not None:
            known = {one.number for one in old.log}
            log = tuple(one for one in seen.log if one.number not in known)
        count = max(wide, narrow, len(log or ()))
        if count > 0:
            found[name] = NodeLoss(count, narrow > 0, log, seen.uid)
    return found


def untold(before: Mapping[str, MemoryKills], now: Mapping[str, MemoryKills]) -> tuple[str, ...]:
    """Return the nodes of which two looks do not tell whether they lost processes."""
    return tuple(name for name, seen in now.items() if name not in before or not _compare(before[name], seen))


def _compare(old: MemoryKills, seen: MemoryKills) -> bool:
    counted = any(0 <= then <= later for then, later in ((old.all, seen.all), (old.own, seen.own)))
    return counted or (old.log is not None and seen.log is not None)


def blame(
    lost: Mapping[str, NodeLoss],
    output: str,
    names: Mapping[str, str],
    pids: Mapping[str, Collection[int]] | None = None,
) -> MemoryBlame:
    """Return which of the losses were the job's.

    ``output`` and ``names`` are those of :func:`told_of_node`. ``pids`` are those of the job's ranks, by node, as far
    as they were seen.
    """
    death = first_death(output)
    died_on = names.get(death.host, "") if death else ""
    own_fault = death is not None and death.signal in _OWN_FAULTS
    ours: dict[str, Tie] = {}
    for name, one in lost.items():
        told = _by_log(one, (pids or {}).get(name, ()))
        if told is not None:
            ours.update({name: "log"} if told else {})
        elif death is not None and died_on == name and death.signal == signal.SIGKILL:
            ours[name] = "launcher"
        elif own_fault:
            continue
        elif one.own:
            ours[name] = "group"
        elif name in _lost_workers(output, names):
            ours[name] = "worker"
        elif first_exit(output) is None and name == lost_peer(output, names):
            ours[name] = "peers"
    return MemoryBlame(ours, tuple(name for name in lost if name not in ours))


def _by_log(one: NodeLoss, pids: Collection[int]) -> bool | None:
    """Return whether the log names a process of the job; None where it does not decide."""
    if not one.log or any(kill.uid < 0 for kill in one.log):
        return None
    if any((kill.pid in pids and kill.pid > 0) or (kill.uid == one.uid != _ROOT) for kill in one.log):
        return True
    return None if any(kill.uid == one.uid for kill in one.log) and not pids else False


def _lost_workers(output: str, names: Mapping[str, str]) -> set[str]:
    """Return the nodes where a rank ended that says it has lost the worker of its data loader."""
    if not _LOST_WORKER.search(output):
        return set()
    return {names[end.host] for end in torchrun_ends(output) if end.host in names}
