"""What a check could not decide: which matrices are measured on, and what came of it in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import agreement, culprit_words, outliers, sequential, significance, speed_verdict
from clusterctl.analysis.link_values import LinkValues
from clusterctl.analysis.repeated_links import Repeats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.analysis.further_rounds import Ask
    from clusterctl.analysis.sequential import Decision
    from clusterctl.model.results import CheckResult, Culprit, PairMatrix

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


def bounds(policy: significance.OutlierPolicy, matrices: int) -> sequential.Bounds:
    """Return the bounds of the test for one of so many matrices."""
    usual = sequential.Bounds()
    return sequential.Bounds(floor=policy.least, wrong=usual.wrong / max(1, matrices), missed=usual.missed)


@dataclass
class Undecided:
    """One matrix that is measured on; :attr:`decision` is the latest one."""

    matrix: PairMatrix
    limits: sequential.Bounds

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
        self.decision = sequential.decide(self._known, self._plays, rounds, self.limits)
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
    finest, _ = outliers.finest_link(matrix, outliers.DEFAULT)
    return finest if finest is not None else math.inf
