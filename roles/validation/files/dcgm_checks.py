"""Run NVIDIA's own diagnostics, ``dcgmi diag``, on every node, and report each test that fails.

mpirun starts one process per node; MPI is not used. ``rank_program.py`` explains the lines that they print. The facts
of a node are ``dcgm`` (``absent``, ``no_answer`` or ``ran``), ``dcgm_why``, ``dcgm_counts``, ``dcgm_version`` and
``dcgm_warnings``. dcgmi asks the host engine (``nv-hostengine``), which does the tests. Its exit code is not read,
since settings alone make it differ from 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator, NamedTuple, Sequence

import rank_program

# Run ``dcgmi diag`` and read its JSON, in the forms of DCGM 2 to 4.
#
# DCGM's reference of ``dcgmi diag`` says that this JSON has no published stable form. Known are:
#
# * DCGM 2 and 3: ``{"DCGM GPU Diagnostic": {"test_categories": [{"category", "tests": [{"name", "results":
#   [{"gpu_ids" or "gpu_id", "status", "warnings", "info"}]}]}], "version"}}``, as ``nvvs/include/NvvsCommon.h`` of
#   NVIDIA/DCGM describes it; an entry may be null (its test of "real output"), and text may come before it.
# * DCGM 4: ``{"DCGM Diagnostic": {...}, "metadata": {"version", ...}, "entity_groups": [...]}``. A result has
#   ``entity_group`` and ``entity_id``. A test has a ``test_summary``. A warning has ``error_id`` and ``error_severity``
#   (its test suite, ``testing/python3/tests/test_dcgm_diag.py``; facebookresearch/gcm, pull request 38).
#
# So a status counts wherever it stands below a name. It needs the standard library only, and Python 3.9 or newer.

PROGRAM = "dcgmi"
POLL_S, END_S = 0.05, 2.0
MOST_BYTES = 1 << 23  # of an answer; that of eight GPUs is some ten kilobytes
MOST_WORDS = 300
NOT_TESTS = ("warnings", "info", "metadata", "entity_groups")
# DCGM's reference, "Diagnostic Errors", "Error Severity Enum".
SEVERITIES = {
    1: "watch it",
    2: "isolate the node",
    4: "triage it",
    5: "a setting, not the hardware",
    6: "reset the GPU",
}


class Outcome(NamedTuple):
    """What came of one test on one GPU, or on all; ``status`` is in lower case, ``words`` are DCGM's warnings."""

    test: str
    status: str
    place: str = ""
    words: str = ""
    severity: int = 0

    @property
    def failed(self) -> bool:
        return self.status.startswith("fail")

    @property
    def told(self) -> str:
        """The warnings, with what DCGM advises by their severity."""
        advice = SEVERITIES.get(self.severity, "")
        return f"{self.words or 'no reason was given'}{f' (DCGM: {advice})' if advice else ''}"


class Report(NamedTuple):
    """What ``dcgmi diag`` said."""

    outcomes: tuple[Outcome, ...]
    version: str = ""

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if one.failed)

    @property
    def warned(self) -> tuple[Outcome, ...]:
        """The tests that passed with a warning."""
        return tuple(one for one in self.outcomes if one.status.startswith("warn"))

    @property
    def passed(self) -> int:
        return sum(1 for one in self.outcomes if one.status == "pass")

    @property
    def counts(self) -> str:
        """The numbers in words: '9 tests passed, 2 did not run'."""
        rest = len(self.outcomes) - self.passed - len(self.failed) - len(self.warned)
        words = f"{self.passed} tests passed"
        words += f", {len(self.warned)} with a warning" if self.warned else ""
        return f"{words}, {rest} did not run" if rest else words


class Answer(NamedTuple):
    """What the program printed, how it ended (None: it was ended at the deadline), and how long it took."""

    output: str
    code: int | None
    seconds: float


def read_answer(answer: Answer) -> Report:
    """Return what the program said.

    Raises:
        ValueError: it did not end, or it is not a diagnosis; the message says why.
    """
    if answer.code is None:
        raise ValueError(f"it did not end within {answer.seconds:.0f} s, or did not stop printing")
    try:
        return read(answer.output)
    except ValueError as problem:
        raise ValueError(f"{problem} (code {answer.code})") from problem


def read(output: str) -> Report:
    """Return what the output says.

    Raises:
        ValueError: it is not a diagnosis; the message says why.
    """
    begin = output.find("{")
    if begin < 0:
        raise ValueError(first_line(output) or "it printed nothing")
    try:
        found, _end = json.JSONDecoder().raw_decode(output[begin:])
        outcomes = tuple(outcomes_of(found, ""))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"not JSON: {first_line(output)}") from problem
    error = next(strings_of(found, ("runtime_error", "error")), "")
    if not outcomes:
        raise ValueError(error or f"no test in it: {first_line(output)}")
    version = next(strings_of(found, ("version",)), "")
    if error and not any(one.failed for one in outcomes):
        raise ValueError(error)
    return Report(outcomes, version)


def outcomes_of(value: Any, name: str) -> Iterator[Outcome]:
    """Yield each status below a value, with the name of the nearest test; a summary only where it tells more."""
    if isinstance(value, list):
        for one in value:
            yield from outcomes_of(one, name)
        return
    if not isinstance(value, dict):
        return
    name = str(value.get("name") or name)
    if isinstance(value.get("status"), str):
        words, severity = warnings_of(value.get("warnings"))
        yield Outcome(name[:MOST_WORDS], value["status"].strip().lower(), place_of(value), words, severity)
    below = [
        found
        for key, one in value.items()
        if key not in NOT_TESTS and key != "test_summary"
        for found in outcomes_of(one, name)
    ]
    yield from below
    summary = list(outcomes_of(value.get("test_summary"), name))
    if not below or (any(one.failed for one in summary) and not any(one.failed for one in below)):
        yield from summary


def place_of(result: dict[str, Any]) -> str:
    """Return the GPU, or another entity of DCGM, that a result is about; '' for all of them."""
    if "entity_id" in result:
        return f"{result.get('entity_group') or 'entity'} {result['entity_id']}"
    gpus = result.get("gpu_ids", result.get("gpu_id"))
    return f"GPU {gpus}" if gpus is not None else ""


def warnings_of(value: Any) -> tuple[str, int]:
    """Return warnings as one line, and the highest severity among them."""
    words, severity = [], 0
    for one in value if isinstance(value, list) else [value]:
        text = one.get("warning") if isinstance(one, dict) else one
        words += [" ".join(str(text).split())] if text else []
        given = one.get("error_severity") if isinstance(one, dict) else 0
        severity = max(severity, given) if isinstance(given, int) and not isinstance(given, bool) else severity
    return "; ".join(words)[:MOST_WORDS], severity


def strings_of(value: Any, names: Sequence[str]) -> Iterator[str]:
    """Yield the texts of these names that stand at the top or one level below it."""
    for one in (value, *(value.values() if isinstance(value, dict) else ())):
        if isinstance(one, dict):
            yield from (one[name] for name in names if isinstance(one.get(name), str) and one[name].strip())


def first_line(text: str) -> str:
    """Return the first line with words, cut to what a sentence bears."""
    return next((line.strip()[:MOST_WORDS] for line in text.splitlines() if line.strip()), "")


def command(program: str, level: int) -> tuple[str, ...]:
    """Return the argv of a diagnosis of all GPUs at a level (1 takes seconds, 2 minutes, 3 a quarter of an hour)."""
    return (program, "diag", "-r", str(level), "-j")


def run(argv: Sequence[str], limit_s: float) -> Answer:
    """Run it, and end it after so many seconds, or when it prints without an end.

    Raises:
        OSError: it cannot be started.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as paper:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=paper, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None and time.monotonic() - began < limit_s:
                if os.fstat(paper.fileno()).st_size > MOST_BYTES:
                    break
                time.sleep(POLL_S)
            ended_itself = process.returncode is not None
        finally:
            end(process)
        text = os.pread(paper.fileno(), MOST_BYTES, 0).decode("utf-8", "replace")
    return Answer(text, process.returncode if ended_itself else None, time.monotonic() - began)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it has started, politely first."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)


CHECK = "dcgm"
SHARE = 0.85  # of the deadline, for dcgmi


def diagnose(rank: rank_program.Rank) -> None:
    """Run it where it is installed."""
    rank.findings.compared += 1  # the node answered; the facts say what it knows
    program = shutil.which(PROGRAM)
    if not program:
        rank.facts["dcgm"] = "absent"
        return
    level, limit_s = rank.arguments.level, SHARE * rank.arguments.deadline
    rank.doing(f"dcgmi diag, level {level}")
    answer = run(command(program, level), limit_s)
    rank.figures["dcgm_s"] = round(answer.seconds, 3)
    try:
        report = read_answer(answer)
    except ValueError as problem:
        rank.facts.update(dcgm="no_answer", dcgm_why=str(problem))
        return
    rank.facts.update(dcgm="ran", dcgm_counts=report.counts, dcgm_version=report.version)
    rank.facts["dcgm_warnings"] = "; ".join(f"{one.test} {one.place}: {one.words}" for one in report.warned)
    rank.findings.compared += report.passed
    for one in report.failed:
        where = f" on {one.place}" if one.place else ""
        rank.findings.note(f"DCGM's test {one.test}{where}", "Pass", one.told)


def work(rank: rank_program.Rank) -> int:
    """Report; the code is 0 in any case, since mpirun would end the other nodes with an error."""
    rank.libraries = ()
    rank.begin()
    rank.attempt(lambda: diagnose(rank))
    return 0


def main() -> int:
    """Say that this rank is up, then diagnose."""
    parser = rank_program.parser("Run dcgmi diag. Started by mpirun, one process a node.", [CHECK])
    parser.add_argument("--level", type=int, choices=(1, 2, 3, 4), default=1, help="of dcgmi diag -r")
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
