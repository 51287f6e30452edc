"""How a supervised job ended: its output lines, exit status, stuck ranks and what was swept afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationError

from clusterctl.model.base import Fact, Record

Ending: TypeAlias = Literal["exited", "deadline", "stopped", "not_started", "lost"]

TIMED_OUT = 124  # the exit code of a job that its deadline ended, as timeout(1) has it
SIGNALLED = 128  # a shell and mpirun add this to a signal's number to make an exit code


def exit_code(rc: int | None, signal: int | None) -> int:
    """Return the exit code of a job, whose launcher ended with ``rc`` or by a signal."""
    return SIGNALLED + (signal or 0) if rc is None else rc


# The programs of a node cut what they tell to less; a node that tells more is not believed.
MOST_RANKS = 4096  # of a node
_Words = Annotated[str, Field(max_length=1 << 14)]
_Few = Field(default=(), max_length=256)
_OfRanks = Field(default=(), max_length=MOST_RANKS)


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
    tool: _Words
    text: _Words


# --- The processes that the kernel of a node has killed for lack of memory, as one look tells of them -----------------


class LoggedKill(Fact):
    """One kill in the kernel's log; ``pid`` and ``uid`` are -1 where they are not known."""

    number: int  # of the log's record
    pid: int = -1
    uid: int = -1
    name: _Words = ""


class MemoryKills(Fact):
    """What a node tells of such kills; a count of -1 is hidden."""

    all: int = -1  # the count of the widest control group, which other work may share
    own: int = -1  # the count of a group that only the job's user or the job's Slurm job has
    # the kills of the kernel's log, None where the job's user may not read it
    log: tuple[LoggedKill, ...] | None = Field(default=None, max_length=256)
    uid: int = -1  # of the job's user

    @classmethod
    def of(cls, told: object) -> MemoryKills:
        """Return what a node told; an answer of another form tells nothing."""
        try:
            return cls.model_validate(told)
        except ValidationError:
            return cls()


# --- A job that does not go on, or that a death ended: what was seen of its ranks, and which of them are the cause ----

StallCause: TypeAlias = Literal[
    "silent node",
    "dead rank",
    "stopped rank",
    "ended program",
    "file",
    "lock",
    "idle",
    "behind",
    "network",
    "elsewhere",
    "other call",
    "killed rank",  # this and the next three end a job
    "lack of memory",
    "lost rank",
    "launcher",
    "not known",
]


class RankState(Fact):
    """What /proc told of a rank: times in seconds since its start, bytes since its start."""

    pid: int
    rank: int
    state: _Words  # a letter of proc_pid_stat(5)
    cpu_s: float
    system_s: float = 0.0  # of that, in the kernel
    wanted_s: float = -1.0  # all of its threads ran or waited for a core; -1 where the kernel does not count it
    moved_bytes: int
    command: _Words = ""
    file: _Words = ""  # that a system call waits for, with the type of its file system
    lock: _Words = ""  # the file for whose lock it waits, with the type of its file system
    lock_pid: int = 0  # the process of the node that holds it; 0 where that is unknown
    lock_program: _Words = ""
    full: tuple[_Words, ...] = _Few  # mount points of full file systems that it uses
    silent_peers: tuple[_Words, ...] = _OfRanks  # addresses that do not acknowledge what was sent


class FlightGroup(Fact):
    """How far a rank is in a process group of PyTorch: its last call, and the first one that has not ended (or -1)."""

    group: _Words
    meaning: _Words = ""
    last: int
    last_call: _Words = ""
    waits: int = -1
    call: _Words = ""
    sizes: _Words = ""  # of the tensors, where they have to be the same on all ranks
    peers: tuple[int, ...] = _OfRanks  # from which this rank receives, in any group, before it goes on to a collective


class FlightLook(Fact):
    """What PyTorch's flight recorder wrote of a rank ``age_s`` seconds ago; ``problem`` says why it is not readable."""

    rank: int
    age_s: float
    groups: tuple[FlightGroup, ...] = _Few
    problem: _Words = ""


class NodeLook(Fact):
    """One look at the ranks on a node; ``problem`` says why there is none, and ``silent`` that nobody answered there.

    ``at`` is by the node's steady clock. ``expected`` are the ranks that torchrun has started there.
    """

    host: str
    at: float = 0.0
    ranks: tuple[RankState, ...] = _OfRanks
    expected: tuple[int, ...] = _OfRanks
    stacks: tuple[Stack, ...] = _OfRanks
    flights: tuple[FlightLook, ...] = _OfRanks
    ras: tuple[_Words, ...] = _Few  # what NCCL's RAS says of the job, in lines
    memory: MemoryKills = MemoryKills()
    problem: str = ""
    silent: bool = False


class NodeKills(Record):
    """How many processes the kernel of a node killed for lack of memory while a job ran.

    ``tie`` is what shows that they were the job's, empty without. ``log`` has the kills of the kernel's log.
    """

    host: str
    count: int
    tie: Literal["log", "group", "launcher", "worker", "peers", ""] = ""
    log: tuple[LoggedKill, ...] = ()


class StallVerdict(Record):
    """Who keeps a job from going on, or who ended it; without hosts it is not known."""

    cause: StallCause
    sentence: str
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


class StallRecord(Record):
    """Everything that was seen when a job did not go on or a death ended it; a file in the state folder."""

    schema_version: Literal[1] = 1
    job: str
    at: datetime
    silent_s: float  # seconds without output when it was noticed; 0 where the job has ended
    named_s: float  # seconds from then, or from the end of the job, until the cause was named
    verdict: StallVerdict
    facts: tuple[str, ...] = ()  # of the suspects' hardware, a sentence each
    looks: tuple[NodeLook, ...] = ()
    kills: tuple[NodeKills, ...] = ()  # of a job that has ended
    output: tuple[str, ...] = ()  # the last lines of a job that has ended
