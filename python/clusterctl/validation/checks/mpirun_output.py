"""Reading what mpirun itself says of a job that went wrong: the dead rank, the signal and the cause."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.model.job_outcome import JobOutcome

_MOST_LINES = 4
_MOST_WORDS = 300
_SIGNALLED = 128  # a shell and mpirun add this to a signal's number to make an exit code
# What mpirun of both series says of a rank that a signal ended.
_DIED = re.compile(
    r"process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) (?P<how>exited on signal[^.]{0,200})\."
)
# mpirun 5.0 loses that message where a rank ends while others start. With this parameter its error manager tells each
# process that ends badly as it hears of it: process 8 of job 1 is rank 8, the processes of job 0 are the daemons.
ENDS_ARE_TOLD = {"errmgr_base_verbose": "1"}
_END = re.compile(
    r"errmgr:dvm: for proc \[\S+@(?P<job>\d{1,9}),(?P<process>\d{1,9})\] state (?P<state>[A-Z-]+(?: [A-Z-]+)*)"
)
_BY_SIGNAL, _BY_CODE, _BY_MPIRUN = "ABORTED BY SIGNAL", "EXITED WITH NON-ZERO STATUS", "KILLED BY INTERNAL COMMAND"
_NOISE = re.compile(
    r"^[-=*\s]*$|setpgid\(|more processes? (has|have) sent help message|Set MCA parameter \"orte_base_help_aggregate"
    r"|^Warning: Permanently added|help-aggregate"
    rf"|errmgr:dvm: for proc \S+ state (?:COMMUNICATION FAILURE|{_BY_MPIRUN})",
)


@dataclass(frozen=True)
class ProcessEnd:
    """The process whose end made mpirun end the job.

    Attributes:
        process: its number in hostfile order, from 0.
        how: "exited on signal 11 (Segmentation fault)", "was ended by SIGSEGV".
        by_signal: whether a signal ended it.
        line: the line of output that says so.
        host: as mpirun names it; empty where mpirun names only the process.
    """

    process: int
    how: str
    by_signal: bool
    line: str
    host: str = ""


def first_end(lines: Sequence[str], outcome: JobOutcome) -> ProcessEnd | None:
    """Return the first process that ended badly: from mpirun's message, else from :data:`ENDS_ARE_TOLD`.

    None where mpirun tells none, where it was another fault than the end of the process, or where mpirun lost a daemon
    before: the processes of that node end in consequence.
    """
    died = _DIED.search(" ".join(lines))
    if died is not None:
        return ProcessEnd(int(died["rank"]), died["how"], by_signal=True, line=died[0], host=died["host"])
    for line in lines:
        match = _END.search(line)
        if match is None or match["state"] == _BY_MPIRUN:
            continue
        if match["job"] == "0" or match["state"] not in {_BY_SIGNAL, _BY_CODE}:
            return None
        by_signal = match["state"] == _BY_SIGNAL
        how = f"was ended by {ending_signal(outcome) or 'a signal'}" if by_signal else f"ended with {code(outcome)}"
        return ProcessEnd(int(match["process"]), how, by_signal=by_signal, line=line)
    return None


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
