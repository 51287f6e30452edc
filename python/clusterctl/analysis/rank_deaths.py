"""Read the end of a job's output: which rank a signal ended, as mpirun or torchrun tells it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

_MPIRUN = re.compile(
    r"process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<by>\d+)"
)
_TORCHRUN = re.compile(
    r"Root Cause[^\n]*\n(?:[^\n]*\n){1,6}?\s*host\s*: (?P<host>\S+)[^\n]*\n\s*rank\s*: (?P<rank>\d+) [^\n]*\n"
    r"\s*exitcode\s*: -(?P<by>\d+) "
)


@dataclass(frozen=True)
class RankDeath:
    """A rank that a signal ended, and the node as the launcher names it."""

    rank: int
    host: str
    signal: int

    @property
    def words(self) -> str:
        """How it ended, such as ``was killed by SIGKILL``."""
        names = {known.value: known.name for known in signal.Signals}
        return f"was ended by {names.get(self.signal, f'signal {self.signal}')}"


def first_death(output: str) -> RankDeath | None:
    """Return the rank whose death ended the job; None where the launcher tells of none."""
    for pattern in (_TORCHRUN, _MPIRUN):
        text = output if pattern is _TORCHRUN else " ".join(output.split())
        if found := pattern.search(text):
            return RankDeath(int(found["rank"]), found["host"], int(found["by"]))
    return None
