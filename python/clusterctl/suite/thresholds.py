"""References of the user, and the thresholds for outliers and for changes since earlier runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, model_validator

from clusterctl.model import units
from clusterctl.model.base import Record
from clusterctl.model.results import Unit
from clusterctl.suite.values import Count, Fraction, Share, Size, Text, between, whole


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
