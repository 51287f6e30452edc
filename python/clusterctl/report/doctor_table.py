"""What doctor's findings are shown as: rows of a table, closing lines, and a script of cures; no I/O."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model import nodeset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.findings import Diagnosis, Finding
    from clusterctl.model.hosts import Host


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


_HEAD = "#!/bin/sh\n# Cures of 'clusterctl doctor'. Read each command before you run it.\n"


def script(found: Diagnosis, hosts: Mapping[str, Host]) -> str:
    """Return the script; a finding that no command cures is a comment.

    Args:
        found: what doctor said.
        hosts: the hosts of the inventory by name.
    """
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
