"""What is measured further of suspected links: which pairs a job is asked for, and one fit of all samples.

A sample's logarithm is (the moment) + (one end) + (the other end) + (the link). Suspected links have an effect of
their own and no say in the rest, so that a fault does not shift what it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis.links import SKIP, by_ends, medians, scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.analysis.links import Flags, Floats, Indices, Links

_SWEEPS = 24
_RESCALED = 6  # sweeps after which outliers are looked for anew
_STEP = 0.8
_STILL = 1e-5


@dataclass(frozen=True)
class Repeats:
    """What one further job measured: a row for each link and a column for each repeat, not-a-number where none is.

    ``links`` are numbers in the table; ``logs`` are logarithms, large ones being bad.
    """

    links: Indices
    logs: Floats


@dataclass(frozen=True)
class Samples:
    """All samples, one after the other: the link, the moment (0 is the tournament), and the logarithm."""

    table: Links
    link: Indices
    moment: Indices
    logs: Floats

    @classmethod
    def of(cls, table: Links, logs: Floats, plays: Sequence[Repeats]) -> Samples:
        """Put the tournament and all further plays together."""
        links: list[Indices] = [np.arange(logs.size)]
        moments: list[Indices] = [np.zeros(logs.size, dtype=np.int64)]
        values, known = [logs], 1
        for play in plays:
            repeats = play.logs.shape[1]
            links.append(np.repeat(play.links, repeats))
            moments.append(np.tile(np.arange(known, known + repeats), play.links.size))
            values.append(play.logs.ravel())
            known += repeats
        link, moment, every = np.concatenate(links), np.concatenate(moments), np.concatenate(values)
        usable = np.isfinite(every)
        return cls(table, link[usable], moment[usable], every[usable])

    @property
    def later(self) -> Flags:
        """Which samples are not of the tournament."""
        found: Flags = self.moment > 0
        return found

    @property
    def ends(self) -> tuple[Indices, Indices]:
        """Of each sample the two nodes."""
        return self.table.first[self.link], self.table.second[self.link]


@dataclass(frozen=True)
class SampleFit:
    """Node effects, what is left of each sample beside moment and nodes, its scale, and the samples behind each node.

    ``scale`` is that of the samples after the tournament, ``before`` that of the tournament.
    """

    nodes: Floats
    left: Floats
    scale: float
    dof: int
    before: float
    behind: Floats

    @property
    def larger(self) -> float:
        return max(self.scale, self.before)


def fit_samples(samples: Samples, nodes: Floats, free: Flags) -> SampleFit:
    """Fit moments and nodes by least squares over the samples that are no outliers.

    The fit begins with effects of ``nodes`` that are robust. The ``free`` links have an effect of their own.
    """
    table, moment, count = samples.table, samples.moment, nodes.size
    first, second = samples.ends
    say = ~free[samples.link]
    nodes = nodes.copy()
    moments = _medians_by(samples.logs - nodes[first] - nodes[second], np.where(say, moment, -1), moment)
    weights = say.astype(np.float64)
    judged, parameters = table.judged, table.parameters
    for sweep in range(_SWEEPS):
        left = samples.logs - moments[moment] - nodes[first] - nodes[second]
        if sweep % _RESCALED == 0:
            common, _ = scale(left[say], parameters)
            weights = (say & (np.abs(left) <= SKIP * common)).astype(np.float64)
        left *= weights
        shift = np.bincount(moment, left, moments.size) / np.maximum(np.bincount(moment, weights, moments.size), 1.0)
        moments = moments + shift
        left -= weights * shift[moment]
        behind = by_ends(first, weights, second, weights, count)
        sums = by_ends(first, left, second, left, count)
        change = np.where(judged, _STEP * sums / np.maximum(behind, 1.0), 0.0)
        nodes = nodes + change
        middle = float(np.median(nodes[judged])) if judged.any() else 0.0
        nodes[judged] -= middle
        moments = moments + 2 * middle
        if abs(change).max(initial=0.0) < _STILL and sweep % _RESCALED:
            break
    left = samples.logs - moments[moment] - nodes[first] - nodes[second]
    later = samples.later
    before, _ = scale(left[say & ~later], parameters)
    after, dof = before, max(1, int(say.sum()) - parameters)
    if later.any():
        after, dof = scale(left[say & later], moments.size - 1)
    return SampleFit(nodes, left, after, dof, before, np.maximum(behind, 1.0))


@dataclass(frozen=True)
class Effects:
    """Of each link by its number: its own effect without outliers, and the number of samples behind it."""

    effect: Floats
    count: Indices


def effects(samples: Samples, fitted: SampleFit, which: Flags) -> Effects:
    """Return the mean of each link over its samples within three standard deviations of their median."""
    size = samples.table.first.size
    link, left = samples.link[which], fitted.left[which]
    order = np.argsort(link, kind="stable")
    link, left = link[order], left[order]
    counts = np.bincount(link, minlength=size)
    played = np.flatnonzero(counts)
    starts = np.cumsum(counts) - counts
    rows = np.full((played.size, int(counts.max(initial=0))), np.inf)
    place = np.zeros(size, dtype=np.int64)
    place[played] = np.arange(played.size)
    rows[place[link], np.arange(link.size) - starts[link]] = left
    middle = np.zeros(size)
    middle[played] = medians(rows, counts[played])
    near = np.abs(left - middle[link]) <= SKIP * fitted.larger
    kept = np.bincount(link, near, size)
    total = np.bincount(link, np.where(near, left, 0.0), size)
    return Effects(np.where(kept > 0, total / np.maximum(kept, 1), middle), kept.astype(np.int64))


def clipped(samples: Samples, fitted: SampleFit, most: float) -> Effects:
    """Return the mean of each link over all samples, none of which counts as more than ``most``; for a ranking."""
    size = samples.table.first.size
    counts = np.bincount(samples.link, minlength=size)
    total = np.bincount(samples.link, np.minimum(fitted.left, most), size)
    return Effects(total / np.maximum(counts, 1), counts)


def _medians_by(values: Floats, groups: Indices, every: Indices) -> Floats:
    """Return the median of each group's values; of a group without any, the median of all."""
    found = np.full(int(every.max()) + 1, float(np.median(values)))
    for group in np.unique(groups[groups >= 0]).tolist():
        found[group] = float(np.median(values[groups == group]))
    return found


# --- Which pairs are measured on: suspects first, matched controls beside them, in rounds of disjoint pairs -----------

_CONTROLS = 2  # links to trusted nodes for each end of a suspect
_MOST_FILLED = 2000  # pairs that are added to rounds in which their nodes would rest


@dataclass(frozen=True)
class Ask:
    """Pairs to measure on: ``rounds`` of disjoint pairs of nodes, played ``repeats`` times."""

    rounds: tuple[tuple[tuple[int, int], ...], ...]
    repeats: int

    @property
    def played(self) -> int:
        return len(self.rounds) * self.repeats


class Rounds:
    """Rounds of disjoint pairs, filled one pair after the other; each pair goes into the first round that has room."""

    def __init__(self, table: Links) -> None:
        self._first, self._second = table.first.tolist(), table.second.tolist()
        self._busy = [0] * table.degree.size  # of each node, the rounds in which it plays, as bits
        self._rounds: list[list[int]] = []
        self._known: set[int] = set()

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, link: int, most: int) -> bool:
        """Add a link unless that takes more than so many rounds; whether it is in."""
        if link in self._known:
            return True
        first, second = self._first[link], self._second[link]
        busy = self._busy[first] | self._busy[second]
        free = (~busy & (busy + 1)).bit_length() - 1  # the lowest bit that is not set
        if free >= most:
            return False
        if free == len(self._rounds):
            self._rounds.append([])
        self._rounds[free].append(link)
        self._busy[first] |= 1 << free
        self._busy[second] |= 1 << free
        self._known.add(link)
        return True

    def asked(self, repeats: int) -> Ask:
        """Return the rounds with the numbers of nodes."""
        pairs = ([(self._first[link], self._second[link]) for link in links] for links in self._rounds)
        return Ask(tuple(tuple(sorted(each)) for each in pairs), repeats)


def of_all(table: Links, budget: int) -> Ask | None:
    """Ask for every link as often as the budget of rounds allows; None where it does not allow it once."""
    rounds = Rounds(table)
    for link in _by_circle(table):
        if not rounds.add(link, budget):
            return None
    repeats = budget // max(1, len(rounds))
    return rounds.asked(repeats) if repeats else None


def of_suspects(
    table: Links, suspects: Sequence[int], controls: Iterable[int], budget: int, repeats: int
) -> Ask | None:
    """Ask for suspects, as many as fit, and for controls; then let trusted nodes that would rest play as well.

    ``suspects`` begin with the strongest suspicion; ``controls`` are trusted links of the same nodes. The budget is in
    rounds. Each link is measured at least ``repeats`` times, where the budget allows that of one round.
    """
    rounds, most = Rounds(table), max(1, budget // repeats)
    for link in suspects:
        rounds.add(link, max(1, (most + 1) // 2) if repeats > 1 else most)
    for link in controls:
        rounds.add(link, most)
    number = len(rounds)
    if not number:
        return None
    others = np.random.default_rng(table.first.size).permutation(table.first.size)[:_MOST_FILLED]
    for link in others.tolist():
        rounds.add(link, number)
    return rounds.asked(max(1, budget // number))


def controls_of(table: Links, ends: Sequence[int], trusted: Indices) -> list[int]:
    """Return for each of these nodes a few of its trusted links to other nodes, always the same ones."""
    others = set(ends)
    source = np.random.default_rng(len(ends))
    good = set(trusted.tolist())
    found = []
    for node in ends:
        count = int(table.degree[node])
        order = source.permutation(count)
        mine = (
            int(table.slots[node, at])
            for at in order
            if int(table.others[node, at]) not in others and int(table.slots[node, at]) in good
        )
        found += [link for link, _ in zip(mine, range(_CONTROLS), strict=False)]
    return found


def _by_circle(table: Links) -> list[int]:
    """Return the links in the order of a round-robin tournament, so that rounds fill up."""
    circle = table.degree.size + table.degree.size % 2 - 1
    last = (table.second == circle).astype(np.int64)
    number = np.where(last == 1, 2 * table.first, table.first + table.second) % max(1, circle)
    return [int(link) for link in np.argsort(number, kind="stable")]
