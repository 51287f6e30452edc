"""The rule that names: what is worse than the floor and worse than chance makes the worst of so many."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import robust_stats
from clusterctl.analysis.distributions import t_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.analysis.link_model import Floats

OF_MEDIAN = 1.2533  # standard error of a median over that of a mean, sqrt(pi / 2)
_FEWEST_SAMPLES = 5  # behind a median, where their number is not known
_MOST_NAMED = 1000


@dataclass(frozen=True)
class OutlierPolicy:
    """When somebody is named.

    Attributes:
        floor: the least effect: 0.03 ignores a node that is less than 3 % worse than its neighbours.
        false_alarms: the share of healthy runs in which anybody may be named, after ``runs`` independent runs.
        runs: how many runs have to name the same node or pair (:func:`agreement.confirm`). Each may then name somebody
            in ``false_alarms ** (1 / runs)`` of healthy cases, one in ten by default, and is worth a second run.
        families: how many groups of figures and matrices are looked at in a run; they share the false alarms.
    """

    floor: float = 0.03
    false_alarms: float = 0.01
    runs: int = 2
    families: int = 1

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


@dataclass(frozen=True)
class Outlier:
    """The outliers: position among the tested, distance in logarithms, score."""

    at: int
    distance: float
    score: float


def limits(scale: Floats, dof: int, level: float, floor: float) -> Floats:
    """Return the distance from which on each value is named.

    Args:
        scale: the standard deviation of each value.
        dof: the degrees of freedom behind the scale.
        level: how often any of the values may be named by chance.
        floor: the least distance, as a logarithm.
    """
    return np.maximum(floor, _threshold(scale.size, dof, level) * scale)


def beyond(distances: Floats, scale: Floats, dof: int, level: float, floor: float) -> list[Outlier]:
    """Return the values at or beyond their limit (:func:`limits`), with their scores."""
    # Where most are equal their scale is nothing; the floor then decides alone.
    scores = distances / np.maximum(scale, floor / _threshold(distances.size, dof, level))
    found = np.flatnonzero(distances > limits(scale, dof, level, floor))
    return [Outlier(int(at), float(distances[at]), float(scores[at])) for at in found]


def _threshold(count: int, dof: int, level: float) -> float:
    """Return the score that the worst of so many exceeds by chance with this probability, after Sidak."""
    return t_quantile(1 - (1 - level) ** (1 / count), dof)


def link_noise(common: float, noise: Floats) -> Floats:
    """Return by how much each link may be off: what all are, and more where its own samples scatter more."""
    typical = float(np.median(noise))
    if not typical:
        return np.full(noise.size, common)
    own = OF_MEDIAN * robust_stats.NORMAL * noise / math.sqrt(_FEWEST_SAMPLES)
    return np.maximum(common, np.minimum(common * noise / typical, np.hypot(common, own)))


def by_score(named: Iterable[Outlier]) -> list[Outlier]:
    """Return the worst first, and no more than anybody reads."""
    return sorted(named, key=lambda one: -one.score)[:_MOST_NAMED]
