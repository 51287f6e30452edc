"""How a supervised job ended: its output lines, exit status, stuck ranks and what was swept afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from clusterctl.model.base import Record

Ending: TypeAlias = Literal["exited", "deadline", "stopped", "not_started", "lost"]


@dataclass(frozen=True)
class OutputLine:
    """One line of the command's output, ``at_s`` seconds after its start."""

    stream: str
    at_s: float
    text: str


@dataclass(frozen=True)
class Sweep:
    """What a sweep found on one node.

    ``killed`` and ``left`` are command lines; ``problem`` says why the node could not be swept.
    """

    host: str
    killed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    ``rc`` is None when a ``signal`` ended it or it did not end; ``problem`` says why it was never started or was lost.
    Its end was begun at ``ending_s`` and was over at ``seconds``, both counted from its start.
    """

    ending: Ending
    seconds: float
    ending_s: float = 0.0
    rc: int | None = None
    signal: int | None = None
    argv: tuple[str, ...] = ()
    lines: tuple[OutputLine, ...] = ()
    problem: str = ""
    sweeps: tuple[Sweep, ...] = ()
    stacks: tuple[Stack, ...] = ()  # of the ranks that were there at the deadline, where they were asked for


class Stack(Record):
    """Where a stuck rank was; ``tool`` took it (``py-spy``, ``gdb`` or ``kernel``)."""

    host: str
    pid: int
    rank: int | None = None
    tool: str
    text: str
