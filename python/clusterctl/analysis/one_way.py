"""Links that are slow in one direction: each direction beside the way back, and that beside the other links.

A link's two directions share the path and the moment. So the logarithm of their ratio has no part of what slows both.
It is taken as (what all have) + (effect of one end) - (effect of the other): a node that sends slowly shows on all its
links, with one sign where it comes first and the other where it comes second. What is left is the link's own.

The directions have the level of the links, not a share of it: both runs have to name the same link, and simulated
healthy clusters stay below the false alarms of the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import culprit_words, link_model, outliers, significance, small_samples
from clusterctl.analysis.link_model import Fit
from clusterctl.analysis.link_values import LinkValues
from clusterctl.model import units
from clusterctl.model.results import Culprit

if TYPE_CHECKING:
    from clusterctl.analysis.link_model import Floats, Indices, Links
    from clusterctl.analysis.significance import OutlierPolicy
    from clusterctl.model.results import PairMatrix

_MOST_SWEEPS = 40
_STILL = 1e-4
_STEP = 0.8  # of a change; full steps may swing between two halves of the nodes
# The way back is well where it misses what is usual by at most so many times the difference, in logarithms: then the
# slow way misses twice as much. The acknowledgements of the way back wait in the slow way.
_WELL = 1.0


def among_directions(matrix: PairMatrix, policy: OutlierPolicy) -> tuple[Culprit, ...]:
    """Return the nodes and the links that are slow in one direction, worst first in each.

    A link is named with its sender first (``one_way``), unless the way back is slow as well. A node is named when its
    links are slow in the middle in what it sends, or in what it receives.
    """
    found = _Directions.of(matrix)
    if found is None:
        return ()
    nodes, single = found.of_few(policy) if found.links.is_small else found.of_many(policy)
    return tuple(found.node(one) for one in significance.by_score(nodes)) + tuple(
        found.way(one) for one in significance.by_score(single) if found.is_well_back(one)
    )


@dataclass(frozen=True)
class _Directions:
    """Both directions of each link; ``links`` has as its logarithms by how much the way there is the worse one."""

    matrix: PairMatrix
    links: LinkValues
    there: Floats
    back: Floats

    @classmethod
    def of(cls, matrix: PairMatrix) -> _Directions | None:
        """Return the directions of a matrix, None where it has none or cannot be compared."""
        known = LinkValues.of(matrix)
        if known is None or not len(matrix.forward):
            return None
        usable = LinkValues.usable(matrix)
        there = np.asarray(matrix.forward, dtype=np.float64)[usable]
        back = np.asarray(matrix.backward, dtype=np.float64)[usable]
        if not (np.isfinite(there) & (there > 0) & np.isfinite(back) & (back > 0)).all():
            return None
        worse = culprit_words.sign(matrix.better) * np.log(there / back)
        return cls(matrix, replace(known, logs=worse), there, back)

    def of_few(self, policy: OutlierPolicy) -> tuple[list[significance.Outlier], list[significance.Outlier]]:
        """Try all explanations by one suspect or two, each in both directions."""
        known = self.links
        judged, both = known.suspects()
        columns = both.copy()
        columns[:, : judged.size] -= 2.0 * (known.table.second[:, None] == judged)
        signed = np.hstack((columns, -columns))
        explained = small_samples.explain(known.logs, signed, policy.level, policy.least, known.each)
        nodes, single = [], []
        for at, effect, score in explained.suspects:
            column, sign = at % both.shape[1], 1 if at < both.shape[1] else -1
            if column < judged.size:
                nodes.append(significance.Outlier(int(judged[column]), sign * effect, score))
            else:
                single.append(significance.Outlier(column - judged.size, sign * effect, score))
        return nodes, single

    def of_many(self, policy: OutlierPolicy) -> tuple[list[significance.Outlier], list[significance.Outlier]]:
        """Hold every node and link against the noise of all; half of the level is for each sign."""
        known, table = self.links, self.links.table
        fitted = _fit(table, known.logs)
        scale = known.scale_of(fitted)
        halved = replace(policy, families=2 * policy.families)
        sizes = Fit(fitted.level, np.abs(fitted.nodes), np.abs(fitted.residuals))
        nodes = outliers.bad_nodes(sizes, table, scale, halved)
        single = outliers.bad_links(sizes, table, scale, halved)
        return (
            [replace(one, distance=math.copysign(one.distance, fitted.nodes[one.at])) for one in nodes],
            [replace(one, distance=math.copysign(one.distance, fitted.residuals[one.at])) for one in single],
        )

    def is_well_back(self, one: significance.Outlier) -> bool:
        """Whether the faster direction is near what is usual; else the link is slow both ways."""
        sign = culprit_words.sign(self.matrix.better)
        usual = float(np.median(sign * np.log(np.concatenate((self.there, self.back)))))
        fast = self.back[one.at] if one.distance > 0 else self.there[one.at]
        return bool(sign * math.log(fast) - usual <= _WELL * abs(one.distance))

    def way(self, one: significance.Outlier) -> Culprit:
        """Return the link as a culprit, the sender first."""
        table, matrix = self.links.table, self.matrix
        first, second = (matrix.nodes[int(end[one.at])] for end in (table.first, table.second))
        slow, fast = float(self.there[one.at]), float(self.back[one.at])
        if one.distance < 0:
            first, second, slow, fast = second, first, fast, slow
        words = culprit_words.beside(slow, fast, matrix.unit, "the way back's")
        return Culprit(
            kind="one_way",
            nodes=(first, second),
            quantity=matrix.quantity,
            size_bytes=matrix.size_bytes,
            ratio=slow / fast,
            score=one.score,
            tested=2 * self.links.logs.size,
            words=f"{first} to {second}: {culprit_words.what(matrix)} that way is {words}",
        )

    def node(self, one: significance.Outlier) -> Culprit:
        """Return the node as a culprit, with the direction."""
        matrix, name = self.matrix, self.matrix.nodes[one.at]
        slow, fast = ("sends", "receives") if one.distance > 0 else ("receives", "sends")
        ratio = math.exp(culprit_words.sign(matrix.better) * abs(one.distance))
        by = f"{units.percent(abs(ratio - 1))} {'below' if ratio < 1 else 'above'}"
        return Culprit(
            kind="node",
            nodes=(name,),
            quantity=matrix.quantity,
            size_bytes=matrix.size_bytes,
            ratio=ratio,
            score=one.score,
            tested=2 * len(matrix.nodes),
            words=f"{name}: {culprit_words.what(matrix)} of what it {slow} is {by} that of what it {fast}",
        )


def _fit(table: Links, worse: Floats) -> Fit:
    """Fit ``worse = level + nodes[first] - nodes[second] + residuals`` by medians, the median of ``nodes`` being 0."""
    nodes = np.zeros(table.degree.size)
    judged = table.degree >= link_model.LEAST_LINKS
    level = float(np.median(worse))
    sends = _sends(table)
    for _ in range(_MOST_SWEEPS if judged.any() else 0):
        left = np.append(worse - level, 0.0)[table.slots]
        rows = np.where(table.slots == worse.size, np.inf, sends * left + nodes[table.others])
        change = np.where(judged, _STEP * (link_model.medians(rows, table.degree) - nodes), 0.0)
        nodes = nodes + change
        nodes[judged] -= float(np.median(nodes[judged]))
        level = float(np.median(worse - nodes[table.first] + nodes[table.second]))
        if abs(change).max() < _STILL:
            break
    return Fit(level, nodes, worse - level - nodes[table.first] + nodes[table.second])


def _sends(table: Links) -> Indices:
    """Return by slot 1 where the node is the first end of the link, -1 where it is the second."""
    first = np.append(table.first, -1)[table.slots]
    return np.where(first == np.arange(table.slots.shape[0])[:, None], 1, -1)
