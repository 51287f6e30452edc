"""Rules of other tools, each asked about the same runs of one cluster as clusterctl, with the time that it takes.

Each rule is written anew from its public description; :data:`RULES` names the sources. All get the figure that a link
should have, where they need one: their users type it in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import nightly_pairs
import numpy as np
import simulated
from clusterctl.analysis import packet_loss
from clusterctl.model.results import CheckResult, Figure, PairMatrix, Verdict
from numpy.typing import NDArray

FIXED = 0.05  # the variance rule in SuperBench's own example; the threshold of the other two as well
SEGMENTS = 20_000  # with data, on a way in one run
_HEALTHY_LOSS = 1e-4  # of the segments of a healthy way
_CLUMP = 8  # segments that are lost at once
_MOST_ROUNDS = 12  # of an elimination, which may otherwise go on for ever


@dataclass(frozen=True)
class Told:
    """Whom a rule names, and what that took.

    Attributes:
        nodes: numbers of nodes.
        links: pairs of numbers, the smaller one first.
        boundaries: one side of each, as numbers.
        alarm: whether it says that anything is wrong.
        launches: jobs one after another; those of disjoint pairs at the same time count once.
        rounds: measurements of disjoint pairs, one after another.
    """

    nodes: frozenset[int] = frozenset()
    links: frozenset[tuple[int, int]] = frozenset()
    boundaries: frozenset[frozenset[int]] = frozenset()
    alarm: bool = False
    launches: int = 1
    rounds: int = 0


@dataclass
class Measured:
    """A cluster that was measured twice; ``lost`` has a run's lost segments of each way, both directions of a link.

    ``level`` is the bandwidth of a healthy link, which the users of two rules type in.
    """

    cluster: simulated.Cluster
    runs: list[PairMatrix]
    lost: list[NDArray[np.float64]]
    rng: np.random.Generator  # for the choices of a rule; the same for all rules
    level: float = simulated.LEVEL
    ends: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Join the ends of the links."""
        self.ends = np.stack((self.cluster.first, self.cluster.second), axis=1)

    @property
    def tournament(self) -> int:
        """Rounds in which all links of a run are measured."""
        plan = self.cluster.plan
        return plan.rounds or plan.nodes - 1 + plan.nodes % 2


def measured(cluster: simulated.Cluster, rng: np.random.Generator) -> Measured:
    """Measure a cluster twice, with the counts of lost segments."""
    runs = [simulated.measure(cluster, rng), simulated.measure(cluster, rng)]
    lost = [_lost(cluster, rng), _lost(cluster, rng)]
    return Measured(cluster, runs, lost, np.random.default_rng(rng.integers(2**32)))


def ours(data: Measured) -> Told:
    """Judge as ``clusterctl validate --suite nightly`` does, by its own code, for all the runs that it asks for."""
    night = nightly_pairs.Night(data.cluster, lambda run: _result(data, run), data.rng)
    judged = night.validated()
    return replace(told(judged, data.runs[0].nodes), launches=night.launches, rounds=night.rounds)


def told(judged: CheckResult, names: Sequence[str]) -> Told:
    """Return whom a result of clusterctl names; a node's number is its place among the names."""
    number = {name: at for at, name in enumerate(names)}
    nodes: set[int] = set()
    links: set[tuple[int, int]] = set()
    boundaries: set[frozenset[int]] = set()
    for one in judged.culprits:
        numbers = [number[name] for name in one.nodes]
        if one.kind == "node":
            nodes.add(numbers[0])
        elif one.kind in {"pair", "one_way"}:
            links.add((min(numbers), max(numbers)))
        else:
            boundaries |= {frozenset(number[name] for name in group) for group in one.groups}
    return Told(frozenset(nodes), frozenset(links), frozenset(boundaries), alarm=judged.verdict is Verdict.FAIL)


def fixed_share(data: Measured) -> Told:
    """SuperBench: a fixed share below the mean of those that are not; nodes by their links' mean, and links.

    Its baseline is the mean. What is more than 5 % below leaves the collection, and the mean is taken again, until
    nothing leaves. What has left is defective. It measures once.
    """
    values = np.asarray(data.runs[0].value)
    count = data.cluster.plan.nodes
    sums = np.bincount(data.ends[:, 0], values, count) + np.bincount(data.ends[:, 1], values, count)
    means = sums / np.maximum(np.bincount(data.ends.ravel(), minlength=count), 1)
    nodes = frozenset(np.flatnonzero(_defective(means)).tolist())
    slow = [(int(a), int(b)) for a, b in data.ends[_defective(values)]]
    links = frozenset((a, b) for a, b in slow if a not in nodes and b not in nodes)
    return Told(nodes, links, alarm=bool(nodes or slow), rounds=data.tournament)


def two_pass(data: Measured) -> Told:
    """cluster-health-scanner: random pairs; each node of a failing pair once more, with a random node that passed.

    A node fails for good when the second pair fails too. Without any node that passed there is no second pass, and all
    that failed are named. It names nodes alone.
    """
    limit = (1 - FIXED) * data.level
    value = _Values(data)
    order = data.rng.permutation(data.cluster.plan.nodes).tolist()
    pairs = [(order[at], order[at + 1]) for at in range(0, len(order) - 1, 2)]
    failed = [node for pair in pairs if value.of(0, *pair) < limit for node in pair]
    passed = [node for pair in pairs for node in pair if node not in set(failed)]
    if not failed or not passed:
        return Told(frozenset(failed), alarm=bool(failed), rounds=1)
    good = data.rng.permutation(passed).tolist()
    again = [(node, good[at % len(good)]) for at, node in enumerate(failed)]
    slow = frozenset(node for node, other in again if value.of(1, node, other) < limit)
    return Told(slow, alarm=bool(slow), launches=2, rounds=1 + -(-len(failed) // len(good)))


def elimination(data: Measured) -> Told:
    """Pairwise elimination: a pair that passes clears both nodes; the others are paired anew until none is cleared.

    The suspects of a round get other partners in the next one: cleared nodes, or each other where these are used up.
    It ends when a round clears nobody, and names who is left. It names nodes alone.
    """
    limit = (1 - FIXED) * data.level
    value = _Values(data)
    suspects = data.rng.permutation(data.cluster.plan.nodes).tolist()
    cleared: list[int] = []
    rounds = 0
    while suspects and rounds < _MOST_ROUNDS:
        partners = data.rng.permutation(cleared).tolist()[: len(suspects)]
        rest = suspects[len(partners) :]
        pairs = list(zip(suspects, partners, strict=False))
        pairs += [(rest[at], rest[at + 1]) for at in range(0, len(rest) - 1, 2)]
        good = {node for pair in pairs if value.of(min(rounds, 1), *pair) >= limit for node in pair}
        rounds += 1
        left = [node for node in suspects if node not in good]
        cleared += [node for node in suspects if node in good]
        if len(left) == len(suspects) and rounds > 1:
            break
        suspects = data.rng.permutation(left).tolist()
    return Told(frozenset(suspects), alarm=bool(suspects), launches=rounds, rounds=rounds)


# name, rule, and where its description stands
RULES: dict[str, tuple[Callable[[Measured], Told], str]] = {
    "clusterctl": (ours, "[Detection](../explanation/detection.md)"),
    "fixed share": (
        fixed_share,
        (
            "[SuperBench](https://microsoft.github.io/superbenchmark/docs/user-tutorial/data-diagnosis): rule "
            "`variance` with -0.05, baseline by `fix_threshold`"
        ),
    ),
    "two-pass": (
        two_pass,
        (
            "[cluster-health-scanner](https://github.com/GoogleCloudPlatform/cluster-health-scanner), random pairs, "
            "second pass with a node that passed"
        ),
    ),
    "elimination": (elimination, "pairs are formed anew until nobody is cleared any more; scripts of many sites"),
}


class _Values:
    """The value of any pair in a run; a pair that the sampled tournament did not play is measured here, once."""

    def __init__(self, data: Measured) -> None:
        self._data = data
        self._number = {(int(a), int(b)): at for at, (a, b) in enumerate(data.ends)}

    def of(self, run: int, one: int, other: int) -> float:
        pair = (min(one, other), max(one, other))
        at = self._number.get(pair)
        if at is None:
            return simulated.unplayed(self._data.cluster, pair, self._data.rng)
        return float(self._data.runs[run].value[at])


def _defective(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    kept = np.ones(values.size, dtype=bool)
    while True:
        passing = kept & (values >= (1 - FIXED) * values[kept].mean())
        if passing.sum() == kept.sum() or not passing.any():
            return ~kept
        kept = passing


def _lost(cluster: simulated.Cluster, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the lost segments of both directions of every link, in clumps."""
    rates = np.full((2, cluster.first.size), _HEALTHY_LOSS)
    rates[0, cluster.lossy] = cluster.plan.loss
    return _CLUMP * rng.poisson(SEGMENTS * rates / _CLUMP).astype(np.float64)


def _result(data: Measured, run: int) -> CheckResult:
    """Return a run as the check hands it on, before anything is compared; a third one is measured here."""
    while run >= len(data.runs):
        data.runs.append(simulated.measure(data.cluster, data.rng))
        data.lost.append(_lost(data.cluster, data.rng))
    matrix, lost = data.runs[run], data.lost[run]
    plain = {name: tuple(getattr(matrix, name).tolist()) for name in ("first", "second", "value")}
    matrix = matrix.model_copy(update=plain)  # as it comes from a record
    ways: dict[tuple[str, str], packet_loss.Counts] = {}
    for forward in (True, False):
        counts = lost[0 if forward else 1]
        for at in np.flatnonzero(counts):
            ends = tuple(matrix.nodes[int(node)] for node in data.ends[at])
            way = (ends[0], ends[1]) if forward else (ends[1], ends[0])
            ways[way] = packet_loss.Counts(SEGMENTS, float(counts[at]))
    everything = packet_loss.Counts(float(SEGMENTS * lost.size), float(lost.sum()))
    found = packet_loss.lossy(ways, everything, lost.size)
    figures = tuple(
        Figure(quantity=packet_loss.SENT_AGAIN, backend="tcp", nodes=way, value=share, unit="1")
        for way, share in found.items()
    )
    return CheckResult.model_construct(
        check="pairs", verdict=Verdict.PASS, reason="", matrices=(matrix,), figures=figures, culprits=(), ranks=()
    )
