"""A suite as a value: checks with the options that all of them have, and what their figures are held against."""

from __future__ import annotations

from pydantic import Field, SerializeAsAny

from clusterctl.model.base import Record
from clusterctl.suite.external import ExternalCheck
from clusterctl.suite.thresholds import HistoryOptions, OutlierOptions, ReferenceEntry
from clusterctl.suite.values import Confidence, Precision, Seconds

# The checks of the gate run first in every validation; a suite never names them.
GATE = ("reachable", "provisioned", "skew")


class CheckOptions(Record):
    """What every check takes; ``deadline_s`` replaces the check's own deadline."""

    deadline_s: Seconds | None = None


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
