"""A validation on the terminal: what to do, the rows of the table, and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.results import Verdict
from clusterctl.report import actions

if TYPE_CHECKING:
    from clusterctl.model.results import CheckResult, ValidationRecord

_TIMES = 2  # digits after the point
_MOST = 10  # actions; the page shows all
_MOST_MORE = 3


@dataclass(frozen=True)
class Row:
    """One check as a row; ``time`` is empty for a check that did not run."""

    check: str
    verdict: Verdict
    time: str
    reason: str


def opening(record: ValidationRecord) -> tuple[str, ...]:
    """Return the lines above the table: actions, figures that miss their reference, searches, next steps."""
    lines = []
    todo = [one for one in actions.of(record) if one.kind != "check"]  # a check without a culprit is a row of the table
    if todo:
        lines.append("What to do:")
    for number, one in enumerate(todo[:_MOST], start=1):
        lines.append(f"  {number}. {one.words}" + (f" (since {one.since:%Y-%m-%d %H:%M})" if one.since else ""))
        lines += [f"     {words}" for words in one.more[:_MOST_MORE]]
        if len(one.more) > _MOST_MORE:
            lines.append(f"     and {len(one.more) - _MOST_MORE} more figures of the same")
        lines.append(f"     {one.advice}")
        if one.repeat:
            lines.append(f"     See it again: {one.repeat}")
    if len(todo) > _MOST:
        rest = sorted({host for one in todo[_MOST:] for host in one.hosts})
        lines.append(f"  and {len(todo) - _MOST} more, about {nodeset.folded(rest)}")
    failed = [one.words for check in record.checks for one in check.comparisons if one.verdict is Verdict.FAIL]
    if failed:
        lines.append("Out of bounds:")
        lines += [f"  {words}" for words in failed[:_MOST]]
        lines += [f"  and {len(failed) - _MOST} more"] if len(failed) > _MOST else []
    lines += [line for check in record.checks for line in _search(check)]
    unknown = [check for check in record.checks if check.is_bad and not check.named]
    lines += [f"Culprit of {check.check}: {check.named_words}" for check in unknown]
    return tuple(lines)


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
    """Return the lines under the table: the verdict in a sentence, processes left behind, and the next step."""
    seconds = (record.finished - record.started).total_seconds()
    ranks = sum(record.slots.values())
    where = f"{ranks} ranks on {len(record.slots)} nodes, Open MPI {record.openmpi_version}, " if ranks else ""
    lines = [f"{record.verdict.value}: {where}{seconds:.1f} s."]
    bad = [check for check in record.checks if check.is_bad]
    left = [words for check in record.checks for words in check.left_behind]
    if left:
        lines.append("May still be running: " + "; ".join(dict.fromkeys(left)))
    lines += [f"Note: {note}" for note in record.notes]
    lines += [f"What {check.check} printed: {record.folder}/{check.log}" for check in bad if check.log]
    if bad and bad[0].repeat:
        lines.append(f"See it again: {bad[0].repeat}")
    return tuple(lines)


def _search(check: CheckResult) -> list[str]:
    if check.search is None:
        return []
    return [f"Search after {check.check}: {check.search.words} ({len(check.search.launches)} launches)"]
