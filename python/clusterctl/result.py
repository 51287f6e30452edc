"""What a validation run found: frozen records with a schema version, from which every report is made."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Literal

from clusterctl.record import Record


class Verdict(str, Enum):
    """Four different words: no result at all is an ERROR, never a PASS."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    FAIL = "FAIL"
    SKIP = "SKIP"
    ERROR = "ERROR"


class RankReport(Record):
    """What one rank said of itself."""

    rank: int
    host: str
    library_version: str = ""
    library_path: str = ""


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
