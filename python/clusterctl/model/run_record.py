"""The record of a provision run: outcome per host, problems, and why each host was provisioned."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from pydantic import Field

from clusterctl.model.base import Fact, Record

HostOutcome: TypeAlias = Literal["ok", "changed", "failed", "unreachable", "not run"]


RunOutcome: TypeAlias = Literal[
    "running", "done", "nothing to do", "failed", "unreachable", "interrupted", "bad configuration", "killed"
]


class ProcessIdentity(Record):
    """What tells the process of a run from a later one with the same number, on any machine that shares a home."""

    host: str
    machine_id: str
    boot_id: str
    pid_namespace: str
    started_ticks: int  # clock ticks since the boot


class HostSummary(Record):
    """What a run did to one host."""

    host: str
    outcome: HostOutcome
    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    seconds: float = 0.0
    changes: tuple[str, ...] = ()
    failed_stage: str = ""
    failed_task: str = ""
    message: str = ""


class Problem(Record):
    """One finding that stopped a run before anything was changed."""

    host: str
    subject: str
    problem: str
    cure: str = ""
    kind: Literal["configuration", "host", "unreachable"] = "host"


class StageTiming(Fact):
    """What a stage of a run took; a stage that came several times is one entry.

    Attributes:
        stage: the words of the progress display: what the controller did, the short name of a role, or a play's name.
        wall_s: seconds by the clock.
        run: results of tasks, one per task and host.
        skipped: tasks that a host skipped.
    """

    stage: str
    wall_s: float
    run: int = 0
    skipped: int = 0


class PathStep(Record):
    """A step of the critical path: a task, short tasks of one stage in a row, or what the controller did by itself.

    Attributes:
        stage: as in :class:`StageTiming`.
        tasks: number of tasks that were joined; 1: not joined.
        task: name of the task; '' where the controller worked by itself, and of joined tasks.
        host: the host whose result came last; '' where no host had a part, and of joined tasks.
        change: the first thing that the task changed on that host.
        wall_s: seconds by the clock until the next step began.
        waited_s: seconds in which all other hosts waited for that one; 0 in a run of one host.
    """

    stage: str
    tasks: int = 1
    task: str = ""
    host: str = ""
    change: str = ""
    wall_s: float
    waited_s: float = 0.0


class CriticalPath(Record):
    """The chain of steps whose lengths add up to the wall time of a run.

    Attributes:
        steps: each step of at least 2 % of the path, in the order of the run.
        others: number of tasks in shorter steps.
        others_s: their seconds by the clock.
    """

    steps: tuple[PathStep, ...]
    others: int
    others_s: float


class RunTiming(Record):
    """Where the time of a run went: stage by stage, in total, and along the critical path."""

    stages: tuple[StageTiming, ...]
    total: StageTiming
    critical_path: CriticalPath | None = None  # None in a record of an earlier release


class RunRecord(Record):
    """The whole of a run; its schema version changes whenever a reader of an older one would be misled."""

    schema_version: Literal[1] = 1
    verb: str
    run_id: str
    argv: tuple[str, ...]
    inventory: str
    cluster_id: str
    versions: dict[str, str]
    user: str
    pid: int
    process: ProcessIdentity | None = None  # None in a record of an earlier release
    started: datetime
    finished: datetime | None = None  # of a killed run: when it was last seen
    outcome: RunOutcome = "running"
    exit_code: int | None = None
    message: str = ""
    reasons: dict[str, str] = Field(default_factory=dict)  # host → why it was provisioned
    drifted: dict[str, str] = Field(default_factory=dict)  # host → what was not as its last run had left it
    slices: tuple[int, ...] = ()  # of the artifacts' files whose content was compared, of seven
    problems: tuple[Problem, ...] = ()
    hosts: tuple[HostSummary, ...] = ()
    left_out: tuple[str, ...] = ()  # hosts that could not be reached and were skipped
    adopted: dict[str, str] = Field(default_factory=dict)  # node → the cluster from which --adopt took it over
    batches: tuple[tuple[str, ...], ...] = ()  # of a rolling run, in their order
    controllers: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # worker → the hosts that it played
    told: tuple[str, ...] = ()  # what roles decided for the whole cluster, a sentence each
    warnings: tuple[str, ...] = ()  # of roles, a sentence each
    timing: RunTiming | None = None  # with --timing
    folder: str = ""


# --- Typed events of a run: made of ansible-runner's stream, shown as progress by an observer and kept in a record ----

Outcome: TypeAlias = Literal["ok", "changed", "skipped", "failed", "unreachable"]


@dataclass(frozen=True)
class StageStarted:
    """A task began on some hosts; the stage is the role's short name, or the play's name outside roles."""

    at: float  # seconds since the epoch
    stage: str
    task: str


@dataclass(frozen=True)
class TaskStartedOnHost:
    """A host began a task; until its HostResult comes, this is what the run waits for."""

    at: float
    host: str
    stage: str
    task: str


@dataclass(frozen=True)
class HostResult:
    """One task's result on one host.

    ``changes`` are short human phrases of what changed (paths, versions). ``watch`` is what a later run compares to
    find out whether the host still is as this task left it. ``problems`` are findings of preflight.
    """

    at: float
    host: str
    stage: str
    task: str
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    changes: tuple[str, ...] = ()
    watch: tuple[dict[str, Any], ...] = ()
    diff: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    """A line of life from a long task: what a compile is at, how far a copy is."""

    at: float
    host: str
    text: str


@dataclass(frozen=True)
class Finished:
    """The playbook process ended."""

    at: float
    status: Literal["successful", "failed", "canceled", "timeout"]
    rc: int


Event: TypeAlias = StageStarted | TaskStartedOnHost | HostResult | Note | Finished


class RunObserver(Protocol):
    """Shows the run while it goes on."""

    def phase(self, text: str) -> None:
        """Hear that something begins which has no events of its own."""

    def event(self, event: Event) -> None:
        """Hear an event."""

    def stopping(self, requests: int) -> None:
        """Hear that the user asked to stop, for the first or a further time."""


PreviewT_contra = TypeVar("PreviewT_contra", contravariant=True)


class AskingObserver(RunObserver, Protocol[PreviewT_contra]):
    """Shows the run while it goes on, and asks the user."""

    def confirm(self, preview: PreviewT_contra) -> bool:
        """Let the user decide, where there is one; False ends the run with nothing changed."""
