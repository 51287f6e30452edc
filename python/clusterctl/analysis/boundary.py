"""Groups of nodes that are slow towards each other: what lies between them, found in the matrix of links alone.

A switch or an uplink slows every link that crosses it, and no link within a group. Beside what each node does to all of
its links, that leaves a pattern of rank one: the link of i and j is off by -d/2 s_i s_j, with s = +1 on one side and -1
on the other. Its leading eigenvector names the sides (M. E. J. Newman, *Modularity and community structure in
networks*, PNAS 103, 2006, cuts graphs so). Each side is cut again, for more than two racks. So many cuts are possible
that chance makes some of them look slow; the threshold counts all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import culprit_words
from clusterctl.analysis.links import SKIP, Links, by_ends, fit, scale
from clusterctl.analysis.robust_stats import NORMAL, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.analysis.links import Flags, Floats, Indices, LinkValues
    from clusterctl.analysis.robust_stats import OutlierPolicy
    from clusterctl.model.results import Culprit, PairMatrix

_LEAST_SIDE = 3  # nodes; two nodes share one link, which may be fast by itself
_DEPTH = 4  # cuts of cuts, so at most 16 groups
_MOST_GROUPS = 2**_DEPTH
_MOST_COUNTED = math.log(1e15)  # of the cuts
_CLIP = 4.0  # robust standard deviations that a link counts at most while sides are sought
_TURNS, _STILL = 60, 5  # of the power iteration at most, and those without a change of sides after which it ends
_MOVES = 20  # passes in which nodes change sides
_SHARE = 0.1  # of the false alarms that a run may have
_MANY = 200  # degrees of freedom from which Student's t is next to normal
_SMALLEST_TAIL = 1e-12  # of Student's t; beyond it the bound of the normal distribution
_FARTHER = math.log(2)  # latency: one more switch costs up to so much where all is well


@dataclass(frozen=True)
class Boundary:
    """Groups of nodes that are slow towards each other."""

    group: Indices  # of each node the number of its group, -1 for a node without links
    across: Flags  # which links join two groups
    distance: float  # how much worse these links are than those within the worst of the groups, as a logarithm
    score: float  # that distance in standard errors
    tested: int  # how many cuts of the nodes there are, at most 10^15


def find(known: LinkValues, policy: OutlierPolicy) -> Boundary | None:
    """Return the groups that are slow towards each other, None where the links show none."""
    table = known.table
    present = np.flatnonzero(table.judged)
    if present.size < 2 * _LEAST_SIDE:
        return None
    found = _groups(known, present, policy, _DEPTH)
    if found is None:
        return None
    group = np.full(table.degree.size, -1, dtype=np.int64)
    for number, members in enumerate(found.leaves):
        group[members] = number
    first, second = group[table.first], group[table.second]
    across = (first != second) & (first >= 0) & (second >= 0)
    return Boundary(group, across, found.distance, found.score, found.tested)


def without(known: LinkValues, found: Boundary) -> LinkValues:
    """Return the links as they were without the boundary, so that single nodes and links stand out beside it."""
    logs = known.logs.copy()
    pair = np.sort(np.stack((found.group[known.table.first], found.group[known.table.second])), axis=0)
    key = pair[0] * _MOST_GROUPS + pair[1]
    within = _typical_within(known, found)
    for one in np.unique(key[found.across]):
        its = found.across & (key == one)
        logs[its] -= float(np.median(logs[its])) - within
    return replace(known, logs=logs)


def explained(known: LinkValues | None, policy: OutlierPolicy) -> LinkValues | None:
    """Return the links as they were without a boundary, where there is one."""
    found = find(known, policy) if known is not None else None
    return without(known, found) if known is not None and found is not None else known


def culprit(matrix: PairMatrix, known: LinkValues, found: Boundary) -> Culprit | None:
    """Return the boundary as a culprit, None where it is only the way through one more switch.

    Between two switches a message takes longer where all is well, so a latency counts from twice the usual on.
    """
    if matrix.better == "lower" and found.distance < _FARTHER:
        return None
    groups = [
        tuple(matrix.nodes[int(node)] for node in np.flatnonzero(found.group == number))
        for number in range(int(found.group.max()) + 1)
    ]
    groups.sort(key=lambda names: matrix.nodes.index(names[0]))
    switches = culprit_words.apart(groups, matrix.switches)
    sign = culprit_words.sign(matrix.better)
    level = _typical_within(known, found)
    ratio = math.exp(sign * (float(np.median(known.logs[found.across])) - level))
    expected = math.exp(sign * level)
    by = culprit_words.beside(expected * ratio, expected, matrix.unit, "that within each of them,")
    words = (
        f"{culprit_words.between(groups, switches)}: {culprit_words.what(matrix)} from one to another is {by}; each "
        f"does well by itself, so look at what lies between them: {culprit_words.way(groups, matrix.switches)}"
    )
    names = [name for group in groups for name in group]
    more = {"kind": "boundary", "groups": tuple(groups), "score": found.score, "tested": found.tested}
    return culprit_words.culprit(matrix, names, ratio, words, **more)


def _typical_within(known: LinkValues, found: Boundary) -> float:
    within = ~found.across & (found.group[known.table.first] >= 0) & (found.group[known.table.second] >= 0)
    return float(np.median(known.logs[within]))


@dataclass(frozen=True)
class _Found:
    """Groups of nodes, and what tells the two sides of the first cut apart."""

    leaves: tuple[Indices, ...]
    distance: float
    score: float
    tested: int


def _groups(known: LinkValues, members: Indices, policy: OutlierPolicy, depth: int) -> _Found | None:
    """Return the groups among these nodes, None where chance makes the best cut of them."""
    count = members.size
    place = np.full(known.table.degree.size, -1, dtype=np.int64)
    place[members] = np.arange(count)
    first, second = place[known.table.first], place[known.table.second]
    inside = (first >= 0) & (second >= 0)
    first, second, logs = first[inside], second[inside], known.logs[inside]
    if count < 2 * _LEAST_SIDE or logs.size <= 2 * count:
        return None
    table = Links.of(count, first, second)
    side = _sides(table, logs)
    leaf = (side < 0).astype(np.int64)
    crossing = leaf[first] != leaf[second]
    pairs = [logs[~crossing & (leaf[first] == one)] for one in (0, 1)]
    if min(int((leaf == one).sum()) for one in (0, 1)) < _LEAST_SIDE or min(map(len, (*pairs, logs[crossing]))) < 1:
        return None
    far = _clipped_mean(logs[crossing])
    if far - min(map(_clipped_mean, pairs)) < policy.least / 2:
        return None
    leaves = []
    for one in (0, 1):
        its = members[leaf == one]
        below = _groups(known, its, policy, depth - 1) if depth > 1 else None
        leaves += list(below.leaves) if below is not None else [its]
    return _tested(table, logs, side, [place[each] for each in leaves], members, policy)


def _tested(
    table: Links,
    logs: Floats,
    side: Floats,
    leaves: Sequence[Indices],
    members: Indices,
    policy: OutlierPolicy,
) -> _Found | None:
    """Return the groups if the links between both sides are worse than those within the worst group, beyond chance."""
    group = np.zeros(side.size, dtype=np.int64)
    for number, each in enumerate(leaves):
        group[each] = number
    ends = np.sort(np.stack((group[table.first], group[table.second])), axis=0)
    key, across = ends[0] * len(leaves) + ends[1], ends[0] != ends[1]
    crossing = side[table.first] != side[table.second]
    own, levels = logs.copy(), {}
    for one in np.unique(key):
        its = key == one
        levels[int(one)] = _clipped_mean(logs[its])
        own[its] -= levels[int(one)]
    within = {one: level for one, level in levels.items() if not across[key == one].any()}
    worst = max(within, key=within.__getitem__)
    distance = _clipped_mean(logs[crossing]) - within[worst]
    fitted = fit(table, own)
    noise, dof = scale(fitted.residuals, side.size + len(levels))
    spread, _ = scale(fitted.nodes, 1)
    sizes = int((side > 0).sum()), int((side < 0).sum())
    error = math.sqrt(
        noise**2 * (1 / int(crossing.sum()) + 1 / int((key == worst).sum())) + spread**2 * (1 / sizes[0] + 1 / sizes[1])
    )
    cuts = _cuts(side.size, min(sizes))
    threshold = _threshold(_SHARE * policy.level, cuts, dof)
    if distance <= max(policy.least, threshold * error):
        return None
    score = distance / max(error, policy.least / threshold)
    return _Found(tuple(members[each] for each in leaves), distance, score, int(math.exp(min(cuts, _MOST_COUNTED))))


def _sides(table: Links, logs: Floats) -> Floats:
    """Return the side of each node by the leading eigenvector of what an additive fit leaves, with the sign turned.

    Then nodes move to the side to which their links are faster, as long as that changes anything.
    """
    left, count = _left_over(table, logs), table.degree.size
    shift = float(table.sums(np.abs(left)).max(initial=0.0)) / 4  # Gershgorin: no eigenvalue is beyond the largest sum
    vector = np.random.default_rng(count).normal(size=count)
    still = 0
    for _ in range(_TURNS):
        before = vector >= 0
        vector = shift * vector - _pull(table, left, vector)
        size = float(np.linalg.norm(vector))
        if not size:
            break
        vector /= size
        still = still + 1 if ((vector >= 0) == before).all() else 0
        if still == _STILL:
            break
    side = np.where(vector >= 0, 1.0, -1.0)
    for _ in range(_MOVES):
        pull = _pull(table, left, side)
        better = np.where(pull > 0, -1.0, np.where(pull < 0, 1.0, side))
        wrong = np.flatnonzero(better != side)
        if not wrong.size:
            break
        side[wrong[np.argmax(np.abs(pull[wrong]))] if wrong.size < _MOVES else wrong] *= -1
    return side


def _pull(table: Links, left: Floats, sides: Floats) -> Floats:
    """Return by how much each node's links are worse to its own side than to the other one."""
    return by_ends(table.first, left * sides[table.second], table.second, left * sides[table.first], sides.size)


def _left_over(table: Links, logs: Floats) -> Floats:
    """Return what a level and an effect of each node leave, by least squares, single outliers being clipped."""
    level, deviation = _middle(logs)
    values = np.clip(logs - level, -_CLIP * deviation, _CLIP * deviation) if deviation else logs - level
    nodes = np.zeros(table.degree.size)
    for _ in range(_MOVES):
        sums = table.sums(values - nodes[table.first] - nodes[table.second])
        nodes += 0.8 * sums / np.maximum(table.degree, 1)
    left = values - nodes[table.first] - nodes[table.second]
    return np.asarray(left - left.mean())


def _clipped_mean(logs: Floats) -> float:
    """Return the mean of the values that are not outliers."""
    middle, deviation = _middle(logs)
    return float(logs[np.abs(logs - middle) <= SKIP * deviation].mean()) if deviation else middle


def _middle(logs: Floats) -> tuple[float, float]:
    """Return the median and the robust standard deviation."""
    middle = float(np.median(logs))
    return middle, NORMAL * float(np.median(np.abs(logs - middle)))


def _cuts(count: int, smaller: int) -> float:
    """Return the logarithm of the number of ways to cut so many nodes with so many on the smaller side."""
    return math.lgamma(count + 1) - math.lgamma(smaller + 1) - math.lgamma(count - smaller + 1)


def _threshold(level: float, cuts: float, dof: int) -> float:
    """Return the score that the worst of so many cuts exceeds by chance with this probability, at most."""
    tail = math.log(level) - cuts
    if tail > math.log(_SMALLEST_TAIL):
        return t_quantile(math.exp(tail), dof)
    # P(Z > z) < exp(-z^2 / 2) / 2, widened by the first term of the expansion of Student's t
    normal = math.sqrt(-2 * tail)
    return normal + (normal**3 + normal) / (4 * max(dof, _MANY))
