"""Who stands out among nodes and among links within one run, and by how much.

All comparison is of logarithms, so that a tenth too slow is the same distance everywhere. The score of a value is the
modified z-score of Iglewicz & Hoaglin (*How to Detect and Handle Outliers*, 1993), 0.6745 (x - median) / MAD; medians
keep the outliers out of their own yardstick. A value is named when three things hold: it lies on the bad side, its
effect size is above the floor, and its score exceeds what chance gives to the worst of so many.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import boundary, culprit_words, link_model, robust_stats, significance, small_samples
from clusterctl.analysis.link_model import Fit
from clusterctl.analysis.link_values import LinkValues, parameters
from clusterctl.analysis.significance import OutlierPolicy
from clusterctl.model.results import Culprit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.analysis.link_model import Floats, Indices, Links
    from clusterctl.model.results import Figure, PairMatrix

_FEWEST = 3  # two differ, and nothing says which of them is wrong
_FEW_FIGURES = 7
_NEIGHBOURS = "its neighbours'"
DEFAULT = OutlierPolicy()


def among_nodes(figures: Sequence[Figure], policy: OutlierPolicy) -> tuple[Culprit, ...]:
    """Return the nodes that stand out on the bad side, worst first.

    Args:
        figures: one for each node, of one quantity, operation and size; figures of no or several nodes are left out.
        policy: when somebody is named.
    """
    usable = _usable(figures)
    if not usable:
        return ()
    logs, own = _logs(usable)
    if len(usable) <= _FEW_FIGURES:
        found = small_samples.explain(
            logs, np.eye(logs.size), policy.level, policy.least, lambda common: np.maximum(common, own)
        )
        centre, named = found.level, [significance.Outlier(*each) for each in found.suspects]
    else:
        centre = float(np.median(logs))
        scale, dof = link_model.scale(logs - centre, 1)
        named = significance.beyond(logs - centre, np.maximum(scale, own), dof, policy.level, policy.least)
    expected = math.exp(culprit_words.sign(usable[0].better) * centre)
    return tuple(_figure(usable[one.at], one, expected, len(usable)) for one in significance.by_score(named))


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
        limits = small_samples.limits(logs, columns, policy.level, policy.least, lambda common: np.maximum(common, own))
    else:
        scale, dof = link_model.scale(logs - float(np.median(logs)), 1)
        limits = significance.limits(np.maximum(scale, own), dof, policy.level, policy.least)
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
        fitted = link_model.fit(table, logs)
        scale = known.scale_of(fitted)
        nodes = bad_nodes(fitted, table, scale, policy)
        single = bad_links(fitted, table, scale, policy)
    return (
        *((between,) if between is not None else ()),
        *(node_culprit(matrix, one, fitted) for one in significance.by_score(nodes)),
        *(
            pair_culprit(matrix, one, fitted, int(table.first[one.at]), int(table.second[one.at]))
            for one in significance.by_score(single)
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
        limits = small_samples.limits(known.logs, columns, policy.level, policy.least, known.each)
        return _typical(limits[judged.size :]), _typical(limits[: judged.size])
    fitted = link_model.fit(table, known.logs)
    scale = known.scale_of(fitted)
    single = significance.limits(scale, _left_over(fitted, table), policy.level / 2, policy.least)
    return _typical(single), _typical(_node_limits(fitted, table, scale, policy)[1])


def _usable(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures of single nodes that have a logarithm, none where too few can be compared."""
    found = [figure for figure in figures if len(figure.nodes) == 1 and _is_log(figure.value)]
    return [] if len(found) < _FEWEST or found[0].better == "none" else found


def _logs(figures: Sequence[Figure]) -> tuple[Floats, Floats]:
    """Return the logarithms of the figures, large ones being bad, and the standard error of each."""
    logs = culprit_words.sign(figures[0].better) * np.log([figure.value for figure in figures])
    return logs, np.array([_relative_error(figure) for figure in figures])


def _typical(limits: Floats) -> float | None:
    """Return the median of the limits that are finite, None without any."""
    finite = limits[np.isfinite(limits)]
    return float(np.median(finite)) if finite.size else None


def _of_few(
    known: LinkValues, policy: OutlierPolicy
) -> tuple[Fit, list[significance.Outlier], list[significance.Outlier]]:
    """Return who explains the links of a few nodes: up to two nodes or links that are slow, all others being equal."""
    table, logs = known.table, known.logs
    judged, columns = known.suspects()
    found = small_samples.explain(logs, columns, policy.level, policy.least, known.each)
    nodes = [significance.Outlier(int(judged[at]), *rest) for at, *rest in found.suspects if at < judged.size]
    single = [significance.Outlier(at - judged.size, *rest) for at, *rest in found.suspects if at >= judged.size]
    effects = np.zeros(table.degree.size)
    effects[[one.at for one in nodes]] = [one.distance for one in nodes]
    left = logs - found.level - effects[table.first] - effects[table.second]
    return Fit(level=found.level, nodes=effects, residuals=left), nodes, single


def bad_nodes(fitted: Fit, table: Links, scale: Floats, policy: OutlierPolicy) -> list[significance.Outlier]:
    """Return the nodes whose effect is beyond what their links' noise makes of it, and beyond the other nodes'."""
    judged, _ = _node_limits(fitted, table, scale, policy)
    if not judged.size:
        return []
    level, effects = policy.level / 2, fitted.nodes[judged]
    by_links, dof = _by_links(judged, table, scale), _left_over(fitted, table)
    named = significance.beyond(effects, by_links, dof, level, policy.least)
    spread, others = link_model.scale(effects, 1)
    alike = np.full(effects.size, spread)
    among = {one.at: one for one in significance.beyond(effects, alike, others, level, policy.least)}
    return [
        replace(min(one, among[one.at], key=lambda each: each.score), at=int(judged[one.at]))
        for one in named
        if one.at in among
    ]


def bad_links(fitted: Fit, table: Links, scale: Floats, policy: OutlierPolicy) -> list[significance.Outlier]:
    """Return the links of which too much is left beside the effects of their ends."""
    return significance.beyond(fitted.residuals, scale, _left_over(fitted, table), policy.level / 2, policy.least)


def _node_limits(fitted: Fit, table: Links, scale: Floats, policy: OutlierPolicy) -> tuple[Indices, Floats]:
    """Return the nodes that are judged, and the effect from which on each is named; none where they are too few."""
    judged = np.flatnonzero(table.degree >= link_model.LEAST_LINKS)
    if judged.size <= _FEWEST:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    spread, others = link_model.scale(fitted.nodes[judged], 1)
    level = policy.level / 2
    return judged, np.maximum(
        significance.limits(_by_links(judged, table, scale), _left_over(fitted, table), level, policy.least),
        significance.limits(np.full(judged.size, spread), others, level, policy.least),
    )


def _by_links(judged: Indices, table: Links, scale: Floats) -> Floats:
    """Return by how much the noise of its links may shift the effect of each node."""
    typical = link_model.medians(np.append(scale, np.inf)[table.slots], table.degree)[judged]
    return typical / np.sqrt(table.degree[judged])


def _left_over(fitted: Fit, table: Links) -> int:
    return max(1, fitted.residuals.size - parameters(table))


def _figure(figure: Figure, one: significance.Outlier, expected: float, tested: int) -> Culprit:
    name = figure.nodes[0]
    words = culprit_words.beside(figure.value, expected, figure.unit, _NEIGHBOURS)
    return Culprit(
        kind="node",
        nodes=(name,),
        quantity=figure.quantity,
        size_bytes=figure.size_bytes,
        ratio=figure.value / expected,
        score=one.score,
        tested=tested,
        words=f"{name}: {culprit_words.what(figure)} is {words}",
    )


def node_culprit(matrix: PairMatrix, one: significance.Outlier, fitted: Fit) -> Culprit:
    """Return the node as a culprit, beside the level of the fit."""
    expected = math.exp(culprit_words.sign(matrix.better) * fitted.level)
    ratio = math.exp(culprit_words.sign(matrix.better) * one.distance)
    name = matrix.nodes[one.at]
    words = culprit_words.beside(expected * ratio, expected, matrix.unit, _NEIGHBOURS)
    return Culprit(
        kind="node",
        nodes=(name,),
        quantity=matrix.quantity,
        size_bytes=matrix.size_bytes,
        ratio=ratio,
        score=one.score,
        tested=len(matrix.nodes),
        words=f"{name}: {culprit_words.what(matrix)} on its links is {words}",
    )


def pair_culprit(matrix: PairMatrix, one: significance.Outlier, fitted: Fit, first: int, second: int) -> Culprit:
    """Return the link between two nodes as a culprit, beside what its ends make of it."""
    sign = culprit_words.sign(matrix.better)
    expected = math.exp(sign * (fitted.level + fitted.nodes[first] + fitted.nodes[second]))
    ratio = math.exp(sign * one.distance)
    names = (matrix.nodes[first], matrix.nodes[second])
    words = culprit_words.beside(expected * ratio, expected, matrix.unit, "their other links'")
    return Culprit(
        kind="pair",
        nodes=names,
        quantity=matrix.quantity,
        size_bytes=matrix.size_bytes,
        ratio=ratio,
        score=one.score,
        tested=fitted.residuals.size,
        words=f"{names[0]} and {names[1]}: {culprit_words.what(matrix)} between them is {words}",
    )


def _is_log(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _relative_error(figure: Figure) -> float:
    """Return the standard error of the figure's median over the median itself, 0 where nothing is known of it."""
    samples = np.asarray(figure.samples, dtype=np.float64)
    if samples.size < _FEWEST:
        return 0.0
    mad = float(np.median(np.abs(samples - np.median(samples))))
    return significance.OF_MEDIAN * robust_stats.NORMAL * mad / math.sqrt(samples.size) / figure.value
