"""Read the end of a job's output: which rank a signal ended, and which node ranks of others have lost."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MPIRUN = re.compile(
    r"process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<by>\d{1,9})\b"
)
# torchrun's words about the worker of its node that ended first.
_TORCHRUN = re.compile(
    r"Root Cause[^\n]*\n(?:[^\n]*\n){1,6}?(?:[^\S\n]*host\s*: (?P<host>\S+)[^\n]*\n)?"
    r"[^\S\n]*rank\s*: (?P<rank>\d{1,9}) [^\n]*\n"
    r"[^\S\n]*exitcode\s*: (?P<code>-?\d{1,9}) [^\n]*?(?:\((?P<signal>SIG\w+)\))?\s*\n"
)
_EXITED = re.compile(
    r"The first process to do so was: Process name: \[\S+,(?P<rank>\d{1,9})\] Exit code: (?P<code>\d{1,3})\b"
)
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


def lost_peers(output: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the peers that ranks say they have lost, in the order of the output.

    When the launcher ends the others, they lose each other too. Under load, such words may come first.

    Args:
        output: the end of the job's output.
        names: the node of each name and address that the output may use.
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
