"""Read the output of the OSU Micro-Benchmarks, by the title and the columns that each of them prints.

Latencies are in microseconds and one way; a MB/s is 10^6 bytes a second (the suite's README). The size is what a
program calls so: for a collective, what one rank gives. These programs print no end mark, so a table that lost its last
lines cannot be found from a shorter one; their exit code tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.validation.checks.parsers import UnreadableError, WrongAnswerError, figure, number, untagged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.model.results import Better, Figure, Unit

_TITLE = re.compile(r"^# OSU (?P<kind>[\w-]+?)(?:-(?:CUDA|ROCM|OPENACC|MANAGED))? (?P<name>.+?) Test(?: v[\w.]+)?$")
_OPERATIONS = {
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


def parse(text: str) -> tuple[Figure, ...]:
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
            yield from _figures(line.split(), columns, test)


def _test(kind: str, name: str) -> _Test:
    backend = kind.lower()
    if name in _POINT_TO_POINT:
        return _Test(backend, _POINT_TO_POINT[name], collective=False)
    words = name.removesuffix(" Latency")
    return _Test(backend, _OPERATIONS.get(words, re.sub(r"\W+", "_", words.lower())), collective=True)


def _figures(words: Sequence[str], columns: Sequence[str], test: _Test) -> Iterator[Figure]:
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
