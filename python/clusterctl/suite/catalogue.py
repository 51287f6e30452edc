"""The checks that a suite can name, the three built-in suites (smoke, nightly and full), and those of a user's file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, get_args

import yaml
from pydantic import ValidationError

from clusterctl.model import units
from clusterctl.model.base import Record
from clusterctl.model.hosts import InventorySources
from clusterctl.suite.model import (
    BENCHMARKS,
    GATE,
    NAME,
    CheckOptions,
    ExternalCheck,
    HistoryOptions,
    Limits,
    OutlierOptions,
    ReferenceEntry,
    Suite,
    nearest,
)
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.results import Unit


BuiltinName: TypeAlias = Literal["smoke", "nightly", "full"]
DEFAULT: BuiltinName = "smoke"
_SMALLER: tuple[BuiltinName, ...] = get_args(BuiltinName)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a suite knows of a check."""

    name: str  # the name in a suite's file and on the command line
    order: int  # its place among the checks of a run; a check with a lower number runs earlier
    options: type[CheckOptions] = CheckOptions  # the model of its options
    measures: Mapping[str, Unit] = field(default_factory=dict)  # the unit of each quantity that a reference can name
    # the smallest built-in suite that runs it, and all larger ones do; None is only on request, by a suite file or
    # ``--checks``
    first_suite: BuiltinName | None = "nightly"
    # its options in a built-in suite, where they differ from the defaults of the model
    tuned: Mapping[BuiltinName, CheckOptions] = field(default_factory=dict)


class Catalogue:
    """The known checks in the order in which they run, and the suites that are made of them."""

    def __init__(self, declarations: Iterable[Declaration]) -> None:
        """Sort the declarations.

        Raises:
            ValueError: two checks have the same name or the same place.
        """
        found = sorted(declarations, key=lambda one: one.order)
        for what, times in (Counter(one.name for one in found) + Counter(one.order for one in found)).items():
            if times > 1:
                raise ValueError(f"two checks have the name or the order {what!r}")
        self.checks: Mapping[str, Declaration] = {one.name: one for one in found}
        self.suites: Mapping[str, Suite] = {name: self._builtin(name) for name in get_args(BuiltinName)}

    def _builtin(self, name: BuiltinName) -> Suite:
        return Suite(
            name=name,
            checks={
                one.name: one.tuned.get(name) or one.options()
                for one in self.checks.values()
                if one.first_suite is not None and _SMALLER.index(one.first_suite) <= _SMALLER.index(name)
            },
        )

    def ordered(self, options: Mapping[str, CheckOptions]) -> dict[str, CheckOptions]:
        return {name: options[name] for name in self.checks if name in options}

    def options(self, name: str) -> CheckOptions:
        """Return the options of a check that a suite does not run, those of nightly."""
        one = self.checks[name]
        return one.tuned.get("nightly") or one.options()

    def builtin(self, name: str) -> Suite:
        if name not in self.suites:
            raise ConfigError(f"Unknown suite '{name}'; {nearest(name, self.suites, 'the suites are')}")
        return self.suites[name]

    def parse(self, text: str, place: str) -> Suite:
        """Read a suite from the text of a file.

        ``place`` is the name of the file in messages.

        Raises:
            ConfigError: the text is wrong; the message gives the line and the cure.
        """
        return SuiteFile(text, place, self).suite()

    def load(self, path: Path | None, name: str | None = None) -> Suite:
        """Return the suite of a run.

        ``name`` None is the file's own suite, or smoke without a file. A built-in suite that the file does not extend
        gives its checks; references and thresholds stay those of the file.

        Raises:
            ConfigError: the file is unreadable or wrong, or the suite is unknown.
        """
        if path is None:
            return self.builtin(name or DEFAULT)
        own = self.parse(_text(path), str(path))
        if name is None or name == own.name:
            return own
        if name not in self.suites:
            known = {**self.suites, own.name: own}
            raise ConfigError(f"Unknown suite '{name}' in {path}; {nearest(name, known, 'the suites are')}")
        return own.model_copy(update={"name": name, "checks": self.suites[name].checks, "external": ()})


def beside(inventory: AnyInventory) -> Path | None:
    """Return the ``validation.yml`` beside an inventory file or in an inventory folder, None where there is none.

    Of several inventories the last one that has the file counts, as for variables.
    """
    places = [path if path.is_dir() else path.parent for path in InventorySources.of(inventory).paths]
    found = [place / "validation.yml" for place in places if (place / "validation.yml").is_file()]
    return found[-1] if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"There is no file {path}; give the path of a suite file, or leave it out for the built-in suites."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give the path of a readable file.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be read: it is not UTF-8 text. Save it as UTF-8.") from None


# --- reading a user's suite file; each mistake becomes one sentence with its line -------------------------------------

R = TypeVar("R", bound=Record)


class SuiteFile:
    """A suite file that is being read: its values, and the known checks."""

    _KEYS = ("name", "extends", "checks", "references", "external", "outliers", "history")

    def __init__(self, text: str, place: str, known: Catalogue) -> None:
        self._document = read(text, place)
        self._known = known
        self._base: Suite | None = None

    def suite(self) -> Suite:
        data = self._document.data
        if data is None:
            raise ConfigError(f"{self._document.name} is empty; begin with 'extends: nightly'.")
        data = self._mapping((), data, "the file")
        for key in data:
            if key not in self._KEYS:
                self._refuse((key,), f"unknown key '{key}'; {nearest(key, self._KEYS, 'the keys are')}")
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
            self._refuse((), "the suite is empty; begin with 'extends: nightly', or name checks under 'checks'")
        return suite

    def _extended(self, data: Mapping[str, Any]) -> Suite | None:
        given = data.get("extends")
        if given is None:
            return None
        if not isinstance(given, str) or given not in self._known.suites:
            hint = nearest(str(given), self._known.suites, "the suites are")
            self._refuse(("extends",), f"unknown suite '{given}'; {hint}")
        return self._known.suites[given]

    def _name(self, data: Mapping[str, Any]) -> str:
        given = data.get("name", self._base.name if self._base else "own")
        if not isinstance(given, str) or NAME.fullmatch(given.replace("-", "_")) is None:
            self._refuse(("name",), f"the name '{given}' must consist of small letters, digits, '-' and '_'")
        if given in self._known.suites and (self._base is None or self._base.name != given):
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
            if name in GATE:
                self._refuse(place, f"'{name}' always runs; take it out of the suite")
            if name in own:
                self._refuse(place, f"'{name}' is under 'external' and runs already; take it out of 'checks'")
            if name not in self._known.checks:
                hint = nearest(name, self._known.checks, "the checks are")
                self._refuse(place, f"unknown check '{name}'; {hint}")
            if options is False:
                found.pop(name, None)
                continue
            before = found.get(name) or self._known.options(name)
            given_options = (
                {} if options in (None, True) else self._mapping(place, options, f"'{name}' (or true, or false)")
            )
            found[name] = self._model(self._known.checks[name].options, {**before.model_dump(), **given_options}, place)
        return self._known.ordered(found)

    def _external(self, data: Mapping[str, Any]) -> tuple[ExternalCheck, ...]:
        found: dict[str, ExternalCheck] = {}
        for number, given in enumerate(self._list(data, "external")):
            place = ("external", number)
            one = self._model(ExternalCheck, self._mapping(place, given, "a check"), place)
            if one.name in {*self._known.checks, *GATE}:
                self._refuse(place, f"'{one.name}' is the name of one of clusterctl's own checks; choose another")
            if one.name in found:
                self._refuse((*place, "name"), f"two checks are named '{one.name}'; rename one of them")
            found[one.name] = one
        return tuple(found.values())

    def _references(self, data: Mapping[str, Any], external: Iterable[ExternalCheck]) -> tuple[ReferenceEntry, ...]:
        measured = {
            **{one.name: one.measures for one in self._known.checks.values() if one.measures},
            **{one.name: _measured(one) for one in external},
        }
        found: dict[tuple[Any, ...], ReferenceEntry] = {}
        for number, given in enumerate(self._list(data, "references")):
            place = ("references", number)
            entry = self._model(ReferenceEntry, self._mapping(place, given, "a reference"), place)
            entry = self._with_unit(entry, measured, place)
            key = (entry.check, entry.quantity, *entry.about)
            if key in found:
                self._refuse(place, f"a reference for this {entry.quantity} of '{entry.check}' is given above already")
            found[key] = entry
        return tuple(found.values())

    def _with_unit(
        self, entry: ReferenceEntry, measured: Mapping[str, Mapping[str, Unit]], place: Place
    ) -> ReferenceEntry:
        """Convert the value to the unit of its quantity; refuse a unit of another kind."""
        if entry.check not in measured:
            if entry.check in {*self._known.checks, *GATE}:
                words = (
                    f"'{entry.check}' does not measure anything; {nearest('', measured, 'the checks that measure are')}"
                )
            else:
                hint = nearest(entry.check, measured, "those that measure are")
                words = f"unknown check '{entry.check}'; {hint}"
            self._refuse((*place, "check"), words)
        quantities = measured[entry.check]
        if entry.quantity not in quantities:
            hint = nearest(entry.quantity, quantities, "it measures")
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
        end = "" if words.endswith(("?", ".")) else "."
        raise ConfigError(f"{self._document.where(place)}: {_path(place)}{words}{end}")


def _measured(one: ExternalCheck) -> Mapping[str, Unit]:
    return BENCHMARKS[one.parser] if one.parser else {one.measures: one.unit}


def _words(problem: ErrorDetails, kind: type[Record]) -> str:
    """Say what is wrong with a value; the caller adds its place."""
    key, given = str(problem["loc"][-1]) if problem["loc"] else "", problem.get("input")
    if problem["type"] == "extra_forbidden":
        fields = _fields(kind, problem["loc"][:-1])
        return f"unknown key '{key}'; {nearest(key, fields, 'the keys are')}"
    if problem["type"] == "missing":
        return f"'{key}' is missing"
    if problem["type"] == "literal_error":
        expected = str(problem.get("ctx", {}).get("expected", "")).replace("'", "")
        words = re.split(r", | or ", expected)
        return f"'{given}' is not known; {nearest(str(given), words, 'known are')}"
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    return f"{_kind(given)} does not belong there ({str(problem['msg']).lower()})"


def _fields(kind: type[Record], place: Iterable[str | int]) -> Iterable[str]:
    """Return the keys of a model, or of the model at a place inside it."""
    for part in place:
        if part == "reference":
            kind = Limits
    return kind.model_fields


def _path(place: Place) -> str:
    """Return 'pairs.budget_s: ' for a place; the line number tells items of a list apart."""
    words = ".".join(str(part) for part in place if isinstance(part, str))
    return f"{words}: " if words else ""


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    names = {dict: "keys with values", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else "something else")


# --- YAML with the line of each value, so that a message can name the place -------------------------------------------
#
# Keys and values follow YAML 1.2: ``on``, ``off``, ``yes`` and ``no`` are words, only ``true`` and ``false`` are truth
# values. A duplicate key is an error.

Place: TypeAlias = "tuple[str | int, ...]"

_MOST_WORDS = 200
_MOST_VALUES = 100_000  # aliases of aliases can make a short file fill the memory


class _Loader(yaml.SafeLoader):
    """Knows the plain values of YAML 1.2's core schema alone."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML reads it from the class


for _tag, _form, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), _first)


@dataclass(frozen=True)
class Document:
    """The values of a file, and the line of each; the place of a value is the keys and indices that lead to it."""

    name: str
    data: Any
    lines: Mapping[Place, int]

    def where(self, place: Place) -> str:
        """Return 'validation.yml, line 12', for the nearest place that stands in the file."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.name}, line {self.lines[place]}" if place in self.lines else self.name


def read(text: str, name: str) -> Document:
    lines: dict[Place, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = None if node is None else _Values(name, loader, lines).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: invalid YAML: {error.problem or error.context}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is invalid YAML: {' '.join(str(error).split())[:_MOST_WORDS]}.") from None
    return Document(name, data, lines)


@dataclass
class _Values:
    """Turns the nodes of a document into values, and collects the line of each."""

    name: str
    loader: _Loader
    lines: dict[Place, int]

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if len(self.lines) > _MOST_VALUES:
            raise ConfigError(f"{self.name} has more than {_MOST_VALUES:,} values; leave some out.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        if node.tag == "tag:yaml.org,2002:int":
            return int(node.value, 0 if node.value[:2] in {"0o", "0x"} else 10)
        return self.loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self.name}, line {line}: a key has to be a word.")
            key = str(key_node.value)
            if key in found:
                raise ConfigError(f"{self.name}, line {line}: '{key}' stands there twice; remove one of them.")
            inside = (*place, key)
            self.lines[inside] = line
            found[key] = self.value(value_node, inside)
        return found
