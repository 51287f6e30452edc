"""When a figure became another: pure arithmetic over its earlier values."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# A normal distribution's standard deviation over its median absolute deviation: 1 / Φ⁻¹(3/4).
_SIGMA = 1.4826


@dataclass(frozen=True)
class Noise:
    """What is no change: less than the fraction ``floor``, or than ``mads`` scaled median absolute deviations.

    ``at_least`` is the number of values below which nothing is said.
    """

    floor: float = 0.10
    mads: float = 4.5
    at_least: int = 5


@dataclass(frozen=True)
class Band:
    """The median of earlier values, and how far from it is still the same; both in the figure's unit."""

    median: float
    mad: float
    width: float
    count: int

    def side(self, value: float) -> int:
        """Return 0 within the band, -1 below, 1 above."""
        if abs(value - self.median) <= self.width:
            return 0
        return 1 if value > self.median else -1


def band(values: Sequence[float], noise: Noise) -> Band | None:
    """Return the band of these values, None where they are too few."""
    if len(values) < max(1, noise.at_least):
        return None
    median = statistics.median(values)
    mad = statistics.median(abs(value - median) for value in values)
    return Band(median, mad, max(noise.floor * abs(median), noise.mads * _SIGMA * mad), len(values))


def changed_at(values: Sequence[float], noise: Noise) -> int | None:
    """Return where the present, unbroken stretch outside the earlier band begins.

    That is the smallest index such that from it on every value lies outside the band of all values before it, and on
    the same side. None where the last value is as the earlier ones were, or where too few came before.

    Args:
        values: oldest first.
        noise: what counts as the same.
    """
    for start in range(max(1, noise.at_least), len(values)):
        earlier = band(values[:start], noise)
        if earlier is None:
            continue
        sides = {earlier.side(value) for value in values[start:]}
        if len(sides) == 1 and 0 not in sides:
            return start
    return None
