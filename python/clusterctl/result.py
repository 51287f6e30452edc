"""What a validation run found: frozen records with a schema version, from which every report is made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Literal, TypeAlias

from clusterctl.record import Record


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
    busy with ``step``) or ``answered``.
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
    step: str = ""


class Measurement(Record):
    """A figure with its unit; figures are reported here and judged by references elsewhere."""

    name: str
    value: float
    unit: Literal["s", "us", "B/s", "ranks", "nodes", "1"]


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
    ranks: tuple[RankReport, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    log: str = ""  # path of the raw output, relative to the run's folder
    evidence: tuple[str, ...] = ()  # the lines that show it; empty on PASS
    left_behind: tuple[str, ...] = ()  # "host: process" that could not be ended, or "host: why nobody could look"


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
    checks: tuple[CheckResult, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all checks: FAIL over ERROR over PASS; SKIP only where everything was skipped."""
        found = {check.verdict for check in self.checks}
        for worst in (Verdict.FAIL, Verdict.ERROR, Verdict.PASS, Verdict.SKIP):
            if worst in found:
                return worst
        return Verdict.ERROR
