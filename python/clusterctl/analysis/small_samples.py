"""Outliers among so few values that a median of deviations says little: every explanation is tried.

With four nodes there are six links. An explanation is one suspect or two; the one that leaves the smallest squares is
taken where each of its suspects is significant beside what is left (Student's t of a least-squares coefficient), at a
level that all explanations share. That is the extreme deviate test of Grubbs (*Procedures for Detecting Outlying
Observations in Samples*, Technometrics 11, 1969) for suspects that may be more than one value: all links of a node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis.distributions import t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.analysis.link_model import Floats, Indices

_MOST_SUSPECTS = 2
_SINGULAR = 1e-9


@dataclass(frozen=True)
class Explanation:
    """What the values have in common, and the suspects (columns) with effect and score each."""

    level: float
    suspects: tuple[tuple[int, float, float], ...] = ()


def explain(
    values: Floats, columns: Floats, level: float, floor: float, scale: Callable[[float], Floats]
) -> Explanation:
    """Find one suspect or two that explain what is large.

    Args:
        values: logarithms, large ones being bad.
        columns: a row for each value and a column for each suspect, 1 where the suspect takes part.
        level: how often anybody may be named where all values differ by normal chance alone.
        floor: the least effect, as a logarithm.
        scale: turns the common standard deviation of the values into one for each, at least as large.
    """
    found = Explanation(float(np.median(values)))
    for number in range(1, _MOST_SUSPECTS + 1):
        dof = values.size - 1 - number
        if dof < 1:
            break
        better = _best(values, columns, number, level, floor, scale)
        found = better or found
    return found


def _best(
    values: Floats, columns: Floats, number: int, level: float, floor: float, scale: Callable[[float], Floats]
) -> Explanation | None:
    """Return the explanation by so many suspects that leaves the smallest squares, None where it does not convince."""
    sets, inverses, effects, left = _fits(values, columns, number)
    if not len(sets):
        return None
    left[(effects[:, 1:] <= 0).any(axis=1)] = np.inf  # a value on the good side is not suspected
    best = int(np.argmin(left))
    if not math.isfinite(left[best]):
        return None
    dof = values.size - 1 - number
    threshold = t_quantile(level / len(sets), dof)
    each = scale(math.sqrt(left[best] / dof))
    suspects = []
    for column, effect, share in zip(sets[best], effects[best, 1:], np.sqrt(np.diag(inverses[best])[1:]), strict=True):
        error = max(_error(share, each, columns[:, column]), floor / threshold)  # the floor decides where all is equal
        suspects.append((int(column), float(effect), float(effect) / error))
    if any(effect <= floor or score <= threshold for _, effect, score in suspects):
        return None
    return Explanation(float(effects[best, 0]), tuple(suspects))


def limits(values: Floats, columns: Floats, level: float, floor: float, scale: Callable[[float], Floats]) -> Floats:
    """Return the effect from which on :func:`explain` names each suspect alone, infinite where it never does.

    The arguments are those of :func:`explain`. What a suspect's own effect is now has no say: its fit absorbs it.
    """
    found = np.full(columns.shape[1], np.inf)
    dof = values.size - 2
    if dof < 1:
        return found
    sets, inverses, _, left = _fits(values, columns, 1)
    threshold = t_quantile(level / max(1, len(sets)), dof)
    for (column,), inverse, rest in zip(sets, inverses, left, strict=True):
        each = scale(math.sqrt(rest / dof))
        found[column] = max(floor, threshold * _error(math.sqrt(inverse[1, 1]), each, columns[:, column]))
    return found


def _fits(values: Floats, columns: Floats, number: int) -> tuple[Indices, Floats, Floats, Floats]:
    """Return every set of so many suspects that can be told apart: its columns, inverse, effects, and squares left."""
    sets = np.array(list(combinations(range(columns.shape[1]), number)))
    designs = np.concatenate((np.ones((len(sets), values.size, 1)), columns[:, sets].transpose(1, 0, 2)), axis=2)
    squares = designs.transpose(0, 2, 1) @ designs
    sets, designs, squares = (each[np.linalg.det(squares) > _SINGULAR] for each in (sets, designs, squares))
    inverses = np.linalg.inv(squares)
    effects = (inverses @ (designs.transpose(0, 2, 1) @ values)[:, :, None])[:, :, 0]
    left = ((values - (designs @ effects[:, :, None])[:, :, 0]) ** 2).sum(axis=1)
    return sets, inverses, effects, left


def _error(share: float, each: Floats, column: Floats) -> float:
    """Return the standard error of a suspect's effect, from the noise of the values in which it takes part."""
    own = each[column != 0]
    return share * math.sqrt(float((own**2).mean()))
