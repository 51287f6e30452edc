"""Links between nodes: their values, the model that is fitted to them, and when one of them stands out.

A link's latency or bandwidth is taken as (level) x (effect of one end) x (effect of the other), a matrix of rank one;
its logarithm is a sum, fitted by medians: Tukey's median polish (*Exploratory Data Analysis*, 1977, chapter 11) for a
symmetric table in which the diagonal and any other entry may be missing. A median ignores less than half of a node's
links. So one slow link leaves the effects of its ends as they were, and one slow node leaves those of its neighbours.
Least squares over the links that are no outliers of this fit then take out the noise that medians leave in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import culprit_words
from clusterctl.analysis.robust_stats import NORMAL, OF_MEDIAN, t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from numpy.typing import NDArray

    from clusterctl.model.results import PairMatrix

    Floats: TypeAlias = NDArray[np.float64]
    Indices: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

LEAST_LINKS = 3  # the median of two follows either of them, so with fewer links a node has no effect of its own
FEWEST = 3  # values; two differ, and nothing says which of them is wrong
SKIP = 3.0  # robust standard deviations beyond which a value has no say in the scale
_FEW_NODES = 6  # of a matrix, up to which all explanations are tried
_MOST_SWEEPS = 40
_STILL = 1e-4  # a hundredth of a per cent, far below any effect that is reported
# All nodes are polished at once. Where every pair is there that converges by itself; where pairs are missing, full
# steps may swing between two halves of the nodes for ever, so they are shortened.
_SPARSE_STEP = 0.8


@dataclass(frozen=True)
class Links:
    """Pairs of nodes in two orders: as they came, and by node.

    ``first`` and ``second`` are indices of nodes; row i of ``slots`` names the links of node i, filled up with the
    number of links, which is no link; ``degree`` counts them.
    """

    first: Indices
    second: Indices
    slots: Indices
    others: Indices  # the node at the far end, the node itself where there is no link
    degree: Indices

    @classmethod
    def of(cls, count: int, first: Indices, second: Indices) -> Links:
        """Sort the links of ``count`` nodes by node."""
        ends, far = np.concatenate((first, second)), np.concatenate((second, first))
        order = np.argsort(ends, kind="stable")
        degree = np.bincount(ends, minlength=count)
        starts = np.cumsum(degree) - degree
        column = np.arange(ends.size) - np.repeat(starts, degree)
        slots = np.full((count, int(degree.max(initial=0))), first.size, dtype=np.int64)
        others = np.repeat(np.arange(count)[:, None], slots.shape[1], axis=1)
        slots[ends[order], column] = order % first.size
        others[ends[order], column] = far[order]
        return cls(first, second, slots, others, degree)

    @property
    def judged(self) -> Flags:
        """Which nodes have enough links for an effect of their own."""
        found: Flags = self.degree >= LEAST_LINKS
        return found

    @property
    def parameters(self) -> int:
        """How many parameters a fit has: the level, and an effect of each node with enough links."""
        return 1 + int(self.judged.sum())

    def sums(self, values: Floats) -> Floats:
        """Return the sum of each node's links."""
        return by_ends(self.first, values, self.second, values, self.degree.size)


def by_ends(first: Indices, of_first: Floats, second: Indices, of_second: Floats, count: int) -> Floats:
    """Return for each of so many nodes the sum of what it gets as first and as second end."""
    return np.asarray(np.bincount(first, of_first, count) + np.bincount(second, of_second, count), dtype=np.float64)


@dataclass(frozen=True)
class Fit:
    """``log(value) = level + nodes[first] + nodes[second] + residuals``, the median of ``nodes`` being 0."""

    level: float
    nodes: Floats
    residuals: Floats


@dataclass(frozen=True)
class LinkValues:
    """The links of a matrix that have a value: who they join, the logarithms of their values, and their own noise.

    Large logarithms are bad.
    """

    table: Links
    logs: Floats
    noise: Floats

    @classmethod
    def of(cls, matrix: PairMatrix) -> LinkValues | None:
        """Return what is known of a matrix, None where it cannot be compared."""
        values, usable = np.asarray(matrix.value, dtype=np.float64), cls.usable(matrix)
        if matrix.better == "none" or usable.sum() < FEWEST:
            return None
        first = np.asarray(matrix.first, dtype=np.int64)[usable]
        second = np.asarray(matrix.second, dtype=np.int64)[usable]
        values = values[usable]
        noise = np.zeros(values.size)
        if len(matrix.spread) == usable.size:
            noise = np.nan_to_num(np.asarray(matrix.spread, dtype=np.float64)[usable] / values, posinf=0.0)
        table = Links.of(len(matrix.nodes), first, second)
        return cls(table, culprit_words.sign(matrix.better) * np.log(values), noise)

    @staticmethod
    def usable(matrix: PairMatrix) -> Flags:
        """Return which of the values have a logarithm."""
        values = np.asarray(matrix.value, dtype=np.float64)
        found: Flags = np.isfinite(values) & (values > 0)
        return found

    @property
    def is_small(self) -> bool:
        """Whether so few nodes have links that all explanations are tried."""
        return bool(np.count_nonzero(self.table.degree) <= _FEW_NODES)

    def each(self, common: float) -> Floats:
        """Return by how much each link may be off where all are off by ``common``: more where its samples scatter."""
        typical = float(np.median(self.noise))
        if not typical:
            return np.full(self.noise.size, common)
        own = OF_MEDIAN * NORMAL * self.noise / math.sqrt(_FEWEST_SAMPLES)
        return np.maximum(common, np.minimum(common * self.noise / typical, np.hypot(common, own)))

    def scale_of(self, fitted: Fit) -> Floats:
        """Return by how much each link may be off, from what a fit leaves."""
        return self.each(scale(fitted.residuals, self.table.parameters)[0])

    def suspects(self) -> tuple[Indices, Floats]:
        """Return the nodes that may be suspected, and a column for each of these nodes and then for each link."""
        table = self.table
        judged = np.flatnonzero(table.judged)
        ends = (table.first[:, None] == judged) | (table.second[:, None] == judged)
        return judged, np.hstack((ends.astype(np.float64), np.eye(self.logs.size)))


def fit(table: Links, logs: Floats) -> Fit:
    """Fit level and node effects to the logarithms of the links' values.

    A node with fewer than :data:`LEAST_LINKS` links keeps the effect 0, and what its links differ by stays with them.

    Args:
        table: which nodes are linked.
        logs: a logarithm a link, finite, in the order of ``table.first``; at least one.
    """
    polished = table.judged
    step = 1.0 if (table.degree[polished] == table.degree.size - 1).all() else _SPARSE_STEP
    _, nodes = _polished(table, logs, 1, step)
    residuals = logs - nodes[table.first] - nodes[table.second]
    residuals -= float(np.median(residuals))
    common, _ = scale(residuals, table.parameters)
    weights = (np.abs(residuals) <= SKIP * common).astype(np.float64)
    within = table.sums(weights)
    judged = polished & (within > 0)
    total = max(1.0, float(weights.sum()))
    for _ in range(_MOST_SWEEPS if judged.any() else 0):
        left = weights * (logs - nodes[table.first] - nodes[table.second])
        level = float(left.sum()) / total
        change = np.where(judged, step * (table.sums(left) / np.maximum(within, 1.0) - level), 0.0)
        nodes = nodes + change
        if abs(change).max() < _STILL:
            break
    nodes[polished] -= float(np.median(nodes[polished])) if polished.any() else 0.0
    left = logs - nodes[table.first] - nodes[table.second]
    level = float(np.median(left))
    return Fit(level=level, nodes=nodes, residuals=left - level)


def fit_ways(table: Links, worse: Floats) -> Fit:
    """Fit ``worse = level + nodes[first] - nodes[second] + residuals`` by medians, the median of ``nodes`` being 0."""
    level, nodes = _polished(table, worse, -1, _SPARSE_STEP)
    return Fit(level, nodes, worse - level - nodes[table.first] + nodes[table.second])


def _polished(table: Links, logs: Floats, sign: int, step: float) -> tuple[float, Floats]:
    """Return level and node effects by medians; ``sign`` is that of the effect of a link's second end."""
    level, nodes, judged = float(np.median(logs)), np.zeros(table.degree.size), table.judged
    is_first = np.append(table.first, -1)[table.slots] == np.arange(table.degree.size)[:, None]
    own, there = np.where(is_first, 1, sign), table.slots < logs.size
    for _ in range(_MOST_SWEEPS if judged.any() else 0):
        left = own * np.append(logs - level, 0.0)[table.slots] - sign * nodes[table.others]
        middle = medians(np.where(there, left, np.inf), table.degree)
        change = np.where(judged, step * (middle - nodes), 0.0)
        nodes += change
        nodes[judged] -= float(np.median(nodes[judged]))
        level = float(np.median(logs - nodes[table.first] - sign * nodes[table.second]))
        if abs(change).max() < _STILL:
            break
    return level, nodes


def scale(distances: Floats, parameters: int) -> tuple[float, int]:
    """Return the standard deviation of the values that are not outliers, and its degrees of freedom.

    Outliers are farther than three robust standard deviations from 0, 1.4826 MAD each; of the deviations, as many of
    the smallest are left out as parameters were fitted, since so many are 0 by construction.
    """
    sizes = np.abs(distances)
    ordered = np.sort(sizes)[parameters:]
    within = SKIP * NORMAL * float(np.median(ordered)) if ordered.size else 0.0
    kept = distances[sizes <= within]
    dof = max(1, kept.size - parameters)
    return float(np.sqrt((kept**2).sum() / dof)), dof


def medians(rows: Floats, counts: Indices) -> Floats:
    """Return each row's median over its first ``counts`` values, what follows being infinite; 0 where there is none."""
    if not rows.shape[1]:
        return np.zeros(rows.shape[0])
    least, most = int(counts.min()), int(counts.max())
    below, above = np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, rows.shape[1] - 1)
    ordered = (
        np.partition(rows, sorted({int(below[0]), int(above[0])}), axis=1) if least == most else np.sort(rows, axis=1)
    )
    every = np.arange(rows.shape[0])
    middle = (ordered[every, below] + ordered[every, above]) / 2
    return np.where(counts > 0, middle, 0.0)


# --- The rule that names: what is worse than the floor and worse than chance makes the worst of so many ---------------

_FEWEST_SAMPLES = 5  # behind a median, where their number is not known
_MOST_NAMED = 1000


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


def by_score(named: Iterable[Outlier]) -> list[Outlier]:
    """Return the worst first, and no more than anybody reads."""
    return sorted(named, key=lambda one: -one.score)[:_MOST_NAMED]


# --- Outliers among so few values that a median of deviations says little: every explanation is tried -----------------
# With four nodes there are six links. An explanation is one suspect or two; the one that leaves the smallest squares is
# taken where each of its suspects is significant beside what is left (Student's t of a least-squares coefficient), at a
# level that all explanations share. That is the extreme deviate test of Grubbs (*Procedures for Detecting Outlying
# Observations in Samples*, Technometrics 11, 1969) for suspects that may be more than one value: all links of a node.

_MOST_SUSPECTS = 2
_SINGULAR = 1e-9


@dataclass(frozen=True)
class Explanation:
    """What the values have in common, and the suspects (columns) with effect and score each."""

    level: float
    suspects: tuple[tuple[int, float, float], ...] = ()

    def named(self, judged: Indices) -> tuple[list[Outlier], list[Outlier]]:
        """Return the nodes and the links, where the columns are those of :meth:`LinkValues.suspects`."""
        found = [Outlier(*each) for each in self.suspects]
        return (
            [Outlier(int(judged[one.at]), one.distance, one.score) for one in found if one.at < judged.size],
            [Outlier(one.at - judged.size, one.distance, one.score) for one in found if one.at >= judged.size],
        )


@dataclass(frozen=True)
class Candidate:
    """The suspects (columns) that leave the smallest squares: their effects and the standard error of each for noise 1.

    ``tried`` counts the sets of so many suspects, ``dof`` the degrees of freedom that they leave.
    """

    level: float
    suspects: Indices
    effects: Floats
    errors: Floats
    left: float
    tried: int
    dof: int


def explained(
    values: Floats, design: Floats, usual: float, scores: Callable[[Candidate], Floats | None]
) -> Explanation:
    """Return the explanation by one suspect or two that convinces, without any where none does.

    Args:
        values: logarithms, large ones being bad.
        design: a column for what all have in common, then a column for each suspect.
        usual: what the values have in common where nobody is suspected.
        scores: returns the score of each suspect of a candidate, None where it does not convince.
    """
    found = Explanation(usual)
    for number in range(1, _MOST_SUSPECTS + 1):
        dof = values.size - 1 - number
        if dof < 1:
            break
        sets, inverses, effects, left = _fits(values, design, number)
        left[(effects[:, 1:] <= 0).any(axis=1)] = np.inf  # a value on the good side is not suspected
        if not np.isfinite(left).any():
            continue
        at = int(np.argmin(left))
        errors = np.sqrt(np.diag(inverses[at])[1:])
        best = Candidate(float(effects[at, 0]), sets[at], effects[at, 1:], errors, float(left[at]), len(sets), dof)
        told = scores(best)
        if told is not None:
            suspects = zip(best.suspects.tolist(), best.effects.tolist(), told.tolist(), strict=True)
            found = Explanation(best.level, tuple(suspects))
    return found


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

    def scores(best: Candidate) -> Floats | None:
        threshold = t_quantile(level / best.tried, best.dof)
        errors = _errors(best.errors, scale(math.sqrt(best.left / best.dof)), columns[:, best.suspects])
        found = best.effects / np.maximum(errors, floor / threshold)  # the floor decides where all is equal
        return None if ((best.effects <= floor) | (found <= threshold)).any() else found

    return explained(values, _with_level(columns), float(np.median(values)), scores)


def explain_limits(
    values: Floats, columns: Floats, level: float, floor: float, scale: Callable[[float], Floats]
) -> Floats:
    """Return the effect from which on :func:`explain` names each suspect alone, infinite where it never does.

    The arguments are those of :func:`explain`. What a suspect's own effect is now has no say: its fit absorbs it.
    """
    found = np.full(columns.shape[1], np.inf)
    dof = values.size - 2
    if dof < 1:
        return found
    sets, inverses, _, left = _fits(values, _with_level(columns), 1)
    threshold = t_quantile(level / max(1, len(sets)), dof)
    for (column,), inverse, rest in zip(sets, inverses, left, strict=True):
        errors = _errors(np.sqrt(inverse[1:2, 1]), scale(math.sqrt(rest / dof)), columns[:, [column]])
        found[column] = max(floor, threshold * float(errors[0]))
    return found


def _with_level(columns: Floats) -> Floats:
    return np.hstack((np.ones((columns.shape[0], 1)), columns))


def _fits(values: Floats, design: Floats, number: int) -> tuple[Indices, Floats, Floats, Floats]:
    """Return every set of so many suspects that can be told apart: its columns, inverse, effects, and squares left."""
    sets = np.array(list(combinations(range(design.shape[1] - 1), number)), dtype=np.int64).reshape(-1, number)
    designs = design[:, np.insert(sets + 1, 0, 0, axis=1)].transpose(1, 0, 2)
    squares = designs.transpose(0, 2, 1) @ designs
    sizes = np.sqrt(np.diagonal(squares, axis1=1, axis2=2))
    apart = np.linalg.det(squares / (sizes[:, :, None] * sizes[:, None, :])) > _SINGULAR
    sets, designs, squares = sets[apart], designs[apart], squares[apart]
    inverses = np.linalg.inv(squares)
    effects = (inverses @ (designs.transpose(0, 2, 1) @ values)[:, :, None])[:, :, 0]
    left = ((values - (designs @ effects[:, :, None])[:, :, 0]) ** 2).sum(axis=1)
    return sets, inverses, effects, left


def _errors(shares: Floats, each: Floats, columns: Floats) -> Floats:
    """Return the standard error of each suspect's effect, from the noise of the values in which it takes part."""
    takes_part = columns != 0
    squares: Floats = (each[:, None] ** 2 * takes_part).sum(axis=0) / takes_part.sum(axis=0)
    return shares * np.sqrt(squares)


def left_beside(table: Links, logs: Floats, level: float, nodes: Iterable[Outlier]) -> Fit:
    """Return level and slow nodes as a fit, all other nodes being equal."""
    effects = np.zeros(table.degree.size)
    for one in nodes:
        effects[one.at] = one.distance
    return Fit(level, effects, logs - level - effects[table.first] - effects[table.second])
