"""Medians of samples, their intervals and how far samples lie from them, in plain Python."""

from __future__ import annotations

import functools
import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

NORMAL = 1.4826  # standard deviation over MAD of the normal distribution, 1 / Φ⁻¹(3/4)
_EXACT_UP_TO = 200  # samples; beyond it the normal distribution is as good as the binomial one


def mad(samples: Sequence[float]) -> float:
    """Return the median absolute deviation from the median, in the unit of the samples, of which there is one."""
    middle = statistics.median(samples)
    return statistics.median(abs(value - middle) for value in samples)


def summary(samples: Sequence[float], confidence: float) -> dict[str, Any]:
    """Return what a ``Figure`` says of its samples: ``value``, ``low``, ``high`` and ``confidence``.

    There has to be a sample; too few have no interval, and then a confidence of 0.
    """
    low, high = median_interval(samples, confidence) or (None, None)
    value = statistics.median(samples)
    return {"value": value, "low": low, "high": high, "confidence": 0.0 if low is None else confidence}


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return the interval that holds the median of the source of these samples, with at least this probability.

    Its ends are two of the samples, for any distribution: below the true median lies each sample with a probability of
    one half, so that the number of those is binomial (order statistics; David and Nagaraja, "Order Statistics", 3rd
    edition, section 7.1). None where there are too few: 95 % takes six.
    """
    rank = _interval_rank(len(samples), confidence)
    ordered = sorted(samples)
    return (ordered[rank - 1], ordered[-rank]) if rank else None


@functools.lru_cache(maxsize=4096)
def _interval_rank(count: int, confidence: float) -> int:
    """Return k so that the k-th smallest and the k-th largest of so many samples are the interval, 0 for none."""
    tail = (1 - confidence) / 2
    if count > _EXACT_UP_TO:
        return max(0, int((count - statistics.NormalDist().inv_cdf(1 - tail) * math.sqrt(count)) / 2))
    rank, below = 0, 0.0
    while rank < count // 2:
        below += math.comb(count, rank) * 0.5**count  # exactly ``rank`` samples lie below the true median
        if below > tail:
            break
        rank += 1
    return rank
