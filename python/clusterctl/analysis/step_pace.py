"""Which rank's own part of a training step is late: ranks that step together all have the same step time.

A step's own part is its time without waiting for other ranks. Each rank has one figure, the median over its reports,
and the figures are compared as those of nodes are (:mod:`clusterctl.analysis.outliers`). The reports are judged in two
halves. A rank is late when both halves name it, and when it is late by a noticeable part of the step.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.analysis import outliers
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Own parts of healthy ranks differ by some per cent, and 5 % of the step is what a user would wait for.
POLICY = OutlierPolicy(floor=0.1)
LEAST_PART = 0.05
FEWEST_RANKS = 3  # two differ, and nothing says which of them is late
FEWEST_REPORTS = 6  # three in each half
_SHORTEST_S = 1e-6


class StepReport(NamedTuple):
    """What a rank tells of some steps: how many, their seconds, and the seconds of these in which it waited."""

    rank: int
    host: str
    steps: int
    whole_s: float
    waited_s: float

    @property
    def own_s(self) -> float:
        """The own part of one step."""
        return max(_SHORTEST_S, (self.whole_s - self.waited_s) / self.steps)

    @property
    def step_s(self) -> float:
        """The time of one step."""
        return self.whole_s / self.steps


@dataclass(frozen=True)
class LateRank:
    """A rank whose own part takes ``own_s`` seconds of each step, while that of the others takes ``usual_s``."""

    rank: int
    host: str
    own_s: float
    usual_s: float


@dataclass(frozen=True)
class Pace:
    """The steps of a job.

    Attributes:
        ranks: how many ranks reported.
        step_s: the time of a step, the median over the ranks.
        own_s: the own part of each rank.
        late: the late ranks, the latest first.
        finest: a rank is named from this share above the others on (0.3: 30 % more); None where it is not known.
        unknown: why nobody can be named; empty where the ranks were compared.
    """

    ranks: int
    step_s: float
    own_s: Mapping[int, float]
    late: tuple[LateRank, ...] = ()
    finest: float | None = None
    unknown: str = ""


def judge(reports: Mapping[int, Sequence[StepReport]]) -> Pace:
    """Return who is late.

    Args:
        reports: by rank, in the order in which they came; there is one at least.
    """
    counted = min(map(len, reports.values()))
    own = {rank: statistics.median(one.own_s for one in each) for rank, each in reports.items()}
    step_s = statistics.median(one.step_s for each in reports.values() for one in each)
    if not any(one.waited_s for each in reports.values() for one in each):
        why = "no rank told what it waits for; put the collective or the backward pass into 'with pace.waiting():'"
    elif len(reports) < FEWEST_RANKS:
        why = f"{len(reports)} ranks are too few to tell which of them is late"
    elif counted < FEWEST_REPORTS:
        why = f"the job was too short: a rank sent {counted} of the {FEWEST_REPORTS} reports that a comparison takes"
    else:
        return _compared(reports, own, step_s, counted)
    return Pace(len(reports), step_s, own, unknown=why)


def _compared(
    reports: Mapping[int, Sequence[StepReport]], own: Mapping[int, float], step_s: float, counted: int
) -> Pace:
    last = {rank: each[-counted:] for rank, each in reports.items()}
    halves = [_figures(last, slice(0, counted // 2)), _figures(last, slice(counted // 2, None))]
    first, second = ({one.nodes[0] for one in outliers.among_nodes(half, POLICY)} for half in halves)
    named = {rank for rank in reports if str(rank) in first & second}
    usual_s = statistics.median(value for rank, value in own.items() if rank not in named)
    late = [
        LateRank(rank, reports[rank][-1].host, own[rank], usual_s)
        for rank in named
        if own[rank] - usual_s >= LEAST_PART * step_s
    ]
    distances = [outliers.finest_node(half, POLICY) for half in halves]
    known = [one for one in distances if one is not None]
    finest = max(math.expm1(max(known)), LEAST_PART * step_s / usual_s) if len(known) == len(halves) else None
    return Pace(len(reports), step_s, own, tuple(sorted(late, key=lambda one: -one.own_s)), finest)


def _figures(reports: Mapping[int, Sequence[StepReport]], part: slice) -> list[Figure]:
    figures = []
    for rank, each in reports.items():
        samples = tuple(one.own_s for one in each[part])
        value = statistics.median(samples)
        figures.append(
            Figure(quantity="time", nodes=(str(rank),), value=value, unit="s", samples=samples, better="lower")
        )
    return figures
