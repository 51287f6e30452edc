"""Whose fault a link is: what its two ends have in common with their other links, and what is left.

A link's latency or bandwidth is taken as (level) x (effect of one end) x (effect of the other), a matrix of rank one;
its logarithm is a sum, fitted by medians: Tukey's median polish (*Exploratory Data Analysis*, 1977, chapter 11) for a
symmetric table in which the diagonal and any other entry may be missing. A median ignores less than half of a node's
links. So one slow link leaves the effects of its ends as they were, and one slow node leaves those of its neighbours.
Least squares over the links that are no outliers of this fit then take out the noise that medians leave in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis.robust_stats import NORMAL

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Indices: TypeAlias = NDArray[np.int64]

LEAST_LINKS = 3  # the median of two follows either of them, so with fewer links a node has no effect of its own
SKIP = 3.0  # robust standard deviations beyond which a value has no say in the scale
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


@dataclass(frozen=True)
class Fit:
    """``log(value) = level + nodes[first] + nodes[second] + residuals``, the median of ``nodes`` being 0."""

    level: float
    nodes: Floats
    residuals: Floats


def links(count: int, first: Indices, second: Indices) -> Links:
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
    return Links(first=first, second=second, slots=slots, others=others, degree=degree)


def fit(table: Links, logs: Floats) -> Fit:
    """Fit level and node effects to the logarithms of the links' values.

    A node with fewer than :data:`LEAST_LINKS` links keeps the effect 0, and what its links differ by stays with them.

    Args:
        table: which nodes are linked.
        logs: a logarithm a link, finite, in the order of ``table.first``; at least one.
    """
    level = float(np.median(logs))
    nodes = np.zeros(table.degree.size)
    polished = table.degree >= LEAST_LINKS
    step = 1.0 if (table.degree[polished] == table.degree.size - 1).all() else _SPARSE_STEP
    rows = np.append(logs, np.inf)[table.slots]
    for _ in range(_MOST_SWEEPS if polished.any() else 0):
        change = medians(rows - nodes[table.others], table.degree) - level - nodes
        change = np.where(polished, step * change, 0.0)
        nodes += change
        middle = float(np.median(nodes[polished]))
        nodes[polished] -= middle
        if abs(change).max() < _STILL:
            break
        level = float(np.median(logs - nodes[table.first] - nodes[table.second]))
    return _refined(table, logs, nodes, polished, step)


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


def _refined(table: Links, logs: Floats, nodes: Floats, polished: NDArray[np.bool_], step: float) -> Fit:
    """Go from medians to least squares over the links that are no outliers: less noise, and no bias of few links."""
    count = table.degree.size
    residuals = logs - nodes[table.first] - nodes[table.second]
    residuals -= float(np.median(residuals))
    common, _ = scale(residuals, 1 + int(polished.sum()))
    weights = (np.abs(residuals) <= SKIP * common).astype(np.float64)
    within = np.bincount(table.first, weights, count) + np.bincount(table.second, weights, count)
    judged = polished & (within > 0)
    total = max(1.0, float(weights.sum()))
    for _ in range(_MOST_SWEEPS if judged.any() else 0):
        left = weights * (logs - nodes[table.first] - nodes[table.second])
        level = float(left.sum()) / total
        sums = np.bincount(table.first, left, count) + np.bincount(table.second, left, count)
        change = np.where(judged, step * (sums / np.maximum(within, 1.0) - level), 0.0)
        nodes = nodes + change
        if abs(change).max() < _STILL:
            break
    nodes[polished] -= float(np.median(nodes[polished])) if polished.any() else 0.0
    left = logs - nodes[table.first] - nodes[table.second]
    level = float(np.median(left))
    return Fit(level=level, nodes=nodes, residuals=left - level)


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
