"""A job that does not go on, or that a death ended: what was seen of its ranks, and which of them are the cause."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from clusterctl.model.base import Fact, Record
from clusterctl.model.job_outcome import Stack
from clusterctl.model.memory_kills import LoggedKill, MemoryKills

StallCause: TypeAlias = Literal[
    "silent node",
    "dead rank",
    "stopped rank",
    "ended program",
    "file",
    "behind",
    "network",
    "elsewhere",
    "other call",
    "killed rank",  # this and the next two end a job
    "lack of memory",
    "lost rank",
    "not known",
]


class RankState(Fact):
    """What /proc told of a rank: times in seconds since its start, bytes since its start."""

    pid: int
    rank: int
    state: str  # a letter of proc_pid_stat(5)
    cpu_s: float
    moved_bytes: int
    command: str = ""
    file: str = ""  # that a system call waits for, with the type of its file system
    silent_peers: tuple[str, ...] = ()  # addresses that do not acknowledge what was sent


class FlightGroup(Fact):
    """How far a rank is in a process group of PyTorch: its last call, and the first one that has not ended (or -1)."""

    group: str
    meaning: str = ""
    last: int
    last_call: str = ""
    waits: int = -1
    call: str = ""
    sizes: str = ""  # of the tensors, where they have to be the same on all ranks


class FlightLook(Fact):
    """What PyTorch's flight recorder wrote of a rank ``age_s`` seconds ago; ``problem`` says why it is not readable."""

    rank: int
    age_s: float
    groups: tuple[FlightGroup, ...] = ()
    problem: str = ""


class NodeLook(Fact):
    """One look at the ranks on a node; ``problem`` says why there is none, and ``silent`` that nobody answered there.

    ``at`` is by the node's steady clock. ``expected`` are the ranks that torchrun has started there.
    """

    host: str
    at: float = 0.0
    ranks: tuple[RankState, ...] = ()
    expected: tuple[int, ...] = ()
    stacks: tuple[Stack, ...] = ()
    flights: tuple[FlightLook, ...] = ()
    ras: tuple[str, ...] = ()  # what NCCL's RAS says of the job, in lines
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
