"""clusterctl's rule and two that are usual elsewhere, on the same two runs of one cluster.

Each answers with who it names: numbers of nodes, and pairs of numbers. The two usual ones get the same benefit of a
second run that ours has. "averages" is our rule without the directions of links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from clusterctl.analysis import agreement, outliers, robust_stats
from clusterctl.model.results import Culprit, PairMatrix
from numpy.typing import NDArray

FIXED = 0.05  # what both usual rules call too slow


@dataclass(frozen=True)
class Named:
    """Whom a rule names."""

    nodes: frozenset[int] = frozenset()
    links: frozenset[tuple[int, int]] = frozenset()
    ways: frozenset[tuple[int, int]] = frozenset()  # sender and receiver

    def __bool__(self) -> bool:
        """Tell whether anybody is named."""
        return bool(self.nodes or self.links or self.ways)


def ours(first: PairMatrix, second: PairMatrix) -> Named:
    """Name as ``clusterctl validate`` does: what two runs name, the second only where the first names anybody."""
    policy = robust_stats.OutlierPolicy()

    def suspects(matrix: PairMatrix) -> tuple[Culprit, ...]:
        both = (*outliers.among_links(matrix, policy), *outliers.among_directions(matrix, policy))
        return agreement.merge(both)

    return _named(first, second, suspects)


def averages(first: PairMatrix, second: PairMatrix) -> Named:
    """Name as ours does without the directions of links."""
    policy = robust_stats.OutlierPolicy()
    return _named(first, second, lambda matrix: agreement.merge(outliers.among_links(matrix, policy)))


def _named(first: PairMatrix, second: PairMatrix, suspects: Callable[[PairMatrix], tuple[Culprit, ...]]) -> Named:
    suspected = suspects(first)
    if not suspected:
        return Named()
    nodes, links, ways = set(), set(), set()
    for one in agreement.confirm(suspected, suspects(second)):
        numbers = [int(name.removeprefix("node")) for name in one.nodes]
        if one.kind == "node":
            nodes.add(numbers[0])
        elif one.kind == "one_way":
            ways.add((numbers[0], numbers[1]))
        else:
            links.add((min(numbers), max(numbers)))
    return Named(frozenset(nodes), frozenset(links), frozenset(ways))


def fixed_share(first: PairMatrix, second: PairMatrix) -> Named:
    """Name every link, and every node by the mean of its links, that is 5 % below the mean of all; in both runs."""
    one, other = (_below_the_mean(matrix) for matrix in (first, second))
    return Named(one.nodes & other.nodes, one.links & other.links)


def two_pass(first: PairMatrix, second: PairMatrix) -> Named:
    """Test neighbours in pairs, then everybody of a slow pair with a partner from a good one.

    The first pass takes the pairs (0, 1), (2, 3), ... of the first run; 5 % below their median is slow. The second
    takes for each suspect a link of the second run to a good node; a pair whose two nodes both pass is a slow link.
    """
    count = len(first.nodes)
    ends = _ends(first)
    values = np.asarray(first.value)[: count // 2]
    limit = (1 - FIXED) * float(np.median(values))
    suspects = np.flatnonzero(values < limit)
    good = np.ones(count, dtype=bool)
    good[ends[suspects].ravel()] = False
    nodes, links = set(), set()
    again = np.asarray(second.value)
    for pair in ends[suspects]:
        slow = {int(node) for node in pair if _slow_with_a_good_one(int(node), ends, again, good, limit)}
        nodes |= slow
        if not slow:
            links.add((int(pair[0]), int(pair[1])))
    return Named(frozenset(nodes), frozenset(links))


RULES: dict[str, Callable[[PairMatrix, PairMatrix], Named]] = {
    "clusterctl": ours,
    "averages": averages,
    "5 % of mean": fixed_share,
    "two-pass": two_pass,
}


def _slow_with_a_good_one(
    node: int, ends: NDArray[np.int64], values: NDArray[np.float64], good: NDArray[np.bool_], limit: float
) -> bool:
    mine = np.flatnonzero((ends == node).any(axis=1))
    partners = ends[mine].sum(axis=1) - node
    usable = mine[good[partners]]
    return bool(usable.size) and bool(values[usable[0]] < limit)


def _below_the_mean(matrix: PairMatrix) -> Named:
    values, ends = np.asarray(matrix.value), _ends(matrix)
    limit = (1 - FIXED) * float(values.mean())
    count = len(matrix.nodes)
    sums = np.bincount(ends[:, 0], values, count) + np.bincount(ends[:, 1], values, count)
    means = sums / np.maximum(np.bincount(ends.ravel(), minlength=count), 1)
    nodes = frozenset(np.flatnonzero(means < limit).tolist())
    # A link of a node that is named is explained by it, as in ours.
    slow = [tuple(pair) for pair in ends[values < limit].tolist()]
    return Named(nodes, frozenset((a, b) for a, b in slow if a not in nodes and b not in nodes))


def _ends(matrix: PairMatrix) -> NDArray[np.int64]:
    return np.stack((np.asarray(matrix.first), np.asarray(matrix.second)), axis=1)
