"""What doctor's findings and a validation are on the terminal: rows of a table, and the lines around it; no I/O."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.results import Verdict
from clusterctl.report import what_to_do

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.findings import Diagnosis, Finding
    from clusterctl.model.hosts import Host
    from clusterctl.model.results import CheckResult, ValidationRecord


@dataclass(frozen=True)
class DoctorRow:
    """One finding as a row; ``nodes`` is folded, node[1-3]."""

    severity: str
    check: str
    nodes: str
    cause: str
    cure: str


def doctor_rows(found: Diagnosis) -> tuple[DoctorRow, ...]:
    """Return one row per finding, worst first."""
    return tuple(
        DoctorRow(one.severity.upper(), one.check, nodeset.folded(one.hosts), _cause(one), one.cure)
        for one in found.findings
    )


def _cause(found: Finding) -> str:
    """Return the cause, and on a line of its own where the limit or the meaning is written down."""
    return f"{found.cause}\nsource: {found.source}" if found.source else found.cause


def doctor_closing(found: Diagnosis) -> tuple[str, ...]:
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


_HEAD = "#!/bin/sh\n# Cures of 'clusterctl doctor'. Read each command before you run it.\n"


def fix_script(found: Diagnosis, hosts: Mapping[str, Host]) -> str:
    """Return the script; a finding that no command cures is a comment."""
    lines = [_HEAD]
    for finding in found.findings:
        lines.append(_comment(f"{', '.join(finding.hosts)}: {finding.cause}"))
        if finding.fix:
            lines += [f"{shlex.join(words)}" for words in _commands(finding, hosts)]
        else:
            lines.append(_comment(f"by hand: {finding.cure}"))
    return "\n".join([*lines, ""])


def _commands(finding: Finding, hosts: Mapping[str, Host]) -> Sequence[Sequence[str]]:
    found: list[list[str]] = []
    for name in finding.hosts:
        host = hosts.get(name)
        if host is None:
            continue
        sudo = [] if host.user == "root" else ["sudo"]
        login = ["ssh", *host.login_words, host.address, "--"]
        found += [[*login, shlex.join([*sudo, *command])] for command in finding.fix]
    return found


def _comment(text: str) -> str:
    """Return a comment of one line, whatever a node put into the text."""
    return "# " + "".join(sign if sign.isprintable() else "?" for sign in text)


# --- A validation on the terminal: what to do, the rows of the table, and the next step -------------------------------

_TIMES = 2  # digits after the point
_MOST = 10  # actions; the page shows all
_MOST_MORE = 3


@dataclass(frozen=True)
class ValidationRow:
    """One check as a row; ``time`` is empty for a check that did not run."""

    check: str
    verdict: Verdict
    time: str
    reason: str


def validation_opening(record: ValidationRecord) -> tuple[str, ...]:
    """Return the lines above the table: actions, figures that miss their reference, searches, next steps."""
    lines = []
    todo = [
        one for one in what_to_do.of(record) if one.kind != "check"
    ]  # a check without a culprit is a row of the table
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


def validation_rows(record: ValidationRecord) -> tuple[ValidationRow, ...]:
    """Return one row per check, in the order in which they ran."""
    return tuple(map(validation_row, record.checks))


def validation_row(check: CheckResult) -> ValidationRow:
    """Return the row of a check."""
    return ValidationRow(
        check=check.check,
        verdict=check.verdict,
        time=f"{check.seconds:.{_TIMES}f} s" if check.verdict is not Verdict.SKIP else "",
        reason=check.reason,
    )


def validation_closing(record: ValidationRecord) -> tuple[str, ...]:
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
