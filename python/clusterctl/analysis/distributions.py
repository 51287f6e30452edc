"""Student's t and the Poisson distribution, without scipy: how far out a value, or a count, may lie by chance."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_MANY = 200  # degrees of freedom from which the normal distribution with its first correction is exact enough
_NARROW = 1e-9  # relative width at which the bisection ends


@lru_cache(maxsize=1024)
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
        normal = -NormalDist().inv_cdf(tail)
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
