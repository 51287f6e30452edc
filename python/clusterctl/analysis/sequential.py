"""Suspected nodes and links, measured on until a test decides: who is slow, who is not, and what to measure next.

The tournament only selects. Links are judged by what was measured after it, beside matched controls of the same
moments; nodes by all of their links. At each look a node or link is named when its effect is above the tolerance with
the probability that the policy asks for, shared by all looks and all that are tested (a union bound, so the order of
the looks has no say). It is cleared when an effect as large as the floor would be as improbable as a missed fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import agreement, culprit_words, links, outliers, repeated_links, speed_verdict
from clusterctl.analysis.links import Fit, LinkValues, Outlier
from clusterctl.analysis.repeated_links import Repeats, Samples
from clusterctl.analysis.robust_stats import DEFAULT, t_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.analysis.links import Candidate, Flags, Floats, Indices, Links
    from clusterctl.analysis.repeated_links import Ask, Effects, SampleFit
    from clusterctl.analysis.robust_stats import OutlierPolicy
    from clusterctl.model.results import CheckResult, Culprit, PairMatrix

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
    """What counts as healthy and as a fault, and how often either may be taken for the other."""

    floor: float = math.log1p(0.03)  # the least fault, as a logarithm
    wrong: float = 0.001  # how often anybody in a healthy matrix may be named
    missed: float = 0.005  # how often a fault of the floor's size may be cleared

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
    unclear: Flags = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    upper: Floats = field(default_factory=lambda: np.zeros(0))
    ask: Ask | None = None
    fitted: Fit = field(default_factory=lambda: Fit(0.0, np.zeros(0), np.zeros(0)))
    times: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def decide(known: LinkValues, plays: Sequence[Repeats], budget: int, bounds: Bounds) -> Decision:
    """Name, clear, and say what to measure next.

    ``plays`` is what was measured further so far, ``budget`` the rounds that are left.
    """
    if known.is_small:
        return _of_few(known, plays, budget, bounds)
    table = known.table
    samples = Samples.of(table, known.logs, plays)
    nodes = links.fit(table, known.logs).nodes
    free = np.zeros(table.first.size, dtype=np.bool_)
    fitted = repeated_links.fit_samples(samples, nodes, free)
    if plays:  # suspects get an effect of their own, and no say in the others'
        own = repeated_links.effects(samples, fitted, samples.later)
        free = own.effect * np.sqrt(own.count) > links.SKIP * fitted.scale
        fitted = repeated_links.fit_samples(samples, fitted.nodes, free)
    own = repeated_links.effects(samples, fitted, samples.later)
    errors = _errors(table, own, fitted, free)
    upper = _upper(own, errors, fitted, bounds)
    unclear = ~(upper < bounds.floor)
    ask = _next(known, samples, fitted, free, unclear, len(plays), budget)
    level = float(np.median(known.logs - fitted.nodes[table.first] - fitted.nodes[table.second]))
    return Decision(
        tuple(_nodes(table, fitted, bounds)),
        tuple(_links(own, errors, fitted, bounds)),
        unclear,
        upper,
        ask,
        Fit(level, fitted.nodes, own.effect),
        own.count,
    )


def _errors(table: Links, own: Effects, fitted: SampleFit, free: Flags) -> Floats:
    """Return the standard error of each link's effect: its samples, its ends, and what controls differ by for good."""
    count = np.maximum(own.count, 1)
    by_ends = fitted.larger**2 * (1 / fitted.behind[table.first] + 1 / fitted.behind[table.second])
    controls = (own.count >= _FEWEST_MOMENTS) & ~free
    lasting = 0.0
    number = int(controls.sum())
    if number > _FEWEST_MOMENTS:
        seen, _ = links.scale(own.effect[controls], 1)
        by_chance = float((fitted.scale**2 / own.count[controls] + by_ends[controls]).mean())
        if seen**2 > by_chance * (1 + 3 * math.sqrt(2 / number)):
            lasting = seen**2 - by_chance
    found: Floats = np.sqrt(fitted.scale**2 / count + by_ends + lasting)
    return found


def _links(own: Effects, errors: Floats, fitted: SampleFit, bounds: Bounds) -> list[Outlier]:
    tested = int((own.count > 0).sum())
    if not tested:
        return []
    threshold = t_quantile(bounds.wrong / 2 / LOOKS / tested, fitted.dof)
    scores = (own.effect - bounds.tolerance) / np.maximum(errors, 1e-9)
    named = (own.count >= _FEWEST_MOMENTS) & (scores > threshold) & (own.effect > bounds.least)
    return [Outlier(int(at), float(own.effect[at]), float(scores[at])) for at in np.flatnonzero(named)]


def _nodes(table: Links, fitted: SampleFit, bounds: Bounds) -> list[Outlier]:
    """Return the nodes that are beyond their own links' noise and beyond what healthy nodes differ by."""
    judged = np.flatnonzero(table.judged)
    effects = fitted.nodes[judged]
    tail = bounds.wrong / 2 / (LOOKS + 1) / max(1, judged.size)
    error = fitted.larger / np.sqrt(fitted.behind[judged])
    seen, dof = links.scale(effects, 1)
    spread = math.sqrt((dof * seen**2 + _PRIOR_DOF * bounds.spread**2) / (dof + _PRIOR_DOF))
    by_noise = bounds.tolerance + t_quantile(tail, fitted.dof) * error
    limit = np.maximum(np.maximum(by_noise, t_quantile(tail, dof + _PRIOR_DOF) * spread), bounds.least)
    scale = np.hypot(error, spread)
    return [
        Outlier(int(judged[at]), float(effects[at]), float(effects[at] / scale[at]))
        for at in np.flatnonzero(effects > limit)
    ]


def _upper(own: Effects, errors: Floats, fitted: SampleFit, bounds: Bounds) -> Floats:
    """Return what each link's effect is below; nothing is known of one that was not measured on."""
    upper = own.effect + t_quantile(bounds.missed / LOOKS, fitted.dof) * errors
    found: Floats = np.where(own.count > 0, upper, np.inf)
    return found


def _next(
    known: LinkValues,
    samples: Samples,
    fitted: SampleFit,
    free: Flags,
    unclear: Flags,
    look: int,
    budget: int,
) -> Ask | None:
    """Return what to measure next, None where nothing is left to decide or to spend."""
    rounds = int(budget * _SHARES[look]) if look < LOOKS else 0
    if rounds < 1 or not unclear.any():
        return None
    table = known.table
    if look == 0 and table.degree.size <= _EVERYBODY:
        everything = repeated_links.of_all(table, rounds)
        if everything is not None:
            return everything
    common = fitted.larger
    seen = repeated_links.clipped(samples, fitted, _CLIP * common)
    ranked = seen.effect * np.sqrt(seen.count)
    played = np.bincount(samples.link[samples.later], minlength=ranked.size) > 0
    candidates = np.flatnonzero(unclear & (seen.effect > 0) & (played if look else True))
    candidates = candidates[np.argsort(-ranked[candidates], kind="stable")]
    if look == 0:
        return repeated_links.of_suspects(table, candidates[: _most(ranked.size)].tolist(), (), rounds, _REPEATS[0])
    number = max(_NEXT_LEAST[look - 1], round(_NEXT_PART[look - 1] * int(played.sum())))
    chosen = candidates[:number].tolist()
    ends = {int(end[link]) for link in chosen for end in (table.first, table.second)}
    few = sorted(node for node in ends if fitted.behind[node] < _ENOUGH_BEHIND)
    few += [int(node) for node in _suspected_nodes(table, fitted) if node not in ends]
    trusted = np.flatnonzero(~free & (np.abs(seen.effect) * np.sqrt(seen.count) < 2 * common))
    return repeated_links.of_suspects(
        table, chosen, repeated_links.controls_of(table, few, trusted), rounds, _REPEATS[look]
    )


def _most(links: int) -> int:
    return max(_NEXT_LEAST[0], round(_FIRST_PART * links))


def _suspected_nodes(table: Links, fitted: SampleFit) -> Indices:
    """Return the nodes that are well beyond their noise, worst first."""
    scores = fitted.nodes * np.sqrt(fitted.behind) / max(fitted.scale, 1e-9)
    worst = np.argsort(-scores)[:_MOST_NODES]
    found: Indices = worst[(scores[worst] > links.SKIP) & (table.degree[worst] > 0)]
    return found


# --- Up to six nodes: so few have no effects that could be fitted beside those of their links -------------------------
# So every link is measured on, and every explanation by one suspect or two is tried (links.explained), with two
# differences. The noise is known from the repeats. And healthy nodes differ a little for good: generalized least
# squares (Aitken, *Proc. R. Soc. Edinb.* 55, 1936) with that spread tell a slow link from ends that happen to be slow.

_MISFIT = 3.09  # standard normal quantile of 0.999: what is left beyond it is more than the noise that is known


def _of_few(known: LinkValues, plays: Sequence[Repeats], budget: int, bounds: Bounds) -> Decision:
    table, look = known.table, len(plays)
    rounds = int(budget * _SHARES[look]) if look < LOOKS else 0
    ask = repeated_links.of_all(table, rounds) if rounds else None
    unclear = np.full(table.first.size, not plays or ask is not None)
    upper = np.where(unclear, np.inf, 0.0)
    usual = links.fit(table, known.logs)
    if not plays:
        return Decision(unclear=unclear, upper=upper, ask=ask, fitted=usual)
    samples = Samples.of(table, known.logs, plays)
    nobody = np.zeros(table.first.size, dtype=np.bool_)
    fitted = repeated_links.fit_samples(samples, np.zeros(table.degree.size), nobody)
    first, second = samples.ends  # the effects of nodes go back to their links; what all share at a moment stays out
    flat = replace(fitted, left=fitted.left + fitted.nodes[first] + fitted.nodes[second])
    own = repeated_links.effects(samples, flat, samples.later)
    if int(own.count.min()) < _FEWEST_MOMENTS:
        return Decision((), (), unclear, upper, ask, usual, own.count)
    judged, columns = known.suspects()
    found = _explained(samples, flat, own, columns, bounds)
    slow, single = found.named(judged)
    beside = links.left_beside(table, own.effect, found.level, slow)
    level = float(np.median(links.left_beside(table, known.logs, 0.0, slow).residuals))
    return Decision(tuple(slow), tuple(single), unclear, upper, ask, replace(beside, level=level), own.count)


def _explained(samples: Samples, flat: SampleFit, own: Effects, columns: Floats, bounds: Bounds) -> links.Explanation:
    """Return who explains the links' effects beside the noise of their samples and what healthy nodes differ by."""
    table, size, later = samples.table, own.count.size, samples.later
    around = flat.left[later] - own.effect[samples.link[later]]
    noise, dof = links.scale(around, size + int(np.unique(samples.moment[later]).size) - 1)
    incidence = np.zeros((size, table.degree.size))
    incidence[np.arange(size), table.first] = incidence[np.arange(size), table.second] = 1.0
    covariance = np.diag(noise**2 / own.count) + bounds.spread**2 * incidence @ incidence.T
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    design = white @ np.hstack((np.ones((size, 1)), columns))

    def scores(best: Candidate) -> Floats | None:
        misfit = best.left / best.dof if best.left > _most_left(best.dof) else 1.0
        found = (best.effects - bounds.tolerance) / (best.errors * math.sqrt(max(1.0, misfit)))
        threshold = t_quantile(min(0.5, bounds.wrong / LOOKS / best.tried), dof)
        return None if ((best.effects <= bounds.least) | (found <= threshold)).any() else found

    return links.explained(white @ own.effect, design, float(np.median(own.effect)), scores)


def _most_left(free: int) -> float:
    """Return the sum of squares that noise leaves in one of 1,000 fits (Wilson and Hilferty, *PNAS* 17, 1931)."""
    part = 2 / (9 * free)
    return free * float((1 - part + _MISFIT * math.sqrt(part)) ** 3)


# --- One matrix that is measured on, and what came of it in words -----------------------------------------------------

_JUDGED = ("node", "pair")  # kinds of culprits that the test decides on
_FEWEST_NODES = 4  # fewer have too few links to tell a node from a link


def chosen(assessed: CheckResult) -> tuple[PairMatrix, ...]:
    """Return the matrices to measure on: of each quantity the one that names somebody, else of bandwidth the finest.

    Where groups of nodes are slow towards each other, a second run has to confirm that, and single links wait for it.
    """
    found: list[PairMatrix] = []
    if any(one.kind == "boundary" for one in assessed.culprits):
        return ()
    for quantity in dict.fromkeys(matrix.quantity for matrix in assessed.matrices):
        usable = [
            one
            for one in assessed.matrices
            if one.quantity == quantity and len(one.nodes) >= _FEWEST_NODES and LinkValues.of(one) is not None
        ]
        suspected = [one.size_bytes for one in assessed.culprits if one.quantity == quantity and one.kind in _JUDGED]
        named = [one for one in usable if one.size_bytes in suspected]
        if named:
            found.append(named[-1])
        elif usable and quantity == "bandwidth":
            found.append(min(usable, key=_coarseness))
    return tuple(found)


def bounds(policy: OutlierPolicy, matrices: int) -> Bounds:
    """Return the bounds of the test for one of so many matrices."""
    usual = Bounds()
    return Bounds(floor=policy.least, wrong=usual.wrong / max(1, matrices), missed=usual.missed)


@dataclass
class Undecided:
    """One matrix that is measured on; :attr:`decision` is the latest one."""

    matrix: PairMatrix
    limits: Bounds

    def __post_init__(self) -> None:
        """Take the tournament's links."""
        known = LinkValues.of(self.matrix)
        if known is None:
            raise ValueError("a matrix without links cannot be measured on")
        self._known = known
        self._plays: list[Repeats] = []
        self.decision: Decision | None = None

    def ask(self, rounds: int) -> Ask | None:
        """Return what to measure next with so many rounds left, None where nothing is."""
        self.decision = decide(self._known, self._plays, rounds, self.limits)
        return self.decision.ask

    def add(self, repeats: Sequence[PairMatrix]) -> None:
        """Add what a job measured: a matrix for each repeat."""
        table = self._known.table
        number = {ends: at for at, ends in enumerate(zip(table.first.tolist(), table.second.tolist(), strict=True))}
        logs = np.full((table.first.size, max(1, len(repeats))), math.nan)
        sign = culprit_words.sign(self.matrix.better)
        for column, one in enumerate(repeats):
            for first, second, value in zip(one.first, one.second, one.value, strict=True):
                if value > 0 and (first, second) in number:
                    logs[number[first, second], column] = sign * math.log(value)
        played = np.flatnonzero(np.isfinite(logs).any(axis=1))
        self._plays.append(Repeats(played, logs[played]))

    @property
    def named(self) -> tuple[Culprit, ...]:
        """The nodes and links that the test names, with how often the links were measured."""
        if self.decision is None:
            return ()
        table, fitted, times = self._known.table, self.decision.fitted, self.decision.times
        found = [outliers.node_culprit(self.matrix, one, fitted) for one in self.decision.nodes]
        for one in self.decision.links:
            ends = int(table.first[one.at]), int(table.second[one.at])
            culprit = outliers.pair_culprit(self.matrix, one, fitted, *ends)
            found.append(
                culprit.model_copy(update={"words": f"{culprit.words}, measured on {int(times[one.at])} times"})
            )
        return tuple(one for one in found if not speed_verdict.is_a_round(self.matrix, one))

    @property
    def about(self) -> tuple[str, int]:
        """Quantity and size."""
        return self.matrix.quantity, self.matrix.size_bytes

    def has_decided(self, culprit: Culprit) -> bool:
        """Whether a suspect of the tournament was measured on, so that the test alone speaks of it.

        A link is decided when it is named, or when less is left of it than two runs would have to agree on.
        """
        if self.decision is None or not self._plays or culprit.kind not in _JUDGED:
            return False
        if (culprit.quantity, culprit.size_bytes) != self.about:
            return False
        if culprit.kind == "node":
            return True
        table, times = self._known.table, self.decision.times
        ends = {self.matrix.nodes.index(name) for name in culprit.nodes}
        at = [link for link in np.flatnonzero(times) if {int(table.first[link]), int(table.second[link])} == ends]
        if not at:
            return False
        told = abs(math.log(culprit.ratio)) if culprit.ratio else 0.0
        is_less = self.decision.upper[at[0]] < max(self.limits.floor, told / agreement.AGREE)
        return bool(is_less) or culprit.nodes in {one.nodes for one in self.named}


def still_open(assessed: CheckResult, tried: Sequence[Undecided]) -> tuple[Culprit, ...]:
    """Return the suspects of a run that a second run has to confirm, since the test has not decided on them."""
    return tuple(culprit for culprit in assessed.culprits if not any(one.has_decided(culprit) for one in tried))


def named_by(tried: Iterable[Undecided]) -> tuple[Culprit, ...]:
    """Return whom the tests name, one culprit for each node and link."""
    return agreement.merge(culprit for one in tried for culprit in one.named)


def words(assessed: CheckResult, tried: Sequence[Undecided], named: Sequence[Culprit], jobs: int) -> str:
    """Return what measuring on came to: 'measured on in 3 jobs; not confirmed: node3: ...'."""
    who = {frozenset(one.nodes) for one in named}
    dropped = [
        one.words
        for one in assessed.culprits
        if frozenset(one.nodes) not in who and any(each.has_decided(one) for each in tried)
    ]
    told = f"measured on in {jobs} job{'s' if jobs > 1 else ''}"
    return f"{told}; not confirmed: {'; '.join(dropped[:3])}" if dropped else told


def _coarseness(matrix: PairMatrix) -> float:
    finest, _ = outliers.finest_link(matrix, DEFAULT)
    return finest if finest is not None else math.inf
