"""Parsers of other programs' output: text in, figures out, or an error of one sentence."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.analysis import robust_stats
from clusterctl.model import units
from clusterctl.model.results import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.results import Better, Unit
    from clusterctl.suite import ExternalCheck

# What 'mpirun --tag-output' of either series puts before a line, and Slurm's 'srun --label'.
_TAG = re.compile(r"^(?:\[[^\]\s]*,\d+\]<std(?:out|err)>: ?|\d+: )")

_COUNT = re.compile(r"[0-9]{1,18}")
_MOST_ROWS, _MOST_BYTES = 20_000, 1 << 62


class UnreadableError(ValueError):
    """The output does not hold the expected figures; the message says what is missing."""


class WrongAnswerError(UnreadableError):
    """The program itself reports that its answers were wrong."""


def untagged(text: str) -> Iterator[str]:
    """Yield the lines of a log without the prefix of a launcher.

    Raises:
        UnreadableError: it has more lines of figures than any benchmark prints.
    """
    rows = 0
    for line in text.splitlines():
        found = _TAG.sub("", line).rstrip()
        rows += found.lstrip()[:1].isdigit()
        if rows > _MOST_ROWS:
            raise _too_many_rows()
        yield found


def _too_many_rows() -> UnreadableError:
    return UnreadableError(f"the output holds more than {_MOST_ROWS} lines of figures, which no benchmark prints")


def number(word: str, where: str) -> float:
    """Return a finite number.

    Raises:
        UnreadableError: the word is not a finite number; the message says where it stands.
    """
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UnreadableError(f"'{word}' is not a number, {where}")
    return value


def count(word: str, where: str) -> int:
    """Return a whole number of at most 18 digits.

    Raises:
        UnreadableError: the word is something else; the message says where it stands.
    """
    if not _COUNT.fullmatch(word):
        raise UnreadableError(f"'{word[:20]}' is not a whole number, {where}")
    return int(word)


def figure(operation: str, backend: str, size: int | None, measured: tuple[str, float, Unit, Better]) -> Figure:
    """Return one figure of a table.

    ``measured`` is quantity, value, its unit and which way is good.

    Raises:
        UnreadableError: the value is not a finite number, or the size is none of a message.
    """
    if size is not None and not 0 <= size < _MOST_BYTES:
        raise UnreadableError(f"a size of {operation or backend} is none of a message")
    quantity, value, unit, better = measured
    if not math.isfinite(value):
        raise UnreadableError(f"the {quantity.replace('_', ' ')} of {operation or backend} is not a finite number")
    return Figure(
        quantity=quantity, operation=operation, backend=backend, size_bytes=size, value=value, unit=unit, better=better
    )


# Parser of the Intel MPI Benchmarks (IMB-MPI1), by the header above each table.
#
# A time of ``PingPong`` is half the round trip. The time of a collective is that of the slowest rank (``t_max``). A
# benchmark with several numbers of processes counts for the highest number. Releases before 2018 print bandwidths in
# 2^20 bytes a second, later ones in 10^6; the bytes and the time in a line show which unit it has.

_BENCHMARK = re.compile(r"^\s*# Benchmarking (\S+)")
_PROCESSES = re.compile(r"^\s*#\s*(?:\(\s*)?#processes = (\d+)")
_END = "# All processes entering MPI_Finalize"
_OPERATIONS = {
    "Bcast": "broadcast",
    "Allreduce": "allreduce",
    "Allgather": "allgather",
    "Alltoall": "alltoall",
    "Reduce_scatter": "reduce_scatter",
}
_BETWEEN_TWO = {"PingPong": "", "PingPing": "both_at_once"}
_MEBI = 1 << 20
_NEAR = 0.01
_MESSAGES = (1, 2, 4)  # that a rank sends or receives in one step: PingPong, Sendrecv, Exchange
_LONG_ENOUGH_US = 50.0  # times are printed with two digits after the point


@dataclass
class _Table:
    """One benchmark with one number of processes."""

    benchmark: str
    processes: int = 0
    columns: Sequence[str] = ()
    rows: list[dict[str, float]] = field(default_factory=list)


def parse_imb(text: str) -> tuple[Figure, ...]:
    """Return the figures of every size: ``latency`` and ``bandwidth`` between two ranks, ``time`` of the others.

    Raises:
        WrongAnswerError: the program compared its values, and some were wrong.
        UnreadableError: the table is missing or incomplete.
    """
    best: dict[str, _Table] = {}
    for table in _tables(text):
        if table.rows and table.processes >= best.get(table.benchmark, table).processes:
            best[table.benchmark] = table
    if not best:
        raise UnreadableError(
            "the output does not hold a table of the Intel MPI Benchmarks ('# Benchmarking ...' with figures)"
        )
    if _END not in text:
        raise UnreadableError(f"the output of the Intel MPI Benchmarks is cut off: '{_END[2:]}' is missing")
    return tuple(one for table in best.values() for one in _figures(table))


def _tables(text: str) -> Iterator[_Table]:
    """Yield each table at its first line; later lines are added to it."""
    table: _Table | None = None
    for line in untagged(text):
        begin, processes = _BENCHMARK.match(line), _PROCESSES.match(line)
        if begin is not None:
            table = _Table(begin[1])
        elif table is not None and processes is not None:
            table.processes = count(processes[1], f"in the number of processes of {table.benchmark}")
        elif table is not None and line.lstrip().startswith(("#bytes", "#repetitions", "#Benchmarking")):
            table.columns = line.split()
        elif table is not None and table.columns and line.strip() and not line.lstrip().startswith("#"):
            _add(line.split(), table)
            if len(table.rows) == 1:
                yield table


def _add(words: Sequence[str], table: _Table) -> None:
    """Add a line of figures; one layout begins each line with the benchmark's name, which is left out."""
    if words[0] == table.benchmark:
        words, columns = words[1:], table.columns[1:]
    else:
        columns = table.columns
    if not words[0].isdigit():
        return  # a line between the tables, such as one of mpirun
    if len(words) != len(columns):
        raise UnreadableError(f"a line of {table.benchmark} is cut off: '{' '.join(words)}'")
    where = f"in a line of {table.benchmark}"
    row = {name: number(word, where) for name, word in zip(columns, words, strict=True)}
    if row.get("defects"):  # of a build that compares its values
        raise WrongAnswerError(f"{table.benchmark} found wrong values ({row['defects']:g} defects)")
    if len(table.rows) == _MOST_ROWS:
        raise _too_many_rows()
    table.processes = max(table.processes, int(row.get("#procs", 0)))
    table.rows.append(row)


def _figures(table: _Table) -> Iterator[Figure]:
    unit = _unit(table.rows)
    pair = table.benchmark in _BETWEEN_TWO
    operation = _BETWEEN_TWO.get(table.benchmark, _OPERATIONS.get(table.benchmark, table.benchmark.lower()))
    for row in table.rows:
        time_us = row.get("t[usec]", row.get("t_max[usec]"))
        found: list[tuple[str, float, Unit, Better]] = []
        if time_us is not None:
            found.append(("latency", time_us, "us", "lower") if pair else ("time", time_us / 1e6, "s", "lower"))
        if row.get("Mbytes/sec"):
            found.append(("bandwidth", row["Mbytes/sec"] * unit, "B/s", "higher"))
        size = int(row["#bytes"]) if "#bytes" in row else None
        yield from (figure(operation, "mpi", size, one) for one in found)


def _unit(rows: Sequence[dict[str, float]]) -> float:
    """Return the bytes of a Mbyte, from a line with bytes, time and bandwidth; 10^6 without such a line."""
    for row in rows:
        time_us = row.get("t[usec]", row.get("t_max[usec]", 0.0))
        if time_us < _LONG_ENOUGH_US or not row.get("Mbytes/sec") or not row.get("#bytes"):
            continue
        printed = row["Mbytes/sec"] * time_us / row["#bytes"]  # messages of the step times 10^6 over the Mbyte
        if any(abs(printed * _MEBI / 1e6 / messages - 1) < _NEAR for messages in _MESSAGES):
            return float(_MEBI)
    return 1e6


# Parser of NVIDIA's nccl-tests: the table that they print, or the JSON that they write with ``-J``.
#
# Columns are found by the names in the table's header (``writeResultHeader`` in src/util.cu of NVIDIA/nccl-tests); what
# they mean stands in its doc/PERFORMANCE.md. A GB/s there is 10^9 bytes a second. Of the two halves of a line the
# out-of-place half counts; a line with one half has the in-place half.

_NCCL_OPERATIONS = {"all_reduce": "allreduce", "all_gather": "allgather"}
_PROGRAM = re.compile(r"\b(\w+)_perf\b")
_TIMES = ("time", "cputime")
_NCCL_END = re.compile(r"# Out of bounds values\s*:\s*(\d+)")
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
class _NcclTable:
    """A table while it is read."""

    columns: Sequence[str]
    operation: str
    lines: list[_Line] = field(default_factory=list)
    ended: bool = False


def parse_nccl_tests(text: str) -> tuple[Figure, ...]:
    """Return time, algorithm bandwidth and bus bandwidth of every size of every operation.

    The text is the output of one or more of the programs, or one JSON document.

    Raises:
        WrongAnswerError: some values were wrong.
        UnreadableError: the table is missing or incomplete.
    """
    if text.lstrip().startswith("{"):
        return tuple(_json(text))
    tables = list(_nccl_tables(text))
    if not tables:
        raise UnreadableError("the output does not hold a table of nccl-tests (header with 'size', 'time' and 'busbw')")
    for table in tables:
        if not table.ended:
            raise UnreadableError("the table of nccl-tests is cut off: 'Out of bounds values' is missing")
        if not table.lines:
            raise UnreadableError("the table of nccl-tests is empty")
    return tuple(one for table in tables for line in table.lines for one in _nccl_figures(line, table.operation))


def _nccl_tables(text: str) -> Iterator[_NcclTable]:
    operation, table = "", None
    for line in untagged(text):
        words = line.lstrip("#").split()
        program = _PROGRAM.search(line)
        if line.startswith("#") and words[:2] == ["size", "count"] and "busbw" in words:
            table = _NcclTable(words, operation)
            yield table
        elif line.startswith("#"):
            _end(line, table)
        elif table is not None and not table.ended and words and words[0].isdigit():
            table.lines.append(_line(words, table.columns))
        if program is not None and (table is None or table.ended or "test starting" in line):
            operation = _NCCL_OPERATIONS.get(program[1], program[1])


def _end(line: str, table: _NcclTable | None) -> None:
    end, bits = _NCCL_END.match(line), _BITS.match(line)
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


def _nccl_figures(line: _Line, operation: str) -> Iterator[Figure]:
    yield figure(operation, "nccl", line.size, ("time", line.time_us / 1e6, "s", "lower"))
    yield figure(operation, "nccl", line.size, ("algorithm_bandwidth", line.algorithm_gb_s * 1e9, "B/s", "higher"))
    yield figure(operation, "nccl", line.size, ("bus_bandwidth", line.bus_gb_s * 1e9, "B/s", "higher"))


def _json(text: str) -> Iterable[Figure]:
    try:
        found = json.loads(text)
        program = _PROGRAM.search(" ".join(str(word) for word in found.get("args", ())[:1]))
        operation = _NCCL_OPERATIONS.get(program[1], program[1]) if program else ""
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
    return [one for line in lines for one in _nccl_figures(line, operation)]


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


# Read the output of the OSU Micro-Benchmarks, by the title and the columns that each of them prints.
#
# Latencies are in microseconds and one way; a MB/s is 10^6 bytes a second (the suite's README). The size is what a
# program calls so: for a collective, what one rank gives. These programs print no end mark, so a table that lost its
# last lines cannot be found from a shorter one; their exit code tells.

_TITLE = re.compile(r"^# OSU (?P<kind>[\w-]+?)(?:-(?:CUDA|ROCM|OPENACC|MANAGED))? (?P<name>.+?) Test(?: v[\w.]+)?$")
_OSU_OPERATIONS = {
    "All-to-All Personalized Exchange": "alltoall",
    "Broadcast": "broadcast",
    "Reduce_scatter": "reduce_scatter",
    "Reduce Scatter": "reduce_scatter",
}
_POINT_TO_POINT = {
    "Latency": "",
    "Bandwidth": "",
    "Bi-Directional Bandwidth": "bidirectional",
    "Multi Latency": "multiple_pairs",
    "Multi-threaded Latency": "multiple_threads",
    "Multi-process Latency": "multiple_processes",
    "Multiple Bandwidth / Message Rate": "multiple_pairs",
}


@dataclass(frozen=True)
class _Test:
    """The program that printed the lines below its title."""

    backend: str
    operation: str
    collective: bool


def parse_osu(text: str) -> tuple[Figure, ...]:
    """Return the figures of every size: ``latency`` or ``time``, ``bandwidth`` and ``message_rate``.

    A latency between two ranks is ``latency`` in microseconds, that of a collective (its mean over the ranks) is
    ``time`` in seconds.

    Raises:
        WrongAnswerError: the program compared its values, and some were wrong.
        UnreadableError: the table is missing, or a line is incomplete.
    """
    found = list(_read(text))
    if not found:
        raise UnreadableError(
            "the output does not hold a table of the OSU Micro-Benchmarks ('# OSU MPI ... Test' with figures)"
        )
    return tuple(found)


def _read(text: str) -> Iterator[Figure]:
    test: _Test | None = None
    columns: Sequence[str] = ()
    for line in untagged(text):
        title = _TITLE.match(line)
        if title is not None:
            test, columns = _test(title["kind"], title["name"]), ()
        elif test is None or not line.strip():
            continue
        elif line.startswith("#"):
            names = re.split(r"\s{2,}", line.lstrip("# ").strip())
            if names[0] == "Size" or "(us)" in names[0]:
                columns = names
        elif columns and re.match(r"^\s*\d", line):
            yield from _osu_figures(line.split(), columns, test)


def _test(kind: str, name: str) -> _Test:
    backend = kind.lower()
    if name in _POINT_TO_POINT:
        return _Test(backend, _POINT_TO_POINT[name], collective=False)
    words = name.removesuffix(" Latency")
    return _Test(backend, _OSU_OPERATIONS.get(words, re.sub(r"\W+", "_", words.lower())), collective=True)


def _osu_figures(words: Sequence[str], columns: Sequence[str], test: _Test) -> Iterator[Figure]:
    if len(words) != len(columns):
        raise UnreadableError(f"a line of the table is cut off: '{' '.join(words)}' under {', '.join(columns)}")
    row = dict(zip(columns, words, strict=True))
    size = int(number(row["Size"], "in the column Size")) if "Size" in row else None
    for name, word in row.items():
        if name == "Validation":  # with the option -c
            if word != "Pass":
                raise WrongAnswerError(f"the OSU benchmark found wrong values (Validation: {word}) at size {size}")
            continue
        found = _measured(name, number(word, f"in the column {name} of size {size}"), test)
        if found is not None:
            yield figure(test.operation, test.backend, size, found)


def _measured(column: str, value: float, test: _Test) -> tuple[str, float, Unit, Better] | None:
    """Return quantity, value, unit and the good direction of a column, None for any other column."""
    if column in {"Latency (us)", "Latency(us)", "Avg Latency(us)", "Avg Lat(us)"}:
        return ("time", value / 1e6, "s", "lower") if test.collective else ("latency", value, "us", "lower")
    if column in {"Bandwidth (MB/s)", "MB/s"}:
        return "bandwidth", value * 1e6, "B/s", "higher"
    if column == "Messages/s":
        return "message_rate", value, "1", "higher"
    return None


# Parser for a user's own check: a regular expression, or a path into the JSON that it prints.

_CONFIDENCE = 0.95
_STEP = re.compile(r"\[(\d+)\]|([\w-]+)")
_BEGIN = re.compile(r"^[{\[]", re.MULTILINE)
_DECODER = json.JSONDecoder()
_MOST_SHOWN = 60
_LARGEST = 1e300  # the median of two such numbers is finite
_MOST_LOST = 4  # times the output, for documents that do not end


def own_figure(check: ExternalCheck, text: str, nodes: tuple[str, ...] = ()) -> Figure:
    """Return the figure that a program printed; of several values, the median.

    Raises:
        UnreadableError: the value is missing or is not a number.
    """
    printed = _matched(check.regex, text) if check.regex else _led_to(check, text)
    found = tuple(_own_number(value * check.scale) for value in printed)
    return Figure(
        quantity=check.measures,
        nodes=nodes,
        unit=check.unit,
        samples=found,
        better=check.better,
        **robust_stats.summary(found, _CONFIDENCE),
    )


def _matched(expression: str, text: str) -> list[float]:
    compiled = re.compile(expression, re.MULTILINE)
    group: str | int = "value" if "value" in compiled.groupindex else 1
    found = [_own_number(match[group]) for match in compiled.finditer(text)]
    if not found:
        raise UnreadableError(f"no line of its output matches '{_short(expression)}'")
    return found


def _led_to(check: ExternalCheck, text: str) -> list[float]:
    """Return the values at the path in the last JSON document that has it; other lines do not matter."""
    steps = [int(index) if index else key for index, key in _STEP.findall(check.json_path.removeprefix("$"))]
    documents = list(_documents(text))
    for document in reversed(documents):
        value = _at(document, steps)
        if value is not None:
            return [_own_number(one) for one in value] if isinstance(value, list) and value else [_own_number(value)]
    if not documents:
        raise UnreadableError("its output does not hold a whole JSON document")
    raise UnreadableError(f"the JSON in its output has no value at '{check.json_path}'")


def _documents(text: str) -> Iterator[Any]:
    """Yield the objects and lists that begin at the start of a line; incomplete documents are left out."""
    at = lost = 0
    while (match := _BEGIN.search(text, at)) is not None and lost <= _MOST_LOST * len(text):
        try:
            value, at = _DECODER.raw_decode(text, match.start())
        except ValueError as error:  # also for a number of thousands of digits
            at = match.end()
            lost += getattr(error, "pos", len(text)) - match.start()
        except RecursionError:
            return
        else:
            yield value


def _at(value: Any, steps: Iterable[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _own_number(found: object) -> float:
    try:
        value = math.nan if isinstance(found, bool) else float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= _LARGEST:
        raise UnreadableError(f"'{_short(str(found))}' in its output is not a number")
    return value


def _short(words: str) -> str:
    return words if len(words) <= _MOST_SHOWN else f"{words[: _MOST_SHOWN - 3]}..."
