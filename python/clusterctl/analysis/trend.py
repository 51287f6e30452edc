"""When a figure became another: pure arithmetic over its earlier values."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.analysis import robust_stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.suite import HistoryOptions


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
    """What a figure was, and between which values it is still the same, in the figure's unit."""

    median: float
    low: float
    high: float

    def side(self, value: float) -> int:
        """Return 0 within the band, -1 below, 1 above."""
        return (value > self.high) - (value < self.low)


def noise_of(options: HistoryOptions) -> Noise:
    return Noise(floor=options.floor, mads=options.mads, at_least=options.at_least)


def band(values: Sequence[float], noise: Noise) -> Band | None:
    """Return the band of these values, None where they are too few.

    It is reckoned in logarithms, so that half as fast is as far away as twice as fast; where a value is not above 0, as
    it stands.
    """
    if len(values) < max(1, noise.at_least):
        return None
    if min(values) > 0:
        centre, width = _around([math.log(value) for value in values], noise, math.log1p(noise.floor))
        return Band(math.exp(centre), math.exp(centre - width), _exp(centre + width))
    centre, width = _around(values, noise, noise.floor * abs(statistics.median(values)))
    return Band(centre, centre - width, centre + width)


def _around(values: Sequence[float], noise: Noise, least: float) -> tuple[float, float]:
    return statistics.median(values), max(least, noise.mads * robust_stats.NORMAL * robust_stats.mad(values))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def changed_at(values: Sequence[float], noise: Noise) -> int | None:
    """Return where the present, unbroken stretch outside the earlier band begins.

    From this smallest index on, every value lies outside the band of all values before it, and on the same side. None
    where the last value is as the earlier ones were, or where too few came before.
    """
    for start in range(max(1, noise.at_least), len(values)):
        earlier = band(values[:start], noise)
        if earlier is None:
            continue
        sides = {earlier.side(value) for value in values[start:]}
        if len(sides) == 1 and 0 not in sides:
            return start
    return None
