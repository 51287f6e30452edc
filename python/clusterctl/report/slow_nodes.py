"""Nodes that became a little slower, found in all runs of the history together, in sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis.robust_stats import NORMAL, t_quantile
from clusterctl.model import results, units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from clusterctl.model.results import CheckResult, Figure, FigureKey, ValidationRecord
    from clusterctl.state.history import Store

    Floats: TypeAlias = NDArray[np.float64]
    _Figures: TypeAlias = tuple[tuple[str, str], list[str], Floats | None]

_MOST_RUNS = 100


@dataclass(frozen=True)
class Slowdown:
    """A node that became a little slower: by which figure, and the sentence that tells it."""

    check: str
    quantity: str
    node: str
    words: str


def sentences(history: Store, cluster: str, record: ValidationRecord) -> tuple[str, ...]:
    """Return who became slower over the runs, or after how many more runs that would show."""
    return tuple(words for check in record.checks for words in _of_check(history, cluster, record, check))


def slower(history: Store, cluster: str, record: ValidationRecord) -> tuple[Slowdown, ...]:
    """Return who became slower over the runs, and nothing where nobody did; the arguments are :func:`sentences`'."""
    found = (one for check in record.checks for one in _judged_of(history, cluster, record, check))
    return tuple(named for about, nodes, figures in found for named in _slower(about, nodes, figures))


def _of_check(history: Store, cluster: str, record: ValidationRecord, check: CheckResult) -> Iterator[str]:
    for about, nodes, figures in _judged_of(history, cluster, record, check):
        yield from _told(about, nodes, figures)


def _judged_of(history: Store, cluster: str, record: ValidationRecord, check: CheckResult) -> Iterator[_Figures]:
    """Yield check and quantity, the nodes in order, and their figures by kind, run and node, of each quantity."""
    groups: dict[tuple[str, str], dict[tuple[object, ...], dict[str, FigureKey]]] = {}
    better: dict[tuple[str, str], int] = {}
    for key, figure in results.keys(record, check).items():
        if len(figure.nodes) == 1 and figure.better != "none":
            about = (figure.quantity, figure.backend)
            better[about] = -1 if figure.better == "higher" else 1
            groups.setdefault(about, {}).setdefault(_kind(figure), {})[figure.nodes[0]] = key
    for about, kinds in groups.items():
        nodes = sorted(set.intersection(*(set(each) for each in kinds.values())))
        if len(nodes) >= FEWEST_NODES:
            values = _values(history, cluster, nodes, kinds.values())
            yield (check.check, about[0]), nodes, stacked(values, better[about]) if values[0] else None


def _values(
    history: Store, cluster: str, nodes: list[str], kinds: Iterable[dict[str, FigureKey]]
) -> list[list[list[float]]]:
    """Return the figures by kind, run (oldest first) and node, of the runs that have all of them."""
    found: list[list[dict[str, float]]] = [
        [{one.run_id: one.value for one in history.past(cluster, keys[node], _MOST_RUNS)} for node in nodes]
        for keys in kinds
    ]
    runs = set.intersection(*(set(each) for kind in found for each in kind))
    return [[[of_node[run] for of_node in kind] for run in sorted(runs)] for kind in found]


def _slower(about: tuple[str, str], nodes: list[str], figures: Floats | None) -> Iterator[Slowdown]:
    judged = judge(figures) if figures is not None else None
    for one in judged.drifts if judged is not None else ():
        name, by = nodes[one.node], f"{100 * part(one.distance):.2g} %"
        words = f"{name} is {by} worse on the last {one.nights} runs than before; the others are not."
        yield Slowdown(*about, name, f"{_words(about)}: {words}")


def _words(about: tuple[str, str]) -> str:
    return f"{about[0]}: {about[1].replace('_', ' ')}"


def _told(about: tuple[str, str], nodes: list[str], figures: Floats | None) -> Iterator[str]:
    what = _words(about)
    judged = judge(figures) if figures is not None else None
    runs = figures.shape[1] if figures is not None else 0
    if judged is None:
        missing = FEWEST_NIGHTS - runs
        if missing > 0:
            yield f"{what}: {missing} more run{'s' if missing > 1 else ''} needed before small slowdowns can be judged."
        return
    if judged.drifts:
        yield from (one.words for one in _slower(about, nodes, figures))
        return
    noise = f"a node differs by {100 * part(judged.noise):.2g} % from run to run"
    small = units.percent(SLOWDOWN)
    if judged.needed is not None:
        yield f"{what}: {noise}, so one that becomes {small} worse is named after {judged.needed} runs."
        return
    wanted = nights_before(judged.noise, judged.nights, len(nodes))
    if wanted is None:
        yield f"{what}: {noise}, so {small} less cannot be seen with any number of runs; quieter nodes show it."
    else:
        yield f"{what}: {noise}, so {wanted - judged.nights} more runs are needed until {small} less can be seen."


def _kind(figure: Figure) -> tuple[object, ...]:
    return (figure.operation, figure.algorithm, figure.size_bytes, figure.unit)


# --- A node that is a little slow every night: too little for one night, and enough for seven of them -----------------
# Each night a node's figures are held against those of all nodes, so what slows the whole night drops out. Then the
# last nights of a node are held against its own earlier ones, so what healthy nodes differ by drops out too. The noise
# is what nodes change by from one night to the next. The threshold counts all nodes, all lengths of the last stretch,
# and every night of a hundred on which the question is asked (a union bound).

SLOWDOWN = 0.005  # the size of which is told after how many nights it shows
_LAST = (3, 5, 7, 10, 14, 20, 30)  # nights of the last stretch
_FEWEST_BEFORE = 3  # nights, with which the last ones are compared
FEWEST_NODES = 4
FEWEST_NIGHTS = _FEWEST_BEFORE + _LAST[0]
_WRONG = 0.01  # how often anybody healthy may be named in so many nights
_NIGHTS = 100
_FOUND = 0.8416  # standard normal quantile of 0.8: what shows, shows so often
_CLIP = 4.0  # standard deviations that one night counts at most
_MOST_NIGHTS = 1000  # beyond it no number is told


@dataclass(frozen=True)
class SlowerNode:
    """A node that became slower: by what (a logarithm), since how many nights, and how sure that is."""

    node: int
    distance: float
    nights: int
    score: float


@dataclass(frozen=True)
class Judged:
    """What the nights show.

    Attributes:
        drifts: the nodes that became slower, the surest first.
        noise: what a node differs by from night to night, as a logarithm.
        nights: how many were compared.
        needed: after how many nights a node shows that becomes slower by :data:`SLOWDOWN`, None where never.
    """

    drifts: tuple[SlowerNode, ...]
    noise: float
    nights: int
    needed: int | None


def judge(figures: Floats) -> Judged | None:
    """Return which nodes became slower, None where too few nights or nodes are known.

    Args:
        figures: logarithms of which large ones are bad, by size of message, night (oldest first) and node; not-a-number
            where there is none.
    """
    effects = _effects(figures)
    nights, nodes = effects.shape
    if nights < FEWEST_NIGHTS or nodes < FEWEST_NODES:
        return None
    steps = np.diff(effects, axis=0) / math.sqrt(2)
    noise = NORMAL * float(np.median(np.abs(steps)))
    threshold = _threshold(nights, nodes)
    middle = np.median(effects, axis=0)
    bounded = middle + np.clip(effects - middle, -_CLIP * noise, _CLIP * noise)
    best: dict[int, SlowerNode] = {}
    for last in _LAST:
        before = nights - last
        if before < _FEWEST_BEFORE:
            break
        change = bounded[-last:].mean(axis=0) - bounded[:-last].mean(axis=0)
        scores = change / max(noise * math.sqrt(1 / last + 1 / before), 1e-9)
        for node in np.flatnonzero(scores > threshold):
            # The bounded figures decide; what is told is the difference of the figures as they were measured.
            by = float(np.median(effects[-last:, node]) - np.median(effects[:-last, node]))
            one = SlowerNode(int(node), by, last, float(scores[node]))
            if one.node not in best or best[one.node].score < one.score:
                best[one.node] = one
    found = tuple(sorted(best.values(), key=lambda one: -one.score))
    return Judged(found, noise, nights, _needed(noise, nights, threshold))


def _effects(figures: Floats) -> Floats:
    """Return what each node differs by from the nodes of its night, the mean of all sizes; complete nodes alone."""
    known = np.isfinite(figures)
    nodes = known.all(axis=(0, 1))
    kept = figures[:, :, nodes]
    if not nodes.any():
        return np.zeros((figures.shape[1], 0))
    found: Floats = (kept - np.median(kept, axis=2, keepdims=True)).mean(axis=0)
    return found


def _needed(noise: float, before: int, threshold: float) -> int | None:
    """Return after how many more nights a small slowdown shows, with these nights as those before it."""
    wanted = _other_stretch(noise, before, threshold)
    return next((last for last in _LAST if wanted is not None and last >= wanted), None)


def _threshold(nights: int, nodes: int) -> float:
    """Return the score from which a node is named."""
    dof = max(1, round(0.37 * (nights - 1) * (nodes - 1)))  # what a MAD is worth (Rousseeuw and Croux, 1993)
    return t_quantile(_WRONG / _NIGHTS / nodes / len(_LAST), dof)


def _other_stretch(noise: float, nights: int, threshold: float) -> int | None:
    """Return how many nights a small slowdown shows in beside so many others, None where no number is enough."""
    room = (math.log1p(SLOWDOWN) / max(noise * (threshold + _FOUND), 1e-12)) ** 2 - 1 / nights
    return math.ceil(1 / room) if room > 1 / _MOST_NIGHTS else None


def nights_before(noise: float, nights: int, nodes: int) -> int | None:
    """Return how many nights have to be known so that a small slowdown shows within the longest stretch.

    None where no number of nights is enough.
    """
    return _other_stretch(noise, _LAST[-1], _threshold(nights, nodes))


def part(distance: float) -> float:
    """Return a distance in logarithms as a part: 0.005 is half a per cent."""
    return math.expm1(distance)


def stacked(values: Sequence[Sequence[Sequence[float]]], sign: int) -> Floats:
    """Return the logarithms of positive values by size, night and node; not-a-number for the others."""
    found = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(found > 0, sign * np.log(found), math.nan))
