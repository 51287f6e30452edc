"""Options that checks have in common; each check's module adds its own."""

from __future__ import annotations

from clusterctl.model.base import Record
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
