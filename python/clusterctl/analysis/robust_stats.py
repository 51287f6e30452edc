"""Medians of samples, their intervals, and how far out a value or a count may lie by chance, in plain Python.

Student's t and the Poisson distribution are here without scipy, which takes seconds to import.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusterctl.support import content

if TYPE_CHECKING:
    from clusterctl.model.results import Figure

NORMAL = 1.4826  # standard deviation over MAD of the normal distribution, 1 / Φ⁻¹(3/4)
OF_MEDIAN = 1.2533  # standard error of a median over that of a mean, sqrt(pi / 2)


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

    The nodes reckon it in the same way, where its source stands; None where there are too few: 95 % takes six.
    """
    found: tuple[float, float] | None = content.node_module("measure.py").median_interval(samples, confidence)
    return found


# --- Student's t: how far out a value may lie by chance ---------------------------------------------------------------

_MANY = 200  # degrees of freedom from which the normal distribution with its first correction is exact enough
_NARROW = 1e-9  # relative width at which the bisection ends


@functools.lru_cache(maxsize=1024)
def t_quantile(tail: float, dof: int) -> float:
    """Return the t that a variable of Student's distribution exceeds with probability ``tail``.

    The distribution function is the finite series for whole degrees of freedom (Abramowitz & Stegun, *Handbook of
    Mathematical Functions*, 26.7.3 and 26.7.4), inverted by bisection; beyond 200 degrees the first term of the
    expansion 26.7.5.

    Args:
        tail: one-sided, above 0 and at most 0.5; below 1e-13 the series has no digits left, so it counts as 1e-13.
        dof: degrees of freedom, at least 1.

    Raises:
        ValueError: there is no such quantile.
    """
    if not 0 < tail <= 0.5 or dof < 1:  # noqa: PLR2004 - the median
        raise ValueError(f"Student's t has no quantile for a tail of {tail:g} and {dof} degrees of freedom")
    tail = max(tail, 1e-13)
    if dof > _MANY:
        normal = -statistics.NormalDist().inv_cdf(tail)
        return normal + (normal**3 + normal) / (4 * dof)
    low, high = 0.0, 1.0
    while _above(high, dof) > tail:
        low, high = high, 2 * high
    while high - low > _NARROW * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _above(middle, dof) > tail else (low, middle)
    return high


def _above(value: float, dof: int) -> float:
    """Return the probability of more than ``value``."""
    angle = math.atan(value / math.sqrt(dof))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = dof % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(2 + odd, dof + 1, 2):
        total += term
        term *= cosine * cosine * (power - 1) / power
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 - inside) / 2


# --- Probabilities of the Poisson distribution: how likely chance alone reaches a count -------------------------------

_EXACT = 1e-12


def poisson_at_least(count: float, mean: float) -> float:
    """Return the probability that a Poisson variable reaches a count, which need not be whole.

    That is the lower regularized gamma function P(count, mean), by its series (Abramowitz & Stegun, *Handbook of
    Mathematical Functions*, 6.5.29).
    """
    if mean <= 0 or count <= mean:
        return 0.0 if mean <= 0 < count else 1.0
    term = total = 1 / count
    step = count
    while term > _EXACT * total:
        step += 1
        term *= mean / step
        total += term
    return min(1.0, total * math.exp(count * math.log(mean) - mean - math.lgamma(count)))


# --- When chance is left out, and somebody is named -------------------------------------------------------------------


@dataclass(frozen=True)
class OutlierPolicy:
    """When somebody is named."""

    floor: float = 0.03  # the least effect: 0.03 ignores a node that is less than 3 % worse than its neighbours
    # the share of healthy runs in which anybody may be named, after ``runs`` independent runs
    false_alarms: float = 0.01
    # how many runs have to name the same node or pair (:func:`agreement.confirm`). Each may then name somebody in
    # ``false_alarms ** (1 / runs)`` of healthy cases, one in ten by default, and is worth a second run.
    runs: int = 2
    families: int = 1  # how many groups of figures and matrices are looked at in a run; they share the false alarms
    # the hardware that a figure of one node is of: figures of unlike hardware are not held against each other
    hardware: Callable[[Figure], tuple[str, ...]] = field(default=lambda _figure: (), compare=False)

    def over(self, families: int) -> OutlierPolicy:
        """Return the policy for one of so many groups of figures and matrices of the same run."""
        return replace(self, families=max(1, families))

    @property
    def least(self) -> float:
        """The least effect, as a logarithm."""
        return math.log1p(self.floor)

    @property
    def level(self) -> float:
        """How often one run of one group may name anybody while all are healthy."""
        return min(0.5, math.pow(self.false_alarms, 1 / self.runs)) / self.families


DEFAULT = OutlierPolicy()
