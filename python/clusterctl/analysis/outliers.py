"""Who stands out among nodes and among links within one run, and by how much.

All comparison is of logarithms, so that a tenth too slow is the same distance everywhere. The score of a value is the
modified z-score of Iglewicz & Hoaglin (*How to Detect and Handle Outliers*, 1993), 0.6745 (x - median) / MAD; medians
keep the outliers out of their own yardstick. A value is named when three things hold: it lies on the bad side, its
effect size is above the floor, and its score exceeds what chance gives to the worst of so many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import boundary, culprit_words, links
from clusterctl.analysis.links import FEWEST, Fit, LinkValues, Outlier
from clusterctl.analysis.robust_stats import NORMAL, OF_MEDIAN
from clusterctl.model import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.analysis.links import Floats, Indices, Links
    from clusterctl.analysis.robust_stats import OutlierPolicy
    from clusterctl.model.results import Culprit, Figure, PairMatrix

_FEW_FIGURES = 7
_NEIGHBOURS = "its neighbours'"


def among_nodes(figures: Sequence[Figure], policy: OutlierPolicy) -> tuple[Culprit, ...]:
    """Return the nodes that stand out on the bad side, worst first.

    There is one figure for each node, of one quantity, operation and size; figures of no or several nodes are left out.
    """
    usable = _usable(figures)
    if not usable:
        return ()
    logs, own = _logs(usable)
    if len(usable) <= _FEW_FIGURES:
        found = links.explain(
            logs, np.eye(logs.size), policy.level, policy.least, lambda common: np.maximum(common, own)
        )
        centre, named = found.level, found.named(np.zeros(0, dtype=np.int64))[1]
    else:
        centre = float(np.median(logs))
        scale, dof = links.scale(logs - centre, 1)
        named = links.beyond(logs - centre, np.maximum(scale, own), dof, policy.level, policy.least)
    expected = math.exp(culprit_words.sign(usable[0].better) * centre)
    return tuple(_figure(usable[one.at], one, expected, len(usable)) for one in links.by_score(named))


def finest_node(figures: Sequence[Figure], policy: OutlierPolicy) -> float | None:
    """Return the smallest distance, as a logarithm, from which on :func:`among_nodes` names a typical node.

    None where nothing can be compared.
    """
    usable = _usable(figures)
    if not usable:
        return None
    logs, own = _logs(usable)
    if len(usable) <= _FEW_FIGURES:
        columns = np.eye(logs.size)
        limits = links.explain_limits(logs, columns, policy.level, policy.least, lambda common: np.maximum(common, own))
    else:
        scale, dof = links.scale(logs - float(np.median(logs)), 1)
        limits = links.limits(np.maximum(scale, own), dof, policy.level, policy.least)
    return _typical(limits)


def among_links(matrix: PairMatrix, policy: OutlierPolicy) -> tuple[Culprit, ...]:
    """Return the nodes, and then the single links, that stand out on the bad side; worst first in each.

    A node is named when the median of its links is slow. A link (``pair``) is named when it is slow beside the other
    links of its two ends. With fewer than four nodes no node can be told from a link, so only links are named; of two
    nodes nothing is. Groups of nodes that are slow towards each other come first, and explain their links.
    """
    known = LinkValues.of(matrix)
    if known is None:
        return ()
    found = boundary.find(known, policy)
    between = boundary.culprit(matrix, known, found) if found is not None else None
    if found is not None:
        known = boundary.without(known, found)
    table, logs = known.table, known.logs
    if known.is_small:
        fitted, nodes, single = _of_few(known, policy)
    else:
        fitted = links.fit(table, logs)
        scale = known.scale_of(fitted)
        nodes = _bad_nodes(fitted, table, scale, policy)
        single = _bad_links(fitted, table, scale, policy)
    return (
        *((between,) if between is not None else ()),
        *(node_culprit(matrix, one, fitted) for one in links.by_score(nodes)),
        *(
            pair_culprit(matrix, one, fitted, int(table.first[one.at]), int(table.second[one.at]))
            for one in links.by_score(single)
        ),
    )


def finest_link(matrix: PairMatrix, policy: OutlierPolicy) -> tuple[float | None, float | None]:
    """Return the smallest distances, as logarithms, from which on a typical link and a typical node are named.

    They are the thresholds of :func:`among_links` turned around; None where it names no link or no node.
    """
    known = boundary.explained(LinkValues.of(matrix), policy)
    if known is None:
        return None, None
    table = known.table
    if known.is_small:
        judged, columns = known.suspects()
        limits = links.explain_limits(known.logs, columns, policy.level, policy.least, known.each)
        return _typical(limits[judged.size :]), _typical(limits[: judged.size])
    fitted = links.fit(table, known.logs)
    scale = known.scale_of(fitted)
    single = links.limits(scale, _left_over(fitted, table), policy.level / 2, policy.least)
    return _typical(single), _typical(_node_limits(fitted, table, scale, policy)[1])


def _usable(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures of single nodes that have a logarithm, none where too few can be compared."""
    found = [figure for figure in figures if len(figure.nodes) == 1 and _is_log(figure.value)]
    return [] if len(found) < FEWEST or found[0].better == "none" else found


def _logs(figures: Sequence[Figure]) -> tuple[Floats, Floats]:
    """Return the logarithms of the figures, large ones being bad, and the standard error of each."""
    logs = culprit_words.sign(figures[0].better) * np.log([figure.value for figure in figures])
    return logs, np.array([_relative_error(figure) for figure in figures])


def _typical(limits: Floats) -> float | None:
    """Return the median of the limits that are finite, None without any."""
    finite = limits[np.isfinite(limits)]
    return float(np.median(finite)) if finite.size else None


def _of_few(known: LinkValues, policy: OutlierPolicy) -> tuple[Fit, list[Outlier], list[Outlier]]:
    """Return who explains the links of a few nodes: up to two nodes or links that are slow, all others being equal."""
    judged, columns = known.suspects()
    found = links.explain(known.logs, columns, policy.level, policy.least, known.each)
    nodes, single = found.named(judged)
    return links.left_beside(known.table, known.logs, found.level, nodes), nodes, single


def _bad_nodes(fitted: Fit, table: Links, scale: Floats, policy: OutlierPolicy) -> list[Outlier]:
    """Return the nodes whose effect is beyond what their links' noise makes of it, and beyond the other nodes'."""
    judged, _ = _node_limits(fitted, table, scale, policy)
    if not judged.size:
        return []
    level, effects = policy.level / 2, fitted.nodes[judged]
    by_links, dof = _by_links(judged, table, scale), _left_over(fitted, table)
    named = links.beyond(effects, by_links, dof, level, policy.least)
    spread, others = links.scale(effects, 1)
    alike = np.full(effects.size, spread)
    among = {one.at: one for one in links.beyond(effects, alike, others, level, policy.least)}
    return [
        replace(min(one, among[one.at], key=lambda each: each.score), at=int(judged[one.at]))
        for one in named
        if one.at in among
    ]


def _bad_links(fitted: Fit, table: Links, scale: Floats, policy: OutlierPolicy) -> list[Outlier]:
    """Return the links of which too much is left beside the effects of their ends."""
    return links.beyond(fitted.residuals, scale, _left_over(fitted, table), policy.level / 2, policy.least)


def _node_limits(fitted: Fit, table: Links, scale: Floats, policy: OutlierPolicy) -> tuple[Indices, Floats]:
    """Return the nodes that are judged, and the effect from which on each is named; none where they are too few."""
    judged = np.flatnonzero(table.judged)
    if judged.size <= FEWEST:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    spread, others = links.scale(fitted.nodes[judged], 1)
    level = policy.level / 2
    return judged, np.maximum(
        links.limits(_by_links(judged, table, scale), _left_over(fitted, table), level, policy.least),
        links.limits(np.full(judged.size, spread), others, level, policy.least),
    )


def _by_links(judged: Indices, table: Links, scale: Floats) -> Floats:
    """Return by how much the noise of its links may shift the effect of each node."""
    typical = links.medians(np.append(scale, np.inf)[table.slots], table.degree)[judged]
    return typical / np.sqrt(table.degree[judged])


def _left_over(fitted: Fit, table: Links) -> int:
    return max(1, fitted.residuals.size - table.parameters)


def _figure(figure: Figure, one: Outlier, expected: float, tested: int) -> Culprit:
    by = culprit_words.beside(figure.value, expected, figure.unit, _NEIGHBOURS)
    words = f"{figure.nodes[0]}: {culprit_words.what(figure)} is {by}"
    ratio = figure.value / expected
    return culprit_words.culprit(figure, figure.nodes, ratio, words, kind="node", score=one.score, tested=tested)


def node_culprit(matrix: PairMatrix, one: Outlier, fitted: Fit) -> Culprit:
    """Return the node as a culprit, beside the level of the fit."""
    return _beside(matrix, one, (one.at,), fitted.level, len(matrix.nodes))


def pair_culprit(matrix: PairMatrix, one: Outlier, fitted: Fit, first: int, second: int) -> Culprit:
    """Return the link between two nodes as a culprit, beside what its ends make of it."""
    level = fitted.level + fitted.nodes[first] + fitted.nodes[second]
    return _beside(matrix, one, (first, second), level, fitted.residuals.size)


def _beside(matrix: PairMatrix, one: Outlier, ends: tuple[int, ...], level: float, tested: int) -> Culprit:
    sign, names = culprit_words.sign(matrix.better), [matrix.nodes[end] for end in ends]
    expected, ratio = math.exp(sign * level), math.exp(sign * one.distance)
    kind, where, whose = "node", "on its links", _NEIGHBOURS
    if len(ends) > 1:
        kind, where, whose = "pair", "between them", "their other links'"
    by = culprit_words.beside(expected * ratio, expected, matrix.unit, whose)
    words = f"{' and '.join(names)}: {culprit_words.what(matrix)} {where} is {by}"
    return culprit_words.culprit(matrix, names, ratio, words, kind=kind, score=one.score, tested=tested)


def _is_log(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _relative_error(figure: Figure) -> float:
    """Return the standard error of the figure's median over the median itself, 0 where nothing is known of it."""
    samples = np.asarray(figure.samples, dtype=np.float64)
    if samples.size < FEWEST:
        return 0.0
    mad = float(np.median(np.abs(samples - np.median(samples))))
    return OF_MEDIAN * NORMAL * mad / math.sqrt(samples.size) / figure.value


# --- Links that are slow in one direction: each direction beside the way back, and that beside the other links --------
# A link's two directions share the path and the moment. So the logarithm of their ratio has no part of what slows both.
# It is taken as (what all have) + (effect of one end) - (effect of the other): a node that sends slowly shows on all
# its links, with one sign where it comes first and the other where it comes second. What is left is the link's own.
# The directions have the level of the links, not a share of it: both runs have to name the same link, and simulated
# healthy clusters stay below the false alarms of the policy.

# The way back is well where it misses what is usual by at most so many times the difference, in logarithms: then the
# slow way misses twice as much. The acknowledgements of the way back wait in the slow way.
_WELL = 1.0


def among_directions(matrix: PairMatrix, policy: OutlierPolicy) -> tuple[Culprit, ...]:
    """Return the nodes and the links that are slow in one direction, worst first in each.

    A link is named with its sender first (``one_way``), unless the way back is slow as well. A node is named when
    the median of its links is slow in what it sends, or in what it receives.
    """
    found = _Directions.of(matrix)
    if found is None:
        return ()
    nodes, single = found.of_few(policy) if found.links.is_small else found.of_many(policy)
    return tuple(found.node(one) for one in links.by_score(nodes)) + tuple(
        found.way(one) for one in links.by_score(single) if found.is_well_back(one)
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

    def of_few(self, policy: OutlierPolicy) -> tuple[list[Outlier], list[Outlier]]:
        """Try all explanations by one suspect or two, each in both directions."""
        known = self.links
        judged, both = known.suspects()
        columns = both.copy()
        columns[:, : judged.size] -= 2.0 * (known.table.second[:, None] == judged)
        signed = np.hstack((columns, -columns))
        found, count = links.explain(known.logs, signed, policy.level, policy.least, known.each), both.shape[1]
        turned = [(at % count, effect if at < count else -effect, score) for at, effect, score in found.suspects]
        return replace(found, suspects=tuple(turned)).named(judged)

    def of_many(self, policy: OutlierPolicy) -> tuple[list[Outlier], list[Outlier]]:
        """Hold every node and link against the noise of all; half of the level is for each sign."""
        known, table = self.links, self.links.table
        fitted = links.fit_ways(table, known.logs)
        scale = known.scale_of(fitted)
        halved = replace(policy, families=2 * policy.families)
        sizes = Fit(fitted.level, np.abs(fitted.nodes), np.abs(fitted.residuals))
        nodes = _bad_nodes(sizes, table, scale, halved)
        single = _bad_links(sizes, table, scale, halved)
        return (
            [replace(one, distance=math.copysign(one.distance, fitted.nodes[one.at])) for one in nodes],
            [replace(one, distance=math.copysign(one.distance, fitted.residuals[one.at])) for one in single],
        )

    def is_well_back(self, one: Outlier) -> bool:
        """Whether the faster direction is near what is usual; else the link is slow both ways."""
        sign = culprit_words.sign(self.matrix.better)
        usual = float(np.median(sign * np.log(np.concatenate((self.there, self.back)))))
        fast = self.back[one.at] if one.distance > 0 else self.there[one.at]
        return bool(sign * math.log(fast) - usual <= _WELL * abs(one.distance))

    def way(self, one: Outlier) -> Culprit:
        """Return the link as a culprit, the sender first."""
        table, matrix = self.links.table, self.matrix
        first, second = (matrix.nodes[int(end[one.at])] for end in (table.first, table.second))
        slow, fast = float(self.there[one.at]), float(self.back[one.at])
        if one.distance < 0:
            first, second, slow, fast = second, first, fast, slow
        by = culprit_words.beside(slow, fast, matrix.unit, "the way back's")
        words = f"{first} to {second}: {culprit_words.what(matrix)} that way is {by}"
        more = {"kind": "one_way", "score": one.score, "tested": 2 * self.links.logs.size}
        return culprit_words.culprit(matrix, (first, second), slow / fast, words, **more)

    def node(self, one: Outlier) -> Culprit:
        """Return the node as a culprit, with the direction."""
        matrix, name = self.matrix, self.matrix.nodes[one.at]
        slow, fast = ("sends", "receives") if one.distance > 0 else ("receives", "sends")
        ratio = math.exp(culprit_words.sign(matrix.better) * abs(one.distance))
        by = f"{units.percent(abs(ratio - 1))} {'below' if ratio < 1 else 'above'}"
        words = f"{name}: {culprit_words.what(matrix)} of what it {slow} is {by} that of what it {fast}"
        more = {"kind": "node", "score": one.score, "tested": 2 * len(matrix.nodes)}
        return culprit_words.culprit(matrix, (name,), ratio, words, **more)
