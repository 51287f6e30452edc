"""The rows of the table at the end of a validation, and the words under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.result import Verdict

if TYPE_CHECKING:
    from clusterctl.result import ValidationRecord

_TIMES = 2  # digits after the point


@dataclass(frozen=True)
class Row:
    """One check as the table shows it; ``time`` is empty where nothing ran."""

    check: str
    verdict: Verdict
    time: str
    reason: str


def rows(record: ValidationRecord) -> tuple[Row, ...]:
    """Return one row per check, in the order in which they ran."""
    return tuple(
        Row(
            check=check.check,
            verdict=check.verdict,
            time=f"{check.seconds:.{_TIMES}f} s" if check.verdict is not Verdict.SKIP else "",
            reason=check.reason,
        )
        for check in record.checks
    )


def closing(record: ValidationRecord) -> tuple[str, ...]:
    """Return what stands under the table: the verdict in a sentence, what was left behind, and how to go on."""
    seconds = (record.finished - record.started).total_seconds()
    ranks = sum(record.slots.values())
    where = f"{ranks} ranks on {len(record.slots)} nodes, Open MPI {record.openmpi_version}, " if ranks else ""
    lines = [f"{record.verdict.value}: {where}{seconds:.1f} s."]
    bad = [check for check in record.checks if check.is_bad]
    left = [words for check in record.checks for words in check.left_behind]
    if left:
        lines.append("May still be running: " + "; ".join(dict.fromkeys(left)))
    lines += [f"What {check.check} printed: {record.folder}/{check.log}" for check in bad if check.log]
    if bad and bad[0].repeat:
        lines.append(f"See it again: {bad[0].repeat}")
    return tuple(lines)
