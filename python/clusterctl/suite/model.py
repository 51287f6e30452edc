"""A suite as a value: checks with the options that all of them have, and what their figures are held against."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from clusterctl.model import units
from clusterctl.model.base import Record
from clusterctl.model.results import Better, Unit

# Values of a suite file: sizes, times, fractions and lists, each checked when it is read; the nearest known name.

MIB = 1 << 20
_LARGEST_PAIR_MESSAGE = 64 << 20
_LARGEST_MESSAGE = 16 << 30

Operation: TypeAlias = Literal["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall"]
OPERATIONS: tuple[Operation, ...] = ("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall")


def nearest(given: str, known: Iterable[str], otherwise: str) -> str:
    """Return 'did you mean ...?' with the nearest name that is known, or all of them where none is near."""
    names = list(known)
    near = difflib.get_close_matches(given.replace("-", "_").lower(), names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"{otherwise} {', '.join(names)}."


def between(low: float, high: float, what: str) -> Callable[[float], float]:
    """Return a validator that refuses a value outside these limits with these words."""

    def look(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"{value:g} is not {what}")
        return value

    return look


def whole(value: object) -> int:
    figure, words = units.number(value)
    if words or figure != int(figure):
        raise ValueError(f"'{value}' is not a whole number")
    return int(figure)


def _listed(value: object) -> object:
    """Return a single value as a list of one."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _plain_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value} is not text; put it in quotes")  # noqa: TRY004 - pydantic hears ValueError alone
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse an empty list and repeated values."""
    if not values:
        raise ValueError("the list is empty")
    if len(set(values)) < len(values):
        raise ValueError("a value is given twice")
    return values


Size = Annotated[int, BeforeValidator(units.size), AfterValidator(between(0, _LARGEST_MESSAGE, "at most 16 GiB"))]
PairSize = Annotated[
    int, BeforeValidator(units.size), AfterValidator(between(0, _LARGEST_PAIR_MESSAGE, "at most 64 MiB"))
]
Sizes = Annotated[tuple[Size, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
PairSizes = Annotated[tuple[PairSize, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
Seconds = Annotated[float, BeforeValidator(units.seconds)]
Fraction = Annotated[float, BeforeValidator(units.fraction)]
Confidence = Annotated[Fraction, AfterValidator(between(0.5, 0.9999, "between 50 % and 99.99 %"))]
Precision = Annotated[Fraction, AfterValidator(between(1e-4, 1, "between 0.01 % and 100 %"))]
Share = Annotated[Fraction, AfterValidator(between(0, 1, "between 0 and 1"))]
Count = Annotated[int, BeforeValidator(whole), AfterValidator(between(1, 10**9, "at least 1"))]
Text = Annotated[str, BeforeValidator(_plain_text)]
Operations = Annotated[
    tuple[Operation, ...],
    BeforeValidator(_listed),
    AfterValidator(_distinct),
]


def _read_value(data: object) -> object:
    """Split ``value: 1.25 GB/s`` into value and unit, in the unit of the records."""
    if not isinstance(data, dict) or "value" not in data:
        return data
    figure, words = units.number(data["value"])
    given = data.get("unit")
    if given is not None and not isinstance(given, str):
        given = str(given)
    if words and given is not None and units.unit(words)[0] != units.unit(given)[0]:
        raise ValueError(f"the value is in {words}, and the unit is {given}; give one of them")
    if not (words or given):
        return {**data, "value": figure}
    unit, factor = units.unit(words or given or "")
    return {**data, "value": figure * factor, "unit": unit}


class Limits(Record):
    """The expected value of a figure, and the fractions by which the figure may differ (-0.1: ten per cent below).

    ``unit`` None is the unit of the quantity.
    """

    value: float
    unit: Unit | None = None
    lower: Fraction | None = None
    upper: Fraction | None = None

    @model_validator(mode="before")
    @classmethod
    def _units(cls, data: object) -> object:
        return _read_value(data)

    @model_validator(mode="after")
    def _sensible(self) -> Limits:
        if self.value <= 0:
            raise ValueError(f"the value {self.value:g} is not above 0")
        if self.lower is None and self.upper is None:
            raise ValueError("lower and upper are missing; write 'lower: -10 %'")
        lower, upper = self.lower or 0.0, self.upper or 0.0
        if lower > upper:
            raise ValueError(f"lower ({lower:g}) is above upper ({upper:g}); they are swapped")
        if lower > 0 or upper < 0:
            raise ValueError(
                f"lower is a fraction of the value and at most 0, upper at least 0; these are {lower:g} and {upper:g}"
            )
        if lower <= -1:
            raise ValueError(f"lower {units.percent(lower)} lets every figure pass; give more than -100 %")
        return self


class ReferenceEntry(Limits):
    """A reference and its figures; an empty key matches any figure. The entry with the most keys counts."""

    check: Text
    quantity: Text
    operation: Text = ""
    backend: Text = ""
    algorithm: Text = ""
    size: Size | None = None
    nodes: Count | None = None
    ranks: Count | None = None

    @property
    def about(self) -> tuple[str | int | None, ...]:
        """The keys that have to match, apart from check and quantity."""
        return (self.operation, self.backend, self.algorithm, self.size, self.nodes, self.ranks)


class OutlierOptions(Record):
    """When a node or a link is an outlier: it differs by more than ``floor``, at this rate of false alarms per run."""

    floor: Share = 0.03
    false_alarms_per_run: Annotated[Fraction, AfterValidator(between(1e-6, 0.5, "between 0.0001 % and 50 %"))] = 0.01


class HistoryOptions(Record):
    """When a figure has changed since the last good runs: by more than ``mads`` scaled MADs and more than ``floor``.

    The last ``runs`` runs count; fewer than ``at_least`` runs are not compared.
    """

    runs: Annotated[int, BeforeValidator(whole), AfterValidator(between(2, 1000, "between 2 and 1000"))] = 20
    at_least: Annotated[int, BeforeValidator(whole), AfterValidator(between(2, 1000, "between 2 and 1000"))] = 5
    mads: Annotated[float, BeforeValidator(lambda value: units.number(value)[0])] = 4.5
    floor: Share = 0.10

    @model_validator(mode="after")
    def _sensible(self) -> HistoryOptions:
        if self.mads <= 0:
            raise ValueError(f"mads {self.mads:g} is not above 0")
        if self.at_least > self.runs:
            raise ValueError(f"at_least ({self.at_least}) is above runs ({self.runs}), so it would never speak")
        return self


# --- The user's own checks in a suite file: a command, and how to read its output -------------------------------------

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_JSON_PATH = re.compile(r"(?:\$\.?)?(?:[\w-]+|\[\d+\])(?:\.[\w-]+|\[\d+\])*")
# What the three benchmarks measure, in the words of validation/checks/parsers.
BENCHMARKS: Mapping[str, Mapping[str, Unit]] = {
    "nccl-tests": {"time": "s", "algorithm_bandwidth": "B/s", "bus_bandwidth": "B/s"},
    "osu": {"latency": "us", "bandwidth": "B/s", "time": "s", "message_rate": "1"},
    "imb": {"latency": "us", "bandwidth": "B/s", "time": "s"},
}


def _command(value: object) -> object:
    """Split a command as a shell would, without expansion."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words: {str(error).lower()}") from None


def _has_unit(value: object) -> bool:
    """Whether a reference's value has a unit; a value without one is in the unit of the figure."""
    try:
        return bool(units.number(value)[1])
    except ValueError:
        return True  # the reference itself is refused later


class ExternalCheck(Record):
    """A program of the user, and how to read its output."""

    name: Text  # the name of the check: small letters, digits and underscores
    title: Text = ""  # what it proves, in a few words
    command: Annotated[tuple[Text, ...], BeforeValidator(_command)]  # its argv, which does not pass a shell
    # ``launch_node`` (once), ``each_node`` (once on each, by itself) or ``mpi`` (as the ranks of one job)
    where: Literal["launch_node", "each_node", "mpi"] = "launch_node"
    ranks_per_node: Count | None = None  # for ``mpi``, ranks on each node; None is one rank per slot
    deadline_s: Seconds = 60.0  # seconds after which it is ended
    parser: Literal["nccl-tests", "osu", "imb"] | None = None  # the benchmark whose output it prints
    regex: Text = ""  # a regular expression whose group ``value`` (or only group) is the figure, on any line
    json_path: Text = ""  # path to the figure in printed JSON, such as ``results[0].bandwidth``; the JSON begins a line
    quantity: Text = ""  # what the figure measures; the default is the check's name
    # of the figure, as it is kept; ``unit: MB/s`` in a file is kept as ``B/s`` and multiplies ``scale``
    unit: Unit = "1"
    scale: float = 1.0  # factor of the printed number
    better: Better = "none"  # which way is good; ``none`` is reported and never judged
    reference: Limits | None = None  # the expected value of the figure

    @model_validator(mode="before")
    @classmethod
    def _units(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        if "on" in data and "where" not in data:  # its older name, which other readers of YAML take for true
            data = {"where" if key == "on" else key: value for key, value in data.items()}
        given_unit = str(data.get("unit", "1"))
        unit, factor = units.unit(given_unit)
        scale = units.number(data["scale"])[0] if "scale" in data else 1.0
        reference = data.get("reference")
        if isinstance(reference, dict) and reference.get("unit") is None and not _has_unit(reference.get("value")):
            reference = {**reference, "unit": given_unit}
        return {**data, "unit": unit, "scale": scale * factor, "reference": reference}

    @model_validator(mode="after")
    def _sensible(self) -> ExternalCheck:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterable[str]:
        ways = [word for word in ("parser", "regex", "json_path") if getattr(self, word)]
        if NAME.fullmatch(self.name) is None:
            yield f"the name '{self.name}' must consist of small letters, digits and underscores"
        if not self.command:
            yield "the command is empty"
        if len(ways) > 1:
            yield f"{' and '.join(ways)} are given; give one of them"
        if self.regex:
            yield from self._regex_problems()
        if self.json_path and _JSON_PATH.fullmatch(self.json_path) is None:
            yield f"json_path '{self.json_path}' is not a path such as results[0].bandwidth"
        if self.scale <= 0:
            yield f"scale {self.scale:g} is not above 0"
        if self.reference is not None:
            yield from self._reference_problems(ways)
        if self.ranks_per_node is not None and self.where != "mpi":
            yield f"ranks_per_node is for 'where: mpi', and this one is 'where: {self.where}'"

    def _regex_problems(self) -> Iterable[str]:
        try:
            found = re.compile(self.regex)
        except re.error as error:
            yield f"the regular expression is wrong: {error}"
            return
        if "value" not in found.groupindex and found.groups != 1:
            yield f"the regular expression has {found.groups} groups; name the one with the figure (?P<value>...)"

    def _reference_problems(self, ways: list[str]) -> Iterable[str]:
        assert self.reference is not None  # noqa: S101 - the caller has looked
        if not ways:
            yield "a reference needs a figure: give parser, regex or json_path"
        if self.parser is not None:
            yield "a benchmark's output has many figures; put its references under 'references', each with its size"
        if self.reference.unit is not None:
            try:
                units.converted(1.0, self.reference.unit, self.unit)
            except ValueError:
                yield f"the reference is in {self.reference.unit}, and the figure in {self.unit}"

    @property
    def measures(self) -> str:
        return self.quantity or self.name


# The checks of the gate run first in every validation; a suite never names them.
GATE = ("reachable", "provisioned", "skew")


class CheckOptions(Record):
    """What every check takes; ``deadline_s`` replaces the check's own deadline."""

    deadline_s: Seconds | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """These options as the program of the check takes them: ``--budget 2 --sizes 8,64`` (seconds, bytes)."""
        return self.words_of(type(self))

    def words_of(self, kind: type[CheckOptions]) -> tuple[str, ...]:
        """Return the words of those options alone that checks of a kind have."""
        named = (name for name in kind.model_fields if name not in CheckOptions.model_fields)
        return tuple(word for name in named for word in _option(name, getattr(self, name)))


def _option(name: str, value: object) -> tuple[str, str]:
    given = value if isinstance(value, tuple) else (value,)
    words = (f"{one:g}" if isinstance(one, float) else str(one) for one in given)
    return f"--{name.removesuffix('_s').replace('_', '-')}", ",".join(words)


class MeasuringOptions(CheckOptions):
    """How long a figure is measured: until its interval is narrow enough or the budget is spent.

    ``budget_s`` are the seconds for one figure. ``confidence`` is the probability of the median's interval.
    ``precision`` is the half width of that interval, relative to the median, at which measuring stops early.
    """

    budget_s: Seconds = 0.5
    confidence: Confidence = 0.95
    precision: Precision = 0.02


class Suite(Record):
    """Checks with their options, in the order in which they run, and what their figures are held against."""

    name: str
    checks: dict[str, SerializeAsAny[CheckOptions]]
    external: tuple[ExternalCheck, ...] = ()
    references: tuple[ReferenceEntry, ...] = ()
    outliers: OutlierOptions = OutlierOptions()
    history: HistoryOptions = HistoryOptions()
    path: str = Field(default="", description="the file that it was read from")

    @property
    def every_reference(self) -> tuple[ReferenceEntry, ...]:
        """The references of the suite, and those that stand with the user's own checks."""
        own = (
            ReferenceEntry(check=one.name, quantity=one.measures, **one.reference.model_dump())
            for one in self.external
            if one.reference is not None
        )
        return (*self.references, *own)
