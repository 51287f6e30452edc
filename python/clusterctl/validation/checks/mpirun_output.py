"""Reading what mpirun itself says of a job that went wrong: the dead rank, the signal and the cause."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.model.job_outcome import JobOutcome

_MOST_LINES = 4
_MOST_WORDS = 300
_SIGNALLED = 128  # a shell and mpirun add this to a signal's number to make an exit code
# What mpirun of both series says of a rank that a signal ended.
_DIED = re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) (?P<how>exited on signal[^.]*)\.")
_NOISE = re.compile(
    r"^[-=*\s]*$|setpgid\(|more processes? (has|have) sent help message|Set MCA parameter \"orte_base_help_aggregate"
    r"|^Warning: Permanently added|help-aggregate",
)


def death(lines: Iterable[str]) -> re.Match[str] | None:
    """Return the ``rank`` that a signal ended, its ``host`` and ``how``, None where mpirun reports no such rank."""
    return _DIED.search(" ".join(lines))


def code(outcome: JobOutcome) -> str:
    """Return mpirun's exit code in words: ``code 139 (SIGSEGV)``, ``code 1`` or ``a signal``."""
    if outcome.rc is None:
        return "a signal"
    name = ending_signal(outcome)
    return f"code {outcome.rc} ({name})" if name else f"code {outcome.rc}"


def ending_signal(outcome: JobOutcome) -> str:
    """Return the name of the signal that ended a rank, empty where mpirun's exit code holds none."""
    return {_SIGNALLED + known: known.name for known in signal.Signals}.get(outcome.rc or 0, "")


def with_cause(reason: str, lines: Sequence[str]) -> str:
    """Return the reason and the cause that mpirun gives; its help messages begin with the cause."""
    text = " ".join(" ".join(without_noise(lines)[:_MOST_LINES]).split())
    if not text:
        return reason
    return f"{reason}: {text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 3] + '...'}"


def without_noise(lines: Iterable[str]) -> list[str]:
    """Return the lines that say something about this job."""
    return [line for line in lines if not _NOISE.search(line)]
