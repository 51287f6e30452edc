"""Suspected nodes and links, measured on until a test decides: who is slow, who is not, and what to measure next.

The tournament only selects. Links are judged by what was measured after it, beside matched controls of the same
moments; nodes by all of their links. At each look a node or link is named when its effect is above the tolerance with
the probability that the policy asks for, shared by all looks and all that are tested (a union bound, so the order of
the looks has no say). It is cleared when an effect as large as the floor would be as improbable as a missed fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import further_rounds, link_model, repeated_links, sequential_few
from clusterctl.analysis.distributions import t_quantile
from clusterctl.analysis.significance import Outlier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clusterctl.analysis.further_rounds import Ask
    from clusterctl.analysis.link_values import LinkValues
    from clusterctl.analysis.repeated_links import Effects, Fit, Repeats, Samples

_SHARES = (0.6, 0.5, 1.0)  # of the rounds that are left, for each further job
LOOKS = len(_SHARES)
_FEWEST_MOMENTS = 5  # samples of a link, so that one bad moment is an outlier among them
_EVERYBODY = 24  # nodes up to which the first further job measures every link
_FIRST_PART = 0.2  # of the links, the worst in the tournament
_NEXT_PART, _NEXT_LEAST = (0.05, 0.1), (8, 4)  # of the links of the job before, and the least number of them
_REPEATS = (1, 3, 4)  # how often each further job measures at least
_CLIP = 4.0  # standard deviations that a sample counts at most in a ranking
_PRIOR_DOF = 12  # how many nodes the assumed spread of healthy nodes counts for
_ENOUGH_BEHIND = 60  # samples of a node from which on a suspect needs no controls
_MOST_NODES = 4  # suspected nodes that are measured with more partners


@dataclass(frozen=True)
class Bounds:
    """What counts as healthy and as a fault, and how often either may be taken for the other.

    Attributes:
        floor: the least fault, as a logarithm.
        wrong: how often anybody in a healthy matrix may be named.
        missed: how often a fault of the floor's size may be cleared.
    """

    floor: float = math.log1p(0.03)
    wrong: float = 0.001
    missed: float = 0.005

    @property
    def tolerance(self) -> float:
        """Up to here a link or node is healthy."""
        return self.floor / 6

    @property
    def least(self) -> float:
        """The least estimate that is named: nearer to the floor than to nothing."""
        return (self.floor + self.tolerance) / 2

    @property
    def spread(self) -> float:
        """What healthy nodes are taken to differ by, where few nodes tell little of it."""
        return self.floor / 6


@dataclass(frozen=True)
class Decision:
    """Who is named so far, which links are not cleared, and what to measure next.

    ``fitted`` has the level, the node effects, and the best estimate of each link's own effect. That effect is below
    ``upper`` as surely as the policy asks for; it is infinite where a link was not measured on. ``times`` is how often
    each link was measured after the tournament.
    """

    nodes: tuple[Outlier, ...] = ()
    links: tuple[Outlier, ...] = ()
    unclear: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    upper: link_model.Floats = field(default_factory=lambda: np.zeros(0))
    ask: Ask | None = None
    fitted: link_model.Fit = field(default_factory=lambda: link_model.Fit(0.0, np.zeros(0), np.zeros(0)))
    times: link_model.Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def decide(known: LinkValues, plays: Sequence[Repeats], budget: int, bounds: Bounds) -> Decision:
    """Name, clear, and say what to measure next.

    Args:
        known: the links of the tournament.
        plays: what was measured further so far.
        budget: the rounds that are left.
        bounds: of both errors.
    """
    if known.is_small:
        return _of_few(known, plays, budget, bounds)
    table = known.table
    samples = repeated_links.Samples.of(table, known.logs, plays)
    nodes = link_model.fit(table, known.logs).nodes
    free = np.zeros(table.first.size, dtype=np.bool_)
    fitted = repeated_links.fit(samples, nodes, free)
    if plays:  # suspects get an effect of their own, and no say in the others'
        own = repeated_links.effects(samples, fitted, samples.later)
        free = own.effect * np.sqrt(own.count) > link_model.SKIP * fitted.scale
        fitted = repeated_links.fit(samples, fitted.nodes, free)
    own = repeated_links.effects(samples, fitted, samples.later)
    errors = _errors(table, own, fitted, free)
    links = _links(own, errors, fitted, bounds)
    slow = _nodes(table, fitted, bounds)
    upper = _upper(own, errors, fitted, bounds)
    unclear = ~(upper < bounds.floor)
    ask = _next(known, samples, fitted, free, unclear, len(plays), budget)
    level = float(np.median(known.logs - fitted.nodes[table.first] - fitted.nodes[table.second]))
    return Decision(
        tuple(slow),
        tuple(links),
        unclear,
        upper,
        ask,
        link_model.Fit(level, fitted.nodes, own.effect),
        own.count,
    )


def _errors(table: link_model.Links, own: Effects, fitted: Fit, free: NDArray[np.bool_]) -> link_model.Floats:
    """Return the standard error of each link's effect: its samples, its ends, and what controls differ by for good."""
    count = np.maximum(own.count, 1)
    by_ends = max(fitted.scale, fitted.before) ** 2 * (1 / fitted.behind[table.first] + 1 / fitted.behind[table.second])
    controls = (own.count >= _FEWEST_MOMENTS) & ~free
    lasting = 0.0
    number = int(controls.sum())
    if number > _FEWEST_MOMENTS:
        seen, _ = link_model.scale(own.effect[controls], 1)
        by_chance = float((fitted.scale**2 / own.count[controls] + by_ends[controls]).mean())
        if seen**2 > by_chance * (1 + 3 * math.sqrt(2 / number)):
            lasting = seen**2 - by_chance
    found: link_model.Floats = np.sqrt(fitted.scale**2 / count + by_ends + lasting)
    return found


def _links(own: Effects, errors: link_model.Floats, fitted: Fit, bounds: Bounds) -> list[Outlier]:
    tested = int((own.count > 0).sum())
    if not tested:
        return []
    threshold = t_quantile(bounds.wrong / 2 / LOOKS / tested, fitted.dof)
    scores = (own.effect - bounds.tolerance) / np.maximum(errors, 1e-9)
    named = (own.count >= _FEWEST_MOMENTS) & (scores > threshold) & (own.effect > bounds.least)
    return [Outlier(int(at), float(own.effect[at]), float(scores[at])) for at in np.flatnonzero(named)]


def _nodes(table: link_model.Links, fitted: Fit, bounds: Bounds) -> list[Outlier]:
    """Return the nodes that are beyond their own links' noise and beyond what healthy nodes differ by."""
    judged = np.flatnonzero(table.degree >= link_model.LEAST_LINKS)
    effects = fitted.nodes[judged]
    tail = bounds.wrong / 2 / (LOOKS + 1) / max(1, judged.size)
    error = max(fitted.scale, fitted.before) / np.sqrt(fitted.behind[judged])
    seen, dof = link_model.scale(effects, 1)
    spread = math.sqrt((dof * seen**2 + _PRIOR_DOF * bounds.spread**2) / (dof + _PRIOR_DOF))
    by_noise = bounds.tolerance + t_quantile(tail, fitted.dof) * error
    limit = np.maximum(np.maximum(by_noise, t_quantile(tail, dof + _PRIOR_DOF) * spread), bounds.least)
    scale = np.hypot(error, spread)
    return [
        Outlier(int(judged[at]), float(effects[at]), float(effects[at] / scale[at]))
        for at in np.flatnonzero(effects > limit)
    ]


def _upper(own: Effects, errors: link_model.Floats, fitted: Fit, bounds: Bounds) -> link_model.Floats:
    """Return what each link's effect is below; nothing is known of one that was not measured on."""
    upper = own.effect + t_quantile(bounds.missed / LOOKS, fitted.dof) * errors
    found: link_model.Floats = np.where(own.count > 0, upper, np.inf)
    return found


def _next(
    known: LinkValues,
    samples: Samples,
    fitted: Fit,
    free: NDArray[np.bool_],
    unclear: NDArray[np.bool_],
    look: int,
    budget: int,
) -> Ask | None:
    """Return what to measure next, None where nothing is left to decide or to spend."""
    rounds = int(budget * _SHARES[look]) if look < LOOKS else 0
    if rounds < 1 or not unclear.any():
        return None
    table = known.table
    if look == 0 and table.degree.size <= _EVERYBODY:
        everything = further_rounds.of_all(table, rounds)
        if everything is not None:
            return everything
    common = max(fitted.scale, fitted.before)
    seen = repeated_links.clipped(samples, fitted, _CLIP * common)
    ranked = seen.effect * np.sqrt(seen.count)
    played = np.bincount(samples.link[samples.later], minlength=ranked.size) > 0
    candidates = np.flatnonzero(unclear & (seen.effect > 0) & (played if look else True))
    candidates = candidates[np.argsort(-ranked[candidates], kind="stable")]
    if look == 0:
        return further_rounds.of_suspects(table, candidates[: _most(ranked.size)].tolist(), (), rounds, _REPEATS[0])
    number = max(_NEXT_LEAST[look - 1], round(_NEXT_PART[look - 1] * int(played.sum())))
    chosen = candidates[:number].tolist()
    ends = {int(end[link]) for link in chosen for end in (table.first, table.second)}
    few = sorted(node for node in ends if fitted.behind[node] < _ENOUGH_BEHIND)
    few += [int(node) for node in _suspected_nodes(table, fitted) if node not in ends]
    trusted = np.flatnonzero(~free & (np.abs(seen.effect) * np.sqrt(seen.count) < 2 * common))
    return further_rounds.of_suspects(
        table, chosen, further_rounds.controls_of(table, few, trusted), rounds, _REPEATS[look]
    )


def _most(links: int) -> int:
    return max(_NEXT_LEAST[0], round(_FIRST_PART * links))


def _suspected_nodes(table: link_model.Links, fitted: Fit) -> link_model.Indices:
    """Return the nodes that are well beyond their noise, worst first."""
    scores = fitted.nodes * np.sqrt(fitted.behind) / max(fitted.scale, 1e-9)
    worst = np.argsort(-scores)[:_MOST_NODES]
    found: link_model.Indices = worst[(scores[worst] > link_model.SKIP) & (table.degree[worst] > 0)]
    return found


def _of_few(known: LinkValues, plays: Sequence[Repeats], budget: int, bounds: Bounds) -> Decision:
    """Decide for up to six nodes: every link is measured on, and every explanation by one suspect or two is tried."""
    table, look = known.table, len(plays)
    rounds = int(budget * _SHARES[look]) if look < LOOKS else 0
    ask = further_rounds.of_all(table, rounds) if rounds else None
    open_ = np.ones(table.first.size, dtype=np.bool_)
    if not plays:
        upper = np.full(open_.size, np.inf)
        return Decision(unclear=open_, upper=upper, ask=ask, fitted=link_model.fit(table, known.logs))
    samples = repeated_links.Samples.of(table, known.logs, plays)
    found = sequential_few.explain(known, samples, bounds.wrong / LOOKS, bounds.tolerance, bounds.least, bounds.spread)
    unclear = open_ & (ask is not None)
    upper = np.where(unclear, np.inf, 0.0)
    return Decision(found.nodes, found.links, unclear, upper, ask, found.fitted, found.times)
