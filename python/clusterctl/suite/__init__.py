"""What a validation runs, how long it measures, and what the figures are held against.

A :class:`Suite` is a frozen value. A :class:`Catalogue` of the known checks gives the built-in suites ``smoke``,
``nightly`` and ``full``, and reads the user's ``validation.yml``. A mistake in that file is one sentence with its line.
The checks themselves stand in :mod:`clusterctl.validation.checks`.
"""

from __future__ import annotations

from clusterctl.suite.catalogue import DEFAULT, Catalogue, Declaration, beside
from clusterctl.suite.model import (
    BENCHMARKS,
    GATE,
    OPERATIONS,
    CheckOptions,
    ExternalCheck,
    HistoryOptions,
    Limits,
    MeasuringOptions,
    OutlierOptions,
    ReferenceEntry,
    Suite,
    nearest,
)

__all__ = [
    "BENCHMARKS",
    "DEFAULT",
    "GATE",
    "OPERATIONS",
    "Catalogue",
    "CheckOptions",
    "Declaration",
    "ExternalCheck",
    "HistoryOptions",
    "Limits",
    "MeasuringOptions",
    "OutlierOptions",
    "ReferenceEntry",
    "Suite",
    "beside",
    "nearest",
]
