"""All samples of a matrix's links: those of the tournament and those that were taken further, in one fit.

A sample's logarithm is (the moment) + (one end) + (the other end) + (the link). Suspected links have an effect of
their own and no say in the rest, so that a fault does not shift what it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import link_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clusterctl.analysis.link_model import Floats, Indices, Links

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
    def later(self) -> NDArray[np.bool_]:
        """Which samples are not of the tournament."""
        found: NDArray[np.bool_] = self.moment > 0
        return found


@dataclass(frozen=True)
class Fit:
    """Node effects, what is left of each sample beside moment and nodes, its scale, and the samples behind each node.

    ``scale`` is that of the samples after the tournament, ``before`` that of the tournament.
    """

    nodes: Floats
    left: Floats
    scale: float
    dof: int
    before: float
    behind: Floats


def fit(samples: Samples, nodes: Floats, free: NDArray[np.bool_]) -> Fit:
    """Fit moments and nodes by least squares over the samples that are no outliers.

    Args:
        samples: all.
        nodes: where to begin, effects that are robust.
        free: the links that have an effect of their own.
    """
    table, moment, count = samples.table, samples.moment, nodes.size
    first, second = table.first[samples.link], table.second[samples.link]
    say = ~free[samples.link]
    nodes = nodes.copy()
    moments = _medians(samples.logs - nodes[first] - nodes[second], np.where(say, moment, -1), moment)
    weights = say.astype(np.float64)
    judged = table.degree >= link_model.LEAST_LINKS
    for sweep in range(_SWEEPS):
        left = samples.logs - moments[moment] - nodes[first] - nodes[second]
        if sweep % _RESCALED == 0:
            common, _ = link_model.scale(left[say], 1 + int(judged.sum()))
            weights = (say & (np.abs(left) <= link_model.SKIP * common)).astype(np.float64)
        left *= weights
        shift = np.bincount(moment, left, moments.size) / np.maximum(np.bincount(moment, weights, moments.size), 1.0)
        moments = moments + shift
        left -= weights * shift[moment]
        sums = np.bincount(first, left, count) + np.bincount(second, left, count)
        behind = np.bincount(first, weights, count) + np.bincount(second, weights, count)
        change = np.where(judged, _STEP * sums / np.maximum(behind, 1.0), 0.0)
        nodes = nodes + change
        middle = float(np.median(nodes[judged])) if judged.any() else 0.0
        nodes[judged] -= middle
        moments = moments + 2 * middle
        if abs(change).max(initial=0.0) < _STILL and sweep % _RESCALED:
            break
    left = samples.logs - moments[moment] - nodes[first] - nodes[second]
    later = samples.later
    before, _ = link_model.scale(left[say & ~later], 1 + int(judged.sum()))
    scale, dof = before, max(1, int(say.sum()) - 1 - int(judged.sum()))
    if later.any():
        scale, dof = link_model.scale(left[say & later], moments.size - 1)
    return Fit(nodes, left, scale, dof, before, np.maximum(behind, 1.0))


@dataclass(frozen=True)
class Effects:
    """Of each link by its number: its own effect without outliers, and the number of samples behind it."""

    effect: Floats
    count: Indices


def effects(samples: Samples, fitted: Fit, which: NDArray[np.bool_]) -> Effects:
    """Return the mean of each link over its samples within three standard deviations of their median.

    Args:
        samples: all.
        fitted: what is left of them.
        which: the samples that count.
    """
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
    middle[played] = link_model.medians(rows, counts[played])
    near = np.abs(left - middle[link]) <= link_model.SKIP * max(fitted.scale, fitted.before)
    kept = np.bincount(link, near, size)
    total = np.bincount(link, np.where(near, left, 0.0), size)
    return Effects(np.where(kept > 0, total / np.maximum(kept, 1), middle), kept.astype(np.int64))


def clipped(samples: Samples, fitted: Fit, most: float) -> Effects:
    """Return the mean of each link over all samples, none of which counts as more than ``most``; for a ranking."""
    size = samples.table.first.size
    counts = np.bincount(samples.link, minlength=size)
    total = np.bincount(samples.link, np.minimum(fitted.left, most), size)
    return Effects(total / np.maximum(counts, 1), counts)


def _medians(values: Floats, groups: Indices, every: Indices) -> Floats:
    """Return the median of each group's values; of a group without any, the median of all."""
    found = np.full(int(every.max()) + 1, float(np.median(values)))
    for group in np.unique(groups[groups >= 0]).tolist():
        found[group] = float(np.median(values[groups == group]))
    return found
