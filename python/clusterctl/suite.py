"""What a validation runs, how long it measures, and what the figures are to be: three built-in suites, and the user's.

A suite is a frozen value. :func:`builtin` gives ``smoke``, ``nightly`` or ``full``; :func:`load` reads
``validation.yml``, in which everything is typed and every mistake is one sentence with its line.
"""

from __future__ import annotations

import difflib
import re
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from clusterctl import marked, units
from clusterctl.errors import ConfigError
from clusterctl.record import Record
from clusterctl.result import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from clusterctl.marked import Document, Place

R = TypeVar("R", bound=Record)

_MIB = 1 << 20
_LARGEST_PAIR_MESSAGE = 64 * _MIB
_LARGEST_MESSAGE = 16 << 30
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

Operation: TypeAlias = Literal["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall"]
OPERATIONS: tuple[Operation, ...] = ("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall")


# --- values as a file gives them --------------------------------------------------------------------------------------


def _between(low: float, high: float, what: str) -> Callable[[float], float]:
    def look(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"{value:g} is not {what}")
        return value

    return look


def _whole(value: object) -> int:
    figure, words = units.number(value)
    if words or figure != int(figure):
        raise ValueError(f"'{value}' is no whole number")
    return int(figure)


def _listed(value: object) -> object:
    """Take one value for a list of one."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _plain_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value} is no text; put it in quotes")  # noqa: TRY004 - pydantic hears ValueError alone
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse an empty list and values that stand twice."""
    if not values:
        raise ValueError("the list is empty")
    if len(set(values)) < len(values):
        raise ValueError("a value stands there twice")
    return values


Size = Annotated[int, BeforeValidator(units.size), AfterValidator(_between(0, _LARGEST_MESSAGE, "at most 16 GiB"))]
PairSize = Annotated[
    int, BeforeValidator(units.size), AfterValidator(_between(0, _LARGEST_PAIR_MESSAGE, "at most 64 MiB"))
]
Sizes = Annotated[tuple[Size, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
PairSizes = Annotated[tuple[PairSize, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
Seconds = Annotated[float, BeforeValidator(units.seconds)]
Fraction = Annotated[float, BeforeValidator(units.fraction)]
Confidence = Annotated[Fraction, AfterValidator(_between(0.5, 0.9999, "between 50 % and 99.99 %"))]
Precision = Annotated[Fraction, AfterValidator(_between(1e-4, 1, "between 0.01 % and 100 %"))]
Share = Annotated[Fraction, AfterValidator(_between(0, 1, "between 0 and 1"))]
Count = Annotated[int, BeforeValidator(_whole), AfterValidator(_between(1, 10**9, "at least 1"))]
Text = Annotated[str, BeforeValidator(_plain_text)]
Operations = Annotated[
    tuple[Operation, ...],
    BeforeValidator(_listed),
    AfterValidator(_distinct),
]


# --- options of the checks --------------------------------------------------------------------------------------------


class CheckOptions(Record):
    """What every check takes; ``deadline_s`` replaces its own deadline."""

    deadline_s: Seconds | None = None


class MeasuringOptions(CheckOptions):
    """How long a figure is measured: till its interval is narrow, and no longer than its budget.

    ``budget_s`` are the seconds for one figure; ``confidence`` is the probability of the median's interval, and
    ``precision`` the half width of that interval, relative to the median, at which the measuring stops early.
    """

    budget_s: Seconds = 0.5
    confidence: Confidence = 0.95
    precision: Precision = 0.02


class NodeSpeedOptions(MeasuringOptions):
    """Memory bandwidth and a compute loop on each node, ``budget_s`` for each."""


class PairsOptions(MeasuringOptions):
    """All pairs of nodes; ``budget_s`` is for one pair and one size.

    ``max_rounds`` None plays the whole tournament; a number samples so many of its rounds.
    """

    budget_s: Seconds = 0.1
    latency_bytes: PairSizes = (1, 64, 4096)
    bandwidth_bytes: PairSizes = (65536, _MIB, 8 * _MIB)
    max_rounds: Count | None = None


class SweepOptions(MeasuringOptions):
    """Collectives over message sizes; ``budget_s`` is for one operation and one size."""

    operations: Operations = OPERATIONS
    sizes: Sizes = (8, 65536, _MIB, 16 * _MIB)


class TrainingOptions(CheckOptions):
    """A fixed-seed language model of so many steps; the loss may miss the single process's by ``tolerance``."""

    steps: Count = 20
    tolerance: Share = 1e-4


# Every check that a suite can name, in the order in which they run, with the model of its options.
CHECKS: Mapping[str, type[CheckOptions]] = {
    "hello": CheckOptions,
    "point_to_point": CheckOptions,
    "broadcast": CheckOptions,
    "scatter": CheckOptions,
    "gather": CheckOptions,
    "reduce": CheckOptions,
    "allreduce": CheckOptions,
    "network": CheckOptions,
    "node_speed": NodeSpeedOptions,
    "pairs": PairsOptions,
    "collectives": SweepOptions,
    "nccl": CheckOptions,
    "nccl_sweep": SweepOptions,
    "torchrun": CheckOptions,
    "horovod": CheckOptions,
    "horovod_sweep": SweepOptions,
    "training": TrainingOptions,
}
GROUND = ("reachable", "provisioned", "skew")  # always looked at first, so that no suite needs to name them

_SWEPT: Mapping[str, Unit] = {"time": "s", "algorithm_bandwidth": "B/s", "bus_bandwidth": "B/s"}
# What each check measures that a reference can speak of, and in which unit.
QUANTITIES: Mapping[str, Mapping[str, Unit]] = {
    "node_speed": {"memory_bandwidth": "B/s", "compute": "FLOP/s", "gpu_clock": "Hz"},
    "pairs": {"latency": "us", "bandwidth": "B/s"},
    "collectives": _SWEPT,
    "nccl_sweep": _SWEPT,
    "horovod_sweep": _SWEPT,
    "training": {"efficiency": "1", "time": "s", "throughput": "tokens/s"},
}


# --- what figures are to be -------------------------------------------------------------------------------------------


def _read_value(data: object) -> object:
    """Take ``value: 1.25 GB/s`` apart, and turn it into the unit in which records count."""
    if not isinstance(data, dict) or "value" not in data:
        return data
    figure, words = units.number(data["value"])
    told = data.get("unit")
    if told is not None and not isinstance(told, str):
        told = str(told)
    if words and told is not None and units.unit(words)[0] != units.unit(told)[0]:
        raise ValueError(f"the value is in {words}, and the unit is {told}; give one of them")
    if not (words or told):
        return {**data, "value": figure}
    unit, factor = units.unit(words or told or "")
    return {**data, "value": figure * factor, "unit": unit}


class Limits(Record):
    """What a figure is to be, and by what fraction of it the figure may miss it (-0.1: ten per cent below).

    ``unit`` None is the unit of the quantity it is about.
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
            raise ValueError("neither lower nor upper is given, so it judges nothing; write 'lower: -10 %'")
        lower, upper = self.lower or 0.0, self.upper or 0.0
        if lower > upper:
            raise ValueError(f"lower ({lower:g}) is above upper ({upper:g}); they are swapped")
        if lower > 0 or upper < 0:
            raise ValueError(
                f"lower is a fraction of the value and at most 0, upper at least 0; these are {lower:g} and {upper:g}"
            )
        if lower <= -1:
            raise ValueError(f"lower {units.percent(lower)} lets everything pass; it has to be above -100 %")
        return self


class ReferenceEntry(Limits):
    """Which figures it is about: what is not given (empty, None) is any. The entry that gives most speaks."""

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
    """When a node or a link stands out: by more than ``floor``, and with so few false alarms a healthy run."""

    floor: Share = 0.03
    false_alarms_per_run: Annotated[Fraction, AfterValidator(_between(1e-6, 0.5, "between 0.0001 % and 50 %"))] = 0.01


class HistoryOptions(Record):
    """When a figure is another than on the last good runs: by more than ``mads`` scaled MADs and more than ``floor``.

    The last ``runs`` count; with fewer than ``at_least`` the history says nothing.
    """

    runs: Annotated[int, BeforeValidator(_whole), AfterValidator(_between(2, 1000, "between 2 and 1000"))] = 20
    at_least: Annotated[int, BeforeValidator(_whole), AfterValidator(_between(2, 1000, "between 2 and 1000"))] = 5
    mads: Annotated[float, BeforeValidator(lambda value: units.number(value)[0])] = 4.5
    floor: Share = 0.10

    @model_validator(mode="after")
    def _sensible(self) -> HistoryOptions:
        if self.mads <= 0:
            raise ValueError(f"mads {self.mads:g} is not above 0")
        if self.at_least > self.runs:
            raise ValueError(f"at_least ({self.at_least}) is above runs ({self.runs}), so it would never speak")
        return self


# --- the user's own checks --------------------------------------------------------------------------------------------


def _command(value: object) -> object:
    """Split a command as a shell would, without one: nothing in it is expanded."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words: {str(error).lower()}") from None


class ExternalCheck(Record):
    """A program of the user's, and how to read what it prints.

    Attributes:
        name: what the check is called; a word of small letters, digits and underscores.
        title: what it proves, in a few words.
        command: its argv; never seen by a shell.
        on: ``launch_node`` (once), ``each_node`` (once on each, by itself) or ``mpi`` (as the ranks of one job).
        ranks_per_node: for ``mpi``, ranks on each node; None is one a slot.
        deadline_s: seconds after which it is ended.
        parser: the benchmark whose output it prints.
        regex: a regular expression whose group ``value`` (or only group) is the figure, on any line.
        json_path: the way to the figure in the JSON that it prints, ``results[0].bandwidth``.
        quantity: what the figure is; the check's name where it is not given.
        unit: of the figure, as it is kept; ``unit: MB/s`` in a file sets ``scale`` too.
        scale: by what the printed number is multiplied.
        better: which way is good; ``none`` is reported and never judged.
        reference: what the figure is to be.
    """

    name: Text
    title: Text = ""
    command: Annotated[tuple[Text, ...], BeforeValidator(_command)]
    on: Literal["launch_node", "each_node", "mpi"] = "launch_node"
    ranks_per_node: Count | None = None
    deadline_s: Seconds = 60.0
    parser: Literal["nccl-tests", "osu", "imb"] | None = None
    regex: Text = ""
    json_path: Text = ""
    quantity: Text = ""
    unit: Unit = "1"
    scale: float = 1.0
    better: Better = "none"
    reference: Limits | None = None

    @model_validator(mode="before")
    @classmethod
    def _units(cls, data: object) -> object:
        if not isinstance(data, dict) or "unit" not in data:
            return data
        unit, factor = units.unit(str(data["unit"]))
        scale = units.number(data["scale"])[0] if "scale" in data else factor
        return {**data, "unit": unit, "scale": scale}

    @model_validator(mode="after")
    def _sensible(self) -> ExternalCheck:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterable[str]:
        ways = [word for word in ("parser", "regex", "json_path") if getattr(self, word)]
        if _NAME.fullmatch(self.name) is None:
            yield f"the name '{self.name}' is no word of small letters, digits and underscores"
        if self.name in {*CHECKS, *GROUND}:
            yield f"'{self.name}' is the name of one of clusterctl's own checks; choose another"
        if not self.command:
            yield "the command is empty"
        if len(ways) > 1:
            yield f"{' and '.join(ways)} are given; give one of them"
        if self.regex:
            yield from self._regex_problems()
        if self.json_path and _JSON_PATH.fullmatch(self.json_path) is None:
            yield f"json_path '{self.json_path}' is no path such as results[0].bandwidth"
        if self.scale <= 0:
            yield f"scale {self.scale:g} is not above 0"
        if self.reference is not None:
            yield from self._reference_problems(ways)
        if self.ranks_per_node is not None and self.on != "mpi":
            yield f"ranks_per_node is for 'on: mpi', and this one is 'on: {self.on}'"

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
        """The quantity of its figure."""
        return self.quantity or self.name


_JSON_PATH = re.compile(r"(?:\$\.?)?(?:[\w-]+|\[\d+\])(?:\.[\w-]+|\[\d+\])*")
# What the three benchmarks print, as the parsers of checks/parsers name it.
_BENCHMARKS: Mapping[str, Mapping[str, Unit]] = {
    "nccl-tests": _SWEPT,
    "osu": {"latency": "us", "bandwidth": "B/s", "time": "s", "message_rate": "1"},
    "imb": {"latency": "us", "bandwidth": "B/s", "time": "s"},
}


# --- the suite --------------------------------------------------------------------------------------------------------


class Suite(Record):
    """Checks with their options, in the order in which they run, and what their figures are to be."""

    name: str
    checks: dict[str, SerializeAsAny[CheckOptions]]
    external: tuple[ExternalCheck, ...] = ()
    references: tuple[ReferenceEntry, ...] = ()
    outliers: OutlierOptions = OutlierOptions()
    history: HistoryOptions = HistoryOptions()
    path: str = Field(default="", description="the file it was read from")

    def options(self, check: str, kind: type[R]) -> R:
        """Return a check's options; the defaults of nightly where this suite does not run it.

        Raises:
            TypeError: the check has options of another kind.
        """
        found = self.checks.get(check) or _NIGHTLY.checks[check]
        if not isinstance(found, kind):
            raise TypeError(f"{check} has {type(found).__name__}, no {kind.__name__}")
        return found

    @property
    def every_reference(self) -> tuple[ReferenceEntry, ...]:
        """The references of the suite, those that stand with the user's own checks among them."""
        own = (
            ReferenceEntry(check=one.name, quantity=one.measures, **one.reference.model_dump())
            for one in self.external
            if one.reference is not None
        )
        return (*self.references, *own)


_ANSWERS = ("hello", "point_to_point", "broadcast", "scatter", "gather", "reduce", "allreduce", "network")
_STACK_ANSWERS = ("nccl", "torchrun", "horovod")


def _ordered(options: Mapping[str, CheckOptions]) -> dict[str, CheckOptions]:
    return {name: options[name] for name in CHECKS if name in options}


def _every(given: Mapping[str, CheckOptions]) -> dict[str, CheckOptions]:
    return {name: given.get(name, kind()) for name, kind in CHECKS.items()}


_SMOKE = Suite(
    name="smoke",
    checks=_ordered(
        {
            **{name: CheckOptions() for name in (*_ANSWERS, *_STACK_ANSWERS)},
            "node_speed": NodeSpeedOptions(budget_s=0.5, precision=0.05),
            "pairs": PairsOptions(
                budget_s=0.1, precision=0.05, latency_bytes=(8,), bandwidth_bytes=(_MIB,), max_rounds=16
            ),
        }
    ),
)
_NIGHTLY = Suite(
    name="nightly",
    checks=_every(
        {
            "node_speed": NodeSpeedOptions(budget_s=2.0),
            "pairs": PairsOptions(budget_s=0.2, max_rounds=128),
        }
    ),
)
_FULL = Suite(
    name="full",
    checks=_every(
        {
            "node_speed": NodeSpeedOptions(budget_s=10.0, precision=0.01),
            "pairs": PairsOptions(
                budget_s=1.0,
                precision=0.01,
                latency_bytes=(1, 8, 64, 512, 4096),
                bandwidth_bytes=(65536, _MIB, 8 * _MIB, 64 * _MIB),
            ),
            **{
                name: SweepOptions(
                    budget_s=3.0,
                    precision=0.01,
                    sizes=(8, 1024, 8192, 65536, 524288, 4 * _MIB, 32 * _MIB, 256 * _MIB),
                )
                for name in ("collectives", "nccl_sweep", "horovod_sweep")
            },
            "training": TrainingOptions(steps=100),
        }
    ),
)
BUILTIN: Mapping[str, Suite] = {suite.name: suite for suite in (_SMOKE, _NIGHTLY, _FULL)}
DEFAULT = "smoke"


def builtin(name: str) -> Suite:
    """Return one of clusterctl's own suites.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in BUILTIN:
        raise ConfigError(f"There is no suite named '{name}'; {_hint(name, BUILTIN, 'the suites are')}")
    return BUILTIN[name]


def load(path: Path | None, name: str | None = None) -> Suite:
    """Return the suite that a run is to take.

    Args:
        path: the user's ``validation.yml``, if there is one.
        name: the suite's name. None is the file's own suite, or smoke where there is no file. The name of a built-in
            suite that the file does not extend takes that one's checks, with the file's references and thresholds.

    Raises:
        ConfigError: the file cannot be read or is wrong, or there is no such suite.
    """
    if path is None:
        return builtin(name or DEFAULT)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}; give another, or none for the built-in suites.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"{path} cannot be read: {why}.") from None
    own = parse(text, str(path))
    if name is None or name == own.name:
        return own
    if name not in BUILTIN:
        known = {**BUILTIN, own.name: own}
        raise ConfigError(f"There is no suite named '{name}' in {path}; {_hint(name, known, 'the suites are')}")
    return own.model_copy(update={"name": name, "checks": BUILTIN[name].checks, "external": ()})


def parse(text: str, place: str) -> Suite:
    """Read a suite as a file has it.

    Args:
        text: what the file holds.
        place: how a message is to call it.

    Raises:
        ConfigError: something in it is wrong; the message gives the line and the cure.
    """
    return _File(marked.read(text, place)).suite()


class _File:
    """A file's values on their way to a suite."""

    _KEYS = ("name", "extends", "checks", "references", "external", "outliers", "history")

    def __init__(self, document: Document) -> None:
        self._document = document
        self._base: Suite | None = None

    def suite(self) -> Suite:
        data = self._document.data
        if data is None:
            raise ConfigError(f"{self._document.name} is empty; begin with 'extends: nightly'.")
        data = self._mapping((), data, "the file")
        for key in data:
            if key not in self._KEYS:
                self._refuse((key,), f"there is no key '{key}'; {_hint(key, self._KEYS, 'the keys are')}")
        self._base = self._extended(data)
        external = self._external(data)
        suite = Suite(
            name=self._name(data),
            checks=self._checks(data, external),
            external=external,
            references=self._references(data, external),
            outliers=self._part(data, "outliers", OutlierOptions),
            history=self._part(data, "history", HistoryOptions),
            path=self._document.name,
        )
        if not suite.checks and not suite.external:
            self._refuse((), "the suite runs nothing; begin with 'extends: nightly', or name checks under 'checks'")
        return suite

    def _extended(self, data: Mapping[str, Any]) -> Suite | None:
        given = data.get("extends")
        if given is None:
            return None
        if not isinstance(given, str) or given not in BUILTIN:
            self._refuse(
                ("extends",), f"there is no suite named '{given}'; {_hint(str(given), BUILTIN, 'the suites are')}"
            )
        return BUILTIN[given]

    def _name(self, data: Mapping[str, Any]) -> str:
        given = data.get("name", self._base.name if self._base else "own")
        if not isinstance(given, str) or _NAME.fullmatch(given.replace("-", "_")) is None:
            self._refuse(("name",), f"the name '{given}' is no word of small letters, digits, '-' and '_'")
        if given in BUILTIN and (self._base is None or self._base.name != given):
            self._refuse(("name",), f"'{given}' is the name of a built-in suite; choose another")
        return str(given)

    def _checks(self, data: Mapping[str, Any], external: Iterable[ExternalCheck]) -> dict[str, CheckOptions]:
        found = dict(self._base.checks) if self._base else {}
        given = data.get("checks")
        if given is None:
            return found
        own = {one.name for one in external}
        for name, options in self._mapping(("checks",), given, "'checks'").items():
            place = ("checks", name)
            if name in GROUND:
                self._refuse(place, f"'{name}' is always looked at; take it out of the suite")
            if name in own:
                self._refuse(place, f"'{name}' stands under 'external' and runs without being named here")
            if name not in CHECKS:
                self._refuse(place, f"there is no check named '{name}'; {_hint(name, CHECKS, 'the checks are')}")
            if options is False:
                found.pop(name, None)
                continue
            before = found.get(name) or _NIGHTLY.checks[name]
            told = {} if options in (None, True) else self._mapping(place, options, f"'{name}' (or true, or false)")
            found[name] = self._model(CHECKS[name], {**before.model_dump(), **told}, place)
        return _ordered(found)

    def _external(self, data: Mapping[str, Any]) -> tuple[ExternalCheck, ...]:
        found: dict[str, ExternalCheck] = {}
        for number, given in enumerate(self._list(data, "external")):
            place = ("external", number)
            one = self._model(ExternalCheck, self._mapping(place, given, "a check"), place)
            if one.name in found:
                self._refuse((*place, "name"), f"two checks are named '{one.name}'; rename one of them")
            found[one.name] = one
        return tuple(found.values())

    def _references(self, data: Mapping[str, Any], external: Iterable[ExternalCheck]) -> tuple[ReferenceEntry, ...]:
        measured = {**QUANTITIES, **{one.name: _measured(one) for one in external}}
        found: dict[tuple[Any, ...], ReferenceEntry] = {}
        for number, given in enumerate(self._list(data, "references")):
            place = ("references", number)
            entry = self._model(ReferenceEntry, self._mapping(place, given, "a reference"), place)
            entry = self._with_unit(entry, measured, place)
            key = (entry.check, entry.quantity, *entry.about)
            if key in found:
                self._refuse(place, f"a reference for this {entry.quantity} of '{entry.check}' stands above already")
            found[key] = entry
        return tuple(found.values())

    def _with_unit(
        self, entry: ReferenceEntry, measured: Mapping[str, Mapping[str, Unit]], place: Place
    ) -> ReferenceEntry:
        """Turn the value into the unit of what it is about; another kind of unit is refused here, not at night."""
        if entry.check not in measured:
            if entry.check in {*CHECKS, *GROUND}:
                words = f"'{entry.check}' measures nothing; {_hint('', measured, 'checks that measure are')}"
            else:
                words = (
                    f"there is no check named '{entry.check}'; {_hint(entry.check, measured, 'those that measure are')}"
                )
            self._refuse((*place, "check"), words)
        quantities = measured[entry.check]
        if entry.quantity not in quantities:
            hint = _hint(entry.quantity, quantities, "it measures")
            self._refuse((*place, "quantity"), f"'{entry.check}' does not measure '{entry.quantity}'; {hint}")
        wanted = quantities[entry.quantity]
        if entry.unit is None:
            return entry.model_copy(update={"unit": wanted})
        try:
            value = units.converted(entry.value, entry.unit, wanted)
        except ValueError:
            self._refuse(place, f"{entry.quantity} of '{entry.check}' is in {wanted}, not in {entry.unit}")
        return entry.model_copy(update={"value": value, "unit": wanted})

    def _part(self, data: Mapping[str, Any], key: str, kind: type[R]) -> R:
        given = data.get(key)
        return kind() if given is None else self._model(kind, self._mapping((key,), given, f"'{key}'"), (key,))

    def _mapping(self, place: Place, value: object, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(place, f"{what} has to be keys with values ('key: value'), and this is {_kind(value)}")
        return dict(value)

    def _list(self, data: Mapping[str, Any], key: str) -> list[Any]:
        given = data.get(key)
        if given is not None and not isinstance(given, list):
            self._refuse((key,), f"'{key}' has to be a list ('- check: …'), and this is {_kind(given)}")
        return list(given or ())

    def _model(self, kind: type[R], data: Mapping[str, Any], place: Place) -> R:
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            problem = error.errors()[0]
            inside = (*place, *(part for part in problem["loc"] if part not in {"tuple", "nullable"}))
            self._refuse(inside, _words(problem, kind))

    def _refuse(self, place: Place, words: str) -> NoReturn:
        end = "" if words.endswith("?") else "."
        raise ConfigError(f"{self._document.where(place)}: {_path(place)}{words}{end}")


def _measured(one: ExternalCheck) -> Mapping[str, Unit]:
    return _BENCHMARKS[one.parser] if one.parser else {one.measures: one.unit}


def _words(problem: ErrorDetails, kind: type[Record]) -> str:
    """Return what is wrong with a value, without the name of its place."""
    key, given = str(problem["loc"][-1]) if problem["loc"] else "", problem.get("input")
    if problem["type"] == "extra_forbidden":
        fields = _fields(kind, problem["loc"][:-1])
        return f"there is no key '{key}'; {_hint(key, fields, 'the keys are')}"
    if problem["type"] == "missing":
        return f"'{key}' is missing"
    if problem["type"] == "literal_error":
        expected = str(problem.get("ctx", {}).get("expected", "")).replace("'", "")
        words = re.split(r", | or ", expected)
        return f"'{given}' is not known; {_hint(str(given), words, 'known are')}"
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    return f"{_kind(given)} does not belong there ({str(problem['msg']).lower()})"


def _fields(kind: type[Record], place: Iterable[str | int]) -> Iterable[str]:
    """Return the keys that a model has, or the model inside it at a place."""
    for part in place:
        if part == "reference":
            kind = Limits
    return kind.model_fields


def _hint(given: str, known: Iterable[str], otherwise: str) -> str:
    names = list(known)
    near = difflib.get_close_matches(given.replace("-", "_").lower(), names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"{otherwise} {', '.join(names)}"


def _path(place: Place) -> str:
    """Return 'pairs.budget_s: ' for a place; items of lists are told by their line."""
    words = ".".join(str(part) for part in place if isinstance(part, str))
    return f"{words}: " if words else ""


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    names = {dict: "keys with values", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else "something else")
