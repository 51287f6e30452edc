"""The user's own checks in a suite file: a command, and how to read its output."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, model_validator

from clusterctl.model import units
from clusterctl.model.base import Record
from clusterctl.model.results import Better, Unit
from clusterctl.suite.thresholds import Limits
from clusterctl.suite.values import Count, Seconds, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    """A program of the user, and how to read its output.

    Attributes:
        name: the name of the check: small letters, digits and underscores.
        title: what it proves, in a few words.
        command: its argv, which does not pass a shell.
        where: ``launch_node`` (once), ``each_node`` (once on each, by itself) or ``mpi`` (as the ranks of one job).
        ranks_per_node: for ``mpi``, ranks on each node; None is one rank per slot.
        deadline_s: seconds after which it is ended.
        parser: the benchmark whose output it prints.
        regex: a regular expression whose group ``value`` (or only group) is the figure, on any line.
        json_path: path to the figure in printed JSON, such as ``results[0].bandwidth``; the JSON begins a line.
        quantity: what the figure measures; the default is the check's name.
        unit: of the figure, as it is kept; ``unit: MB/s`` in a file is kept as ``B/s`` and multiplies ``scale``.
        scale: factor of the printed number.
        better: which way is good; ``none`` is reported and never judged.
        reference: the expected value of the figure.
    """

    name: Text
    title: Text = ""
    command: Annotated[tuple[Text, ...], BeforeValidator(_command)]
    where: Literal["launch_node", "each_node", "mpi"] = "launch_node"
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
        """The quantity of its figure."""
        return self.quantity or self.name
