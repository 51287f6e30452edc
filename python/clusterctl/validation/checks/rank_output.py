"""Reading what ranks print: a report of each rank, their measurements, and all other lines."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError

from clusterctl.analysis import robust_stats
from clusterctl.model.base import Record
from clusterctl.model.results import Better, Bytes, Figure, RankReport, Unit, WrongAnswer
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.job_outcome import OutputLine

# A rank's line begins with one of two keys; mpirun may join lines of two ranks or put words before them.
_BEGIN = re.compile(r'\{"(?:clusterctl|rank)"')
ABOUT_NODES = frozenset(
    {"held_back", "mapped", "nccl_path", "carried"}
)  # events that say nothing of the rank that prints them
_SIGNS_OF_LIFE = frozenset({"started", "waiting"})
_DECODER = json.JSONDecoder()
_MOST_PARTS = 300_000  # lines of measurements of one job
_MOST_STRANGERS = 1000  # ranks beyond those that the job has
_LARGEST = 1e30  # of any unit; what is made of such figures is finite, as a record needs it
_Sample = Annotated[FiniteFloat, Field(ge=-_LARGEST, le=_LARGEST)]
LOAD, CPUS = "load_processes", "load_cpus"  # of a rank's machine, in its signs of life


class Measured(Record):
    """What a rank measured again and again; ``host`` and ``peer`` (the other end) are the inventory's names.

    ``ways`` are the medians from the host to the peer and back, None where these were not measured apart.
    """

    rank: int
    host: str
    peer: str = ""
    quantity: str
    operation: str = ""
    backend: str = ""
    algorithm: str = ""
    size_bytes: int | None = None
    unit: Unit
    better: Better
    samples: tuple[_Sample, ...] = Field(min_length=1)
    ways: tuple[_Sample, _Sample] | None = None


class _Part(Measured):
    """A line of it, as the rank printed it."""

    model_config = ConfigDict(extra="ignore")

    size_bytes: Bytes | None = Field(default=None, alias="bytes")
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Output:
    """What a job printed."""

    ranks: tuple[RankReport, ...]  # the report of each rank, in order
    other: tuple[str, ...]  # the lines that are not a rank's report
    all_started_s: float = 0.0  # when the last rank was up
    moved_s: float = 0.0  # when a rank last came up, took a new step or answered
    measured: tuple[Measured, ...] = ()  # the measurements; those with missing parts are left out
    printed: Mapping[int, str] = field(default_factory=dict)  # the output of a user's program by rank

    def in_state(self, *states: str) -> tuple[RankReport, ...]:
        return tuple(report for report in self.ranks if report.state in states)


def read(
    lines: Iterable[OutputLine], placement: Sequence[str], names: Mapping[str, str], until_s: float = math.inf
) -> Output:
    """Return what the ranks said of themselves.

    A sign of life counts from the time when the rank gave it, since a busy launch node may pass it on seconds later.
    ``placement`` has the inventory's name of the node of each rank; a silent rank is reported as absent there.
    ``names`` has that name for each host name that nodes give themselves. Lines after ``until_s`` are left out.
    """
    reports = {rank: RankReport(rank=rank, host=host, state="absent", ok=False) for rank, host in enumerate(placement)}
    other: list[str] = []
    started: dict[int, float] = {}
    moved_s = 0.0
    measured: list[_Part] = []
    printed: dict[int, list[str]] = {}
    most_ranks = len(placement) + _MOST_STRANGERS
    for line in lines:
        found, rest = _events_of_ranks(line.text)
        if rest and line.at_s <= until_s:
            other.append(rest)
        for event in found:
            rank = event["rank"] if 0 <= event["rank"] < most_ranks else most_ranks
            at_s = _given_s(event, started.get(rank), line.at_s)
            if at_s > until_s:
                continue
            if event.get("event") == "measured":
                measured += _parts(event, names) if len(measured) < _MOST_PARTS else ()
                continue
            if event.get("event") == "output":
                printed.setdefault(rank, []).append(str(event.get("text", "")) + "\n" * bool(event.get("whole")))
                continue
            if event.get("event") == "started":
                started[rank] = line.at_s
            before = reports.get(rank) or RankReport(rank=rank, host="", state="absent", ok=False)
            try:
                reports[rank] = _updated(before, event, names, at_s)
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
                other.append(line.text.strip())  # not a valid answer; the rank has not answered
            now = reports.get(rank, before)
            if (now.state, now.step) != (before.state, before.step):
                moved_s = max(moved_s, at_s)
    return Output(
        ranks=tuple(reports[rank] for rank in sorted(reports)),
        other=tuple(other),
        all_started_s=max(started.values(), default=0.0),
        moved_s=moved_s,
        measured=_whole(measured),
        printed={rank: "".join(parts) for rank, parts in printed.items()},
    )


def events_of(lines: Iterable[OutputLine], kind: str) -> Iterator[Mapping[str, Any]]:
    """Yield the events of one kind that are about a node, see :data:`ABOUT_NODES`; half a line yields nothing."""
    wanted = f'"event": "{kind}"'
    for line in lines:
        if wanted in line.text:
            yield from (event for event in _events(line.text)[0] if event.get("event") == kind)


def _given_s(event: Mapping[str, Any], started_s: float | None, at_s: float) -> float:
    """Return when a rank gave a sign, in seconds since the job's start; ``at_s`` is when it arrived here."""
    since = event.get("s") if event.get("event") == "waiting" else None
    if started_s is None or not isinstance(since, float) or not since >= 0:
        return at_s
    return min(at_s, started_s + since)


def _events_of_ranks(text: str) -> tuple[list[dict[str, Any]], str]:
    found, rest = _events(text)
    return [event for event in found if event.get("event") not in ABOUT_NODES], rest


def _events(text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON objects of a line, and the rest of the line."""
    events: list[dict[str, Any]] = []
    rest: list[str] = []
    at = 0
    while (match := _BEGIN.search(text, at)) is not None:
        try:
            value, end = _DECODER.raw_decode(text, match.start())
            value = node_json.storable(value)
        except (ValueError, RecursionError):  # also for a number of thousands of digits
            break
        if type(value.get("rank")) is int and isinstance(value.get("event", ""), str):  # True is not a rank
            events.append(value)
        rest.append(text[at : match.start()])
        at = end
    rest.append(text[at:])
    return events, "".join(rest).strip()


def _parts(event: Mapping[str, Any], names: Mapping[str, str]) -> tuple[_Part, ...]:
    """Return a line of a measurement; nothing for half a line, or an invalid number."""
    ends = {end: names.get(str(event[end]), str(event[end])) for end in ("host", "peer") if end in event}
    try:
        return (_Part.model_validate({**event, **ends}),)
    except ValidationError:
        return ()


def _whole(parts: Iterable[_Part]) -> tuple[Measured, ...]:
    """Put the parts of every measurement together."""
    groups: dict[tuple[object, ...], list[_Part]] = {}
    for part in parts:
        groups.setdefault(tuple(part.model_dump(exclude={"samples", "part", "parts"}).values()), []).append(part)
    found = []
    for group in groups.values():
        group.sort(key=lambda part: part.part)
        # Else a part is missing or came twice.
        if len(group) == group[0].parts and [part.part for part in group] == list(range(len(group))):
            samples = tuple(value for part in group for value in part.samples)
            found.append(Measured(**group[0].model_dump(exclude={"samples", "part", "parts"}), samples=samples))
    return tuple(found)


def _updated(before: RankReport, event: Mapping[str, Any], names: Mapping[str, str], at_s: float) -> RankReport:
    host = names.get(str(event.get("host", "")), str(event.get("host", ""))) or before.host
    kind = event.get("event", "hello")  # the C program has one kind of line without a name
    if before.state == "answered" and kind in _SIGNS_OF_LIFE:  # it may wait in MPI_Finalize
        return before.model_copy(update={"seen_s": at_s, "step": str(event.get("step", ""))})
    if kind == "started":
        return before.model_copy(update={"host": host, "state": "started", "seen_s": at_s})
    if kind == "waiting":
        step = str(event.get("step", ""))
        figures = {name: _finite(event[name]) for name in (LOAD, CPUS) if name in event}
        return before.model_copy(
            update={"host": host, "state": "waiting", "step": step, "seen_s": at_s, "figures": figures}
        )
    figures = {str(name): float(value) for name, value in event.get("figures", {}).items()}
    unfit = {name: value for name, value in figures.items() if not abs(value) <= _LARGEST}  # not for a record
    return RankReport(
        rank=before.rank,
        host=host,
        seen_s=at_s,
        ok=bool(event.get("ok", True)) and not unfit,
        library_version=str(event.get("library_version", "")),
        library_path=str(event.get("library_path", "")),
        seconds=_finite(event.get("seconds", 0.0)),
        compared=int(event.get("compared", 0)),
        wrong=int(event.get("wrong", 0)),
        problems=tuple(
            WrongAnswer(what=str(entry["what"]), expected=str(entry["expected"]), got=str(entry["got"]))
            for entry in event.get("problems", [])
        )
        + tuple(WrongAnswer(what=name, expected="a finite number", got=str(value)) for name, value in unfit.items()),
        libraries={str(name): str(path) for name, path in event.get("libraries", {}).items()},
        facts={str(name): str(text) for name, text in event.get("facts", {}).items()},
        figures={name: value for name, value in figures.items() if name not in unfit},
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a figure")
    return number


def figures(measured: Iterable[Measured], confidence: float = 0.95, *, together: bool = False) -> tuple[Figure, ...]:
    """Return measurements (``read(...).measured``) as figures: medians with their intervals.

    Too few samples have no interval. With ``together``, the figures are about all nodes, as in a collective, and not
    about the rank's node.
    """
    found = []
    for one in measured:
        ends = (one.host, one.peer) if one.peer else (one.host,)
        found.append(
            Figure(
                quantity=one.quantity,
                operation=one.operation,
                backend=one.backend,
                algorithm=one.algorithm,
                size_bytes=one.size_bytes,
                nodes=() if together else ends,
                unit=one.unit,
                samples=one.samples,
                better=one.better,
                **robust_stats.summary(one.samples, confidence),
            )
        )
    return tuple(found)
