"""Parser of NVIDIA's nccl-tests: the table that they print, or the JSON that they write with ``-J``.

Columns are found by the names in the table's header (``writeResultHeader`` in src/util.cu of NVIDIA/nccl-tests); what
they mean stands in its doc/PERFORMANCE.md. A GB/s there is 10^9 bytes a second. Of the two halves of a line the
out-of-place half counts; a line with one half has the in-place half.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.model import units
from clusterctl.validation.checks.parsers import UnreadableError, WrongAnswerError, count, figure, number, untagged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.results import Figure

_OPERATIONS = {"all_reduce": "allreduce", "all_gather": "allgather"}
_PROGRAM = re.compile(r"\b(\w+)_perf\b")
_TIMES = ("time", "cputime")
_END = re.compile(r"# Out of bounds values\s*:\s*(\d+)")
_BITS = re.compile(r"# Bitwise mismatches\s*:\s*(\d+)")
_STAMP_WORDS = 2  # a timestamp is a date and a time of day


@dataclass(frozen=True)
class _Line:
    """The result of one size; ``wrong`` is None where the program compared no values."""

    size: int
    time_us: float
    algorithm_gb_s: float
    bus_gb_s: float
    wrong: float | None


@dataclass
class _Table:
    """A table while it is read."""

    columns: Sequence[str]
    operation: str
    lines: list[_Line] = field(default_factory=list)
    ended: bool = False


def parse(text: str) -> tuple[Figure, ...]:
    """Return time, algorithm bandwidth and bus bandwidth of every size of every operation.

    Args:
        text: the output of one or more of the programs, or one JSON document.

    Raises:
        WrongAnswerError: some values were wrong.
        UnreadableError: the table is missing or incomplete.
    """
    if text.lstrip().startswith("{"):
        return tuple(_json(text))
    tables = list(_tables(text))
    if not tables:
        raise UnreadableError("the output does not hold a table of nccl-tests (header with 'size', 'time' and 'busbw')")
    for table in tables:
        if not table.ended:
            raise UnreadableError("the table of nccl-tests is cut off: 'Out of bounds values' is missing")
        if not table.lines:
            raise UnreadableError("the table of nccl-tests is empty")
    return tuple(one for table in tables for line in table.lines for one in _figures(line, table.operation))


def _tables(text: str) -> Iterator[_Table]:
    operation, table = "", None
    for line in untagged(text):
        words = line.lstrip("#").split()
        program = _PROGRAM.search(line)
        if line.startswith("#") and words[:2] == ["size", "count"] and "busbw" in words:
            table = _Table(words, operation)
            yield table
        elif line.startswith("#"):
            _end(line, table)
        elif table is not None and not table.ended and words and words[0].isdigit():
            table.lines.append(_line(words, table.columns))
        if program is not None and (table is None or table.ended or "test starting" in line):
            operation = _OPERATIONS.get(program[1], program[1])


def _end(line: str, table: _Table | None) -> None:
    end, bits = _END.match(line), _BITS.match(line)
    if end is not None and table is not None:
        table.ended = True
        if count(end[1], "in the line of values out of bounds"):
            raise WrongAnswerError(f"nccl-tests found {end[1]} lines with wrong values")
    if bits is not None and count(bits[1], "in the line of different bits"):
        raise WrongAnswerError(f"nccl-tests found {bits[1]} results whose bits differ from run to run")


def _line(words: list[str], columns: Sequence[str]) -> _Line:
    """Read a line from the right, since the name of a reduction may be empty."""
    size = count(words[0], "in the column size")
    where = f"in the line of size {size}"
    if "timestamp" in columns:
        words, columns = words[:-_STAMP_WORDS], columns[:-1]
    starts = [at for at, name in enumerate(columns) if name in _TIMES]
    halves = [columns[begin:end] for begin, end in itertools.pairwise([*starts, len(columns)])]
    last = len(halves[-1])
    if len(words) >= sum(len(half) for half in halves) + 2:
        words, half = words[-sum(len(half) for half in halves) :], halves[0]
    elif len(words) >= last + 2:  # a replayed trace has its in-place half alone
        words, half = words[-last:], halves[-1]
    else:
        raise UnreadableError(f"the table of nccl-tests is cut off {where}")
    got = dict(zip(half, words, strict=False))
    wrong = got.get("#wrong", "N/A")
    line = _Line(
        size=size,
        time_us=number(got["time" if "time" in got else "cputime"], where),
        algorithm_gb_s=number(got["algbw"], where),
        bus_gb_s=number(got["busbw"], where),
        wrong=None if wrong == "N/A" else number(wrong, where),
    )
    _refuse_wrong(line)
    return line


def _refuse_wrong(line: _Line) -> None:
    if line.wrong:
        raise WrongAnswerError(f"{line.wrong:,.0f} values were wrong at {units.size_words(line.size)}")


def _figures(line: _Line, operation: str) -> Iterator[Figure]:
    yield figure(operation, "nccl", line.size, ("time", line.time_us / 1e6, "s", "lower"))
    yield figure(operation, "nccl", line.size, ("algorithm_bandwidth", line.algorithm_gb_s * 1e9, "B/s", "higher"))
    yield figure(operation, "nccl", line.size, ("bus_bandwidth", line.bus_gb_s * 1e9, "B/s", "higher"))


def _json(text: str) -> Iterable[Figure]:
    try:
        found = json.loads(text)
        program = _PROGRAM.search(" ".join(str(word) for word in found.get("args", ())[:1]))
        operation = _OPERATIONS.get(program[1], program[1]) if program else ""
        bad = found["out_of_bounds"]["count"] or found.get("bitwise_mismatches", {"count": 0})["count"]
        lines = [_json_line(one) for one in found["results"]]
    except json.JSONDecodeError as error:
        raise UnreadableError(f"the JSON of nccl-tests is cut off or damaged at line {error.lineno}") from None
    except KeyError as error:
        raise UnreadableError(f"the JSON of nccl-tests has no {error.args[0]}, so it is not whole") from None
    except UnreadableError:
        raise
    except (TypeError, AttributeError, RecursionError, ValueError):  # a ValueError of a number of thousands of digits
        raise UnreadableError("this JSON is none that nccl-tests writes") from None
    for line in lines:
        _refuse_wrong(line)
    if bad:
        raise WrongAnswerError(f"nccl-tests found {bad} results with wrong values")
    if not lines:
        raise UnreadableError("the JSON of nccl-tests has no results")
    return [one for line in lines for one in _figures(line, operation)]


def _json_line(entry: Mapping[str, Any]) -> _Line:
    half = entry.get("out_of_place") or entry["in_place"]
    where = f"in the result of size {entry['size']}"
    wrong = half.get("nwrong")
    return _Line(
        size=int(number(str(entry["size"]), where)),
        time_us=number(str(half["time"] if "time" in half else half["cpu_time"]), where),
        algorithm_gb_s=number(str(half["alg_bw"]), where),
        bus_gb_s=number(str(half["bus_bw"]), where),
        wrong=None if wrong is None else number(str(wrong), where),
    )
