"""What a validation run found: frozen records with a schema version, from which every report is made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field

from clusterctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


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

    ``rc`` is None when a ``signal`` or nobody ended it; ``problem`` says why it was never started or was lost. Its end
    was begun at ``ending_s`` and was over at ``seconds``, both counted from its start.
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


class Verdict(str, Enum):
    """Four different words: no result at all is an ERROR, never a PASS."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    FAIL = "FAIL"
    SKIP = "SKIP"
    ERROR = "ERROR"


class WrongAnswer(Record):
    """One answer that was not the known one."""

    what: str
    expected: str
    got: str


class RankReport(Record):
    """What one rank said of itself; ``host`` is the inventory's name of its node.

    ``state`` is the last sign of life: ``absent`` (not even started), ``started`` (nothing since), ``waiting`` (alive,
    busy with ``step``) or ``answered``. It came ``seen_s`` seconds after the start of the job. ``libraries`` are the
    mapped files of other libraries than MPI's, ``facts`` what they say of themselves, ``figures`` what was measured
    (the name of each ends in its unit).
    """

    rank: int
    host: str
    state: Literal["absent", "started", "waiting", "answered"] = "answered"
    ok: bool = True
    library_version: str = ""
    library_path: str = ""
    seconds: float = 0.0
    compared: int = 0
    wrong: int = 0
    problems: tuple[WrongAnswer, ...] = ()
    libraries: dict[str, str] = Field(default_factory=dict)
    facts: dict[str, str] = Field(default_factory=dict)
    figures: dict[str, float] = Field(default_factory=dict)
    step: str = ""
    seen_s: float = 0.0


class Measurement(Record):
    """A figure with its unit; figures are reported here and judged by references elsewhere."""

    name: str
    value: float
    unit: Literal["s", "us", "B/s", "ranks", "nodes", "GPUs", "1"]


class CheckResult(Record):
    """One check's verdict with the evidence beside it."""

    check: str
    verdict: Verdict
    reason: str
    hosts: tuple[str, ...] = ()  # whom the reason names; empty when it is about all
    seconds: float = 0.0
    deadline_s: float = 0.0
    command: tuple[str, ...] = ()  # argv on the launch node
    repeat: str = ""  # what to paste on the controller to see it again
    left_out: dict[str, str] = Field(default_factory=dict)  # nodes that could not take part, each with the reason
    ranks: tuple[RankReport, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    log: str = ""  # path of the raw output, relative to the run's folder
    evidence: tuple[str, ...] = ()  # the lines that show it; empty on PASS
    left_behind: tuple[str, ...] = ()  # "host: process" that could not be ended, or "host: why nobody could look"

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look at it."""
        return self.verdict in {Verdict.FAIL, Verdict.ERROR}


@dataclass(frozen=True)
class CheckStarted:
    """A check began; its result comes within the deadline."""

    check: str
    number: int
    total: int
    deadline_s: float


@dataclass(frozen=True)
class CheckProgress:
    """A sign of life within a check."""

    check: str
    text: str


@dataclass(frozen=True)
class CheckFinished:
    """A check has its verdict."""

    result: CheckResult


ValidationEvent: TypeAlias = CheckStarted | CheckProgress | CheckFinished


class ValidationRecord(Record):
    """A whole validation run."""

    schema_version: Literal[1] = 1
    clusterctl_version: str
    run_id: str
    inventory: str
    started: datetime
    finished: datetime
    launch_node: str
    hosts: tuple[str, ...]
    slots: dict[str, int]
    openmpi_version: str = ""
    folder: str = ""  # where the record and the logs lie
    verdict: Verdict
    checks: tuple[CheckResult, ...]


def worst(checks: Iterable[CheckResult]) -> Verdict:
    """Return the verdict of a whole: FAIL over ERROR over PASS; SKIP only where everything was skipped.

    No result at all is an ERROR.
    """
    found = {check.verdict for check in checks}
    for verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.PASS, Verdict.SKIP):
        if verdict in found:
            return verdict
    return Verdict.ERROR
