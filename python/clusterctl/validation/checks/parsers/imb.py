"""Parser of the Intel MPI Benchmarks (IMB-MPI1), by the header above each table.

A time of ``PingPong`` is half the round trip. The time of a collective is that of the slowest rank (``t_max``). A
benchmark with several numbers of processes counts for the highest number. Releases before 2018 print bandwidths in 2^20
bytes a second, later ones in 10^6; the bytes and the time in a line show which unit it has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.validation.checks.parsers import UnreadableError, WrongAnswerError, count, figure, number, untagged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.model.results import Better, Figure, Unit

_BENCHMARK = re.compile(r"^\s*# Benchmarking (\S+)")
_PROCESSES = re.compile(r"^\s*#\s*\(?\s*#processes = (\d+)")
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


def parse(text: str) -> tuple[Figure, ...]:
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
