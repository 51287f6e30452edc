"""Probabilities of the Poisson distribution: how likely chance alone reaches a count."""

from __future__ import annotations

import math

_EXACT = 1e-12


def at_least(count: float, mean: float) -> float:
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
