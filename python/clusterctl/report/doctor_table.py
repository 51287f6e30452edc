"""The table of doctor: its rows, and the lines under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model import nodeset

if TYPE_CHECKING:
    from clusterctl.model.findings import Diagnosis, Finding


@dataclass(frozen=True)
class DoctorRow:
    """One finding as a row; ``nodes`` is folded, node[1-3]."""

    severity: str
    check: str
    nodes: str
    cause: str
    cure: str


def rows(found: Diagnosis) -> tuple[DoctorRow, ...]:
    """Return one row per finding, worst first."""
    return tuple(
        DoctorRow(one.severity.upper(), one.check, nodeset.folded(one.hosts), _cause(one), one.cure)
        for one in found.findings
    )


def _cause(found: Finding) -> str:
    """Return the cause, and on a line of its own where the limit or the meaning is written down."""
    return f"{found.cause}\nsource: {found.source}" if found.source else found.cause


def closing(found: Diagnosis) -> tuple[str, ...]:
    """Return the lines under the table: what was not examined, and the counts."""
    seconds = (found.finished - found.started).total_seconds()
    errors = len([one for one in found.findings if one.severity == "error"])
    warnings = len(found.findings) - errors
    counts = [_count(number, word) for number, word in ((errors, "error"), (warnings, "warning")) if number]
    words = " and ".join(counts) or "nothing wrong was found"
    hosts = _count(len(found.hosts), "host")
    seen = len(found.hosts) - len(found.unreachable)
    reached = hosts if seen == len(found.hosts) else f"{hosts}, {seen} of them within reach"
    return (*(f"Note: {note}" for note in found.notes), f"{reached}: {words} ({seconds:.1f} s).")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
