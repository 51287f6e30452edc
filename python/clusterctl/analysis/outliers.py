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

from clusterctl.analysis import link_model, packet_loss, robust_stats, small_samples
from clusterctl.analysis.link_model import Fit
from clusterctl.analysis.student_t import t_quantile
from clusterctl.model import units
from clusterctl.model.culprits import Culprit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.analysis.link_model import Floats, Links
    from clusterctl.model.results import Better, Figure, PairMatrix, Unit

_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean, sqrt(pi / 2)
_FEWEST = 3  # two differ, and nothing says which of them is wrong
_FEW_NODES = 6  # of a matrix, up to which all explanations are tried
_FEW_FIGURES = 7
_NEIGHBOURS = "its neighbours'"
_FEWEST_SAMPLES = 5  # behind a median, where their number is not known
_FEW_NAMED = 6  # up to here the thresholds alone keep chance out
_AGREE = 2.0  # two runs tell of the same fault where neither's logarithm is more than so many times the other's
_AGREE_BY_CHANCE = 3  # one in so many pairs of draws from an exponential tail agrees within that
_MOST_NAMED = 1000
_MANY_TIMES = 2.0  # from here on a ratio is said as such, below it in per cent


@dataclass(frozen=True)
class OutlierPolicy:
    """When somebody is named.

    Attributes:
        floor: the least effect: 0.03 ignores a node that is less than 3 % worse than its neighbours.
        false_alarms: the share of healthy runs in which anybody may be named, after ``runs`` independent runs.
        runs: how many runs have to name the same node or pair (:func:`confirm`). Each may then name somebody in
            ``false_alarms ** (1 / runs)`` of healthy cases, one in ten by default, and is worth a second run.
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
    def level(self) -> float:
        """How often one run of one group may name anybody while all are healthy."""
        return min(0.5, math.pow(self.false_alarms, 1 / self.runs)) / self.families


DEFAULT = OutlierPolicy()


@dataclass(frozen=True)
class _Named:
    """The outliers: position among the tested, distance in logarithms, score."""

    at: int
    distance: float
    score: float


def among_nodes(figures: Sequence[Figure], policy: OutlierPolicy) -> tuple[Culprit, ...]:
    """Return the nodes that stand out on the bad side, worst first.

    Args:
        figures: one for each node, of one quantity, operation and size; figures of no or several nodes are left out.
        policy: when somebody is named.
    """
    usable = [figure for figure in figures if len(figure.nodes) == 1 and _is_log(figure.value)]
    if len(usable) < _FEWEST or usable[0].better == "none":
        return ()
    better = usable[0].better
    logs = _sign(better) * np.log([figure.value for figure in usable])
    own = np.array([_relative_error(figure) for figure in usable])
    if len(usable) <= _FEW_FIGURES:
        found = small_samples.explain(
            logs,
            np.eye(logs.size),
            policy.level,
            math.log1p(policy.floor),
            lambda common: np.maximum(common, own),
        )
        centre, named = found.level, [_Named(*each) for each in found.suspects]
    else:
        centre = float(np.median(logs))
        scale, dof = link_model.scale(logs - centre, 1)
        named = _beyond(logs - centre, np.maximum(scale, own), dof, policy.level, policy)
    expected = math.exp(_sign(better) * centre)
    return tuple(_figure(usable[one.at], one, expected, len(usable)) for one in _by_score(named))


def among_links(matrix: PairMatrix, policy: OutlierPolicy) -> tuple[Culprit, ...]:
    """Return the nodes, and then the single links, that stand out on the bad side; worst first in each.

    A node is named when the median of its links is slow. A link (``pair``) is named when it is slow beside the other
    links of its two ends. With fewer than four nodes no node can be told from a link, so only links are named; of two
    nodes nothing is.
    """
    values = np.asarray(matrix.value, dtype=np.float64)
    usable = np.isfinite(values) & (values > 0)
    if matrix.better == "none" or usable.sum() < _FEWEST:
        return ()
    first = np.asarray(matrix.first, dtype=np.int64)[usable]
    second = np.asarray(matrix.second, dtype=np.int64)[usable]
    values = values[usable]
    logs = _sign(matrix.better) * np.log(values)
    noise = np.zeros(values.size)
    if len(matrix.spread) == usable.size:
        noise = np.nan_to_num(np.asarray(matrix.spread, dtype=np.float64)[usable] / values, posinf=0.0)
    table = link_model.links(len(matrix.nodes), first, second)
    if np.count_nonzero(table.degree) <= _FEW_NODES:
        fitted, nodes, single = _of_few(table, logs, noise, policy)
    else:
        fitted = link_model.fit(table, logs)
        common, _ = link_model.scale(fitted.residuals, _parameters(table))
        scale = _link_noise(common, noise)
        nodes = _bad_nodes(fitted, table, scale, policy)
        single = _beyond(fitted.residuals, scale, _left_over(fitted, table), policy.level / 2, policy)
    return tuple(_node(matrix, one, fitted) for one in _by_score(nodes)) + tuple(
        _pair(matrix, one, fitted, int(first[one.at]), int(second[one.at])) for one in _by_score(single)
    )


def merge(culprits: Iterable[Culprit]) -> tuple[Culprit, ...]:
    """Fold what several quantities and sizes say into one culprit for each node and pair, worst first.

    The strongest evidence speaks for all. A pair is left out where one of its ends is named as a node, unless the same
    matrix names both: then the link is slow beyond what the node explains.
    """
    every = tuple(culprits)
    nodes = {name for one in every if one.kind == "node" for name in one.nodes}
    both = {(name, one.quantity, one.size_bytes) for one in every if one.kind == "node" for name in one.nodes}
    kept: dict[tuple[str, frozenset[str]], list[Culprit]] = {}
    for one in every:
        ends = [name for name in one.nodes if name in nodes] if one.kind == "pair" else []
        if all((name, one.quantity, one.size_bytes) in both for name in ends):
            kept.setdefault((one.kind, frozenset(one.nodes)), []).append(one)
    return tuple(sorted((_folded(group) for group in kept.values()), key=_badness, reverse=True))


def confirm(
    first: Sequence[Culprit], second: Sequence[Culprit], policy: OutlierPolicy = DEFAULT
) -> tuple[Culprit, ...]:
    """Return the culprits that both of two independent runs name, with the weaker evidence, worst first.

    A pair has to be slow by about as much in both. Noise with a heavy tail can make a run name so many that chance
    alone names some of them twice. Then only as many are believed as agree better than chance (:func:`_convincing`).
    """
    found: list[Culprit] = []
    for kind in ("node", "pair", "one_way", "together"):
        before = {frozenset(one.nodes): one for one in first if one.kind == kind}
        after = [one for one in second if one.kind == kind]
        both = [(before[frozenset(one.nodes)], one) for one in after if frozenset(one.nodes) in before]
        if kind == "pair":
            both = [each for each in both if _times(*each) <= _AGREE]
        tested = min((one.tested for each in both for one in each if one.tested), default=0)
        most = max(len(before), len(after))
        if tested and most > max(_FEW_NAMED, math.sqrt(_AGREE_BY_CHANCE * policy.false_alarms * tested)):
            both = _convincing(both, len(before) * len(after) / tested, policy.false_alarms)
        found += [min(each, key=_badness) for each in both]
    return tuple(sorted(found, key=_badness, reverse=True))


def _convincing(
    both: Sequence[tuple[Culprit, Culprit]], by_chance: float, share: float
) -> list[tuple[Culprit, Culprit]]:
    """Return those that agree so well that at most ``share`` of them are there by chance.

    Of two draws from an exponential tail, one is at most r times the other with probability (r - 1) / (r + 1); times
    the number that both runs name by chance, that is how many agree so well by chance. As many are taken as keep that
    below their share: the procedure of Benjamini & Hochberg (*Controlling the False Discovery Rate*, Journal of the
    Royal Statistical Society B 57, 1995).
    """
    expected = sorted(
        ((by_chance * (1 - 2 / (1 + _times(*each))), place) for place, each in enumerate(both)),
    )
    enough = max((rank for rank, (chance, _) in enumerate(expected, start=1) if chance <= share * rank), default=0)
    return [both[place] for _, place in expected[:enough]]


def _times(one: Culprit, other: Culprit) -> float:
    """Return how many times the one's distance in logarithms is the other's; 1 where they cannot be compared."""
    if not one.ratio or not other.ratio or (one.quantity, one.size_bytes) != (other.quantity, other.size_bytes):
        return 1.0  # another size spoke loudest this time
    low, high = sorted((abs(math.log(one.ratio)), abs(math.log(other.ratio))))
    return high / low if low else math.inf


def _of_few(table: Links, logs: Floats, noise: Floats, policy: OutlierPolicy) -> tuple[Fit, list[_Named], list[_Named]]:
    """Return who explains the links of a few nodes: up to two nodes or links that are slow, all others being equal."""
    judged = np.flatnonzero(table.degree >= link_model.LEAST_LINKS)
    ends = (table.first[:, None] == judged) | (table.second[:, None] == judged)
    columns = np.hstack((ends.astype(np.float64), np.eye(logs.size)))
    floor = math.log1p(policy.floor)
    found = small_samples.explain(logs, columns, policy.level, floor, lambda common: _link_noise(common, noise))
    nodes = [_Named(int(judged[at]), *rest) for at, *rest in found.suspects if at < judged.size]
    single = [_Named(at - judged.size, *rest) for at, *rest in found.suspects if at >= judged.size]
    effects = np.zeros(table.degree.size)
    effects[[one.at for one in nodes]] = [one.distance for one in nodes]
    left = logs - found.level - effects[table.first] - effects[table.second]
    return Fit(level=found.level, nodes=effects, residuals=left), nodes, single


def _bad_nodes(fitted: Fit, table: Links, scale: Floats, policy: OutlierPolicy) -> list[_Named]:
    """Return the nodes whose effect is beyond what their links' noise makes of it, and beyond the other nodes'."""
    judged = np.flatnonzero(table.degree >= link_model.LEAST_LINKS)
    if judged.size <= _FEWEST:
        return []
    effects = fitted.nodes[judged]
    typical = link_model.medians(np.append(scale, np.inf)[table.slots], table.degree)[judged]
    by_links = typical / np.sqrt(table.degree[judged])
    dof = _left_over(fitted, table)
    named = _beyond(effects, by_links, dof, policy.level / 2, policy)
    spread, others = link_model.scale(effects, 1)
    among = {one.at: one for one in _beyond(effects, np.full(effects.size, spread), others, policy.level / 2, policy)}
    return [
        replace(min(one, among[one.at], key=lambda each: each.score), at=int(judged[one.at]))
        for one in named
        if one.at in among
    ]


def _parameters(table: Links) -> int:
    return 1 + int((table.degree >= link_model.LEAST_LINKS).sum())


def _left_over(fitted: Fit, table: Links) -> int:
    return max(1, fitted.residuals.size - _parameters(table))


def _link_noise(common: float, noise: Floats) -> Floats:
    """Return by how much each link may be off: what all are, and more where its own samples scatter more."""
    typical = float(np.median(noise))
    if not typical:
        return np.full(noise.size, common)
    own = _OF_MEDIAN * robust_stats.NORMAL * noise / math.sqrt(_FEWEST_SAMPLES)
    return np.maximum(common, np.minimum(common * noise / typical, np.hypot(common, own)))


def _beyond(distances: Floats, scale: Floats, dof: int, level: float, policy: OutlierPolicy) -> list[_Named]:
    """Return what is worse than the floor and worse than chance makes the worst of so many."""
    floor = math.log1p(policy.floor)
    threshold = t_quantile(1 - (1 - level) ** (1 / distances.size), dof)  # Sidak
    # Where most are equal their scale is nothing; the floor then decides alone.
    scores = distances / np.maximum(scale, floor / threshold)
    found = np.flatnonzero((distances > floor) & (scores > threshold))
    return [_Named(int(at), float(distances[at]), float(scores[at])) for at in found]


def _by_score(named: Iterable[_Named]) -> list[_Named]:
    """Return the worst first, and no more than anybody reads."""
    return sorted(named, key=lambda one: -one.score)[:_MOST_NAMED]


def _figure(figure: Figure, one: _Named, expected: float, tested: int) -> Culprit:
    name = figure.nodes[0]
    return Culprit(
        kind="node",
        nodes=(name,),
        quantity=figure.quantity,
        size_bytes=figure.size_bytes,
        ratio=figure.value / expected,
        score=one.score,
        tested=tested,
        words=f"{name}: {_what(figure)} is {_beside(figure.value, expected, figure.unit, _NEIGHBOURS)}",
    )


def _node(matrix: PairMatrix, one: _Named, fitted: Fit) -> Culprit:
    expected = math.exp(_sign(matrix.better) * fitted.level)
    ratio = math.exp(_sign(matrix.better) * one.distance)
    name = matrix.nodes[one.at]
    words = _beside(expected * ratio, expected, matrix.unit, _NEIGHBOURS)
    return Culprit(
        kind="node",
        nodes=(name,),
        quantity=matrix.quantity,
        size_bytes=matrix.size_bytes,
        ratio=ratio,
        score=one.score,
        tested=len(matrix.nodes),
        words=f"{name}: {_what(matrix)} on its links is {words}",
    )


def _pair(matrix: PairMatrix, one: _Named, fitted: Fit, first: int, second: int) -> Culprit:
    sign = _sign(matrix.better)
    expected = math.exp(sign * (fitted.level + fitted.nodes[first] + fitted.nodes[second]))
    ratio = math.exp(sign * one.distance)
    names = (matrix.nodes[first], matrix.nodes[second])
    words = _beside(expected * ratio, expected, matrix.unit, "their other links'")
    return Culprit(
        kind="pair",
        nodes=names,
        quantity=matrix.quantity,
        size_bytes=matrix.size_bytes,
        ratio=ratio,
        score=one.score,
        tested=fitted.residuals.size,
        words=f"{names[0]} and {names[1]}: {_what(matrix)} between them is {words}",
    )


def _folded(group: Sequence[Culprit]) -> Culprit:
    strongest = max(group, key=_badness)
    also = [
        _quantity(one.quantity, one.size_bytes)
        for one in group
        if (one.quantity, one.size_bytes) != (strongest.quantity, strongest.size_bytes)
        and one.quantity != packet_loss.SENT_AGAIN
    ]
    words = f"{strongest.words} (so are {', '.join(dict.fromkeys(also))})" if also else strongest.words
    if strongest.quantity != packet_loss.SENT_AGAIN:
        words = "; ".join(
            [words, *(one.words.partition(": ")[2] for one in group if one.quantity == packet_loss.SENT_AGAIN)]
        )
    return strongest.model_copy(update={"words": words})


def _badness(one: Culprit) -> tuple[float, float]:
    return (one.score or 0.0, abs(math.log(one.ratio)) if one.ratio else 0.0)


def _what(of: Figure | PairMatrix) -> str:
    operation = getattr(of, "operation", "")
    return _quantity(f"{operation} {of.quantity}" if operation else of.quantity, of.size_bytes)


def _quantity(name: str, size_bytes: int | None) -> str:
    words = name.replace("_", " ")
    return words if size_bytes is None else f"{words} of {units.size_words(size_bytes)}"


def _beside(value: float, expected: float, unit: Unit, whose: str) -> str:
    """Return '110 MB/s, 90 % below its neighbours' 1.1 GB/s'."""
    ratio = value / expected
    if ratio >= _MANY_TIMES:
        by = f"{ratio:,.3g} times"
    else:
        by = f"{units.percent(abs(ratio - 1))} {'below' if ratio < 1 else 'above'}"
    return f"{units.value_words(value, unit)}, {by} {whose} {units.value_words(expected, unit)}"


def _sign(better: Better) -> int:
    """Return what makes the logarithm of a bad value a large one."""
    return -1 if better == "higher" else 1


def _is_log(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _relative_error(figure: Figure) -> float:
    """Return the standard error of the figure's median over the median itself, 0 where nothing is known of it."""
    samples = np.asarray(figure.samples, dtype=np.float64)
    if samples.size < _FEWEST:
        return 0.0
    mad = float(np.median(np.abs(samples - np.median(samples))))
    return _OF_MEDIAN * robust_stats.NORMAL * mad / math.sqrt(samples.size) / figure.value
