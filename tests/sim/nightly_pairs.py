"""The check ``pairs`` of the suite nightly on a simulated cluster: clusterctl's own code asks for jobs and judges them.

A job of the simulation takes the time of its launch and of its rounds. The product sees that by its clock, and measures
on for the share of the check's deadline that the suite gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import simulated
from clusterctl.analysis import speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import CheckResult, PairMatrix, RankReport, Verdict
from clusterctl.validation import confirming
from clusterctl.validation.checks import base, registry
from clusterctl.validation.checks.base import Check
from clusterctl.validation.checks.pairs import Pairs
from clusterctl.validation.expectations import Expectations

LAUNCH_S, ROUND_S = 30.0, 0.1  # of the simulated clock
SUITE = "nightly"


class _Judges(Expectations):
    """Nothing but the nodes themselves: without references and without a history."""

    policy = OutlierPolicy()  # type: ignore[assignment] # in place of a property

    def __init__(self) -> None:
        pass

    def assess(self, found: CheckResult) -> CheckResult:
        return speed_verdict.assess(found, self.policy)

    def confirmed(self, first: CheckResult, second: CheckResult) -> CheckResult:
        return speed_verdict.confirmed(first, second, self.policy)


@dataclass
class Night:
    """One validation of a cluster; ``tournament`` returns the result of a whole run, by its number from 0.

    ``launches`` and ``rounds`` count what it took.
    """

    cluster: simulated.Cluster
    tournament: Callable[[int], CheckResult]
    rng: np.random.Generator  # for the samples that are measured on
    suite: str = SUITE
    launches: int = 0
    rounds: int = 0
    _runs: int = field(default=0, init=False)

    def validated(self) -> CheckResult:
        """Return what ``clusterctl validate`` makes of the cluster with the suite."""
        (check,) = registry.select(["pairs"], registry.builtin(self.suite))
        first = self._take(check)
        judges = _Judges()
        return confirming.confirmed(
            check, first, judges.assess(first), self._take, lambda _words: None, judges, clock=lambda: self.seconds
        )

    @property
    def seconds(self) -> float:
        """The simulated clock."""
        return self.launches * LAUNCH_S + self.rounds * ROUND_S

    def _take(self, check: Check | None = None) -> CheckResult:
        """Return the result of one job."""
        self.launches += 1
        if isinstance(check, Pairs) and check.further is not None:
            self.rounds += len(check.further.rounds) * check.further.repeats
            return self._further(check)
        plan = self.cluster.plan
        rounds = plan.rounds or plan.nodes - 1 + plan.nodes % 2
        self.rounds += rounds
        found = self.tournament(self._runs)
        self._runs += 1
        wanted = check if isinstance(check, Pairs) else Pairs()
        sizes = len(wanted.options.latency_bytes) + len(wanted.options.bandwidth_bytes)
        site = base.Site(version="", slots=dict.fromkeys(found.matrices[0].nodes, 1))
        figures = {"measuring_s": ROUND_S * rounds * sizes, "rounds": float(rounds)}
        rank = RankReport.model_construct(rank=0, host="node0", figures=figures)
        return found.model_copy(update={"ranks": (rank,), "deadline_s": base.deadline_s(wanted, site)})

    def _further(self, check: Pairs) -> CheckResult:
        """Return a job that measured some pairs on: a matrix for each repeat."""
        assert check.further is not None
        pairs = np.array([pair for each in check.further.rounds for pair in each])
        logs = simulated.measure_on(self.cluster, self.cluster.number_of(pairs), check.further.repeats, self.rng)
        is_bandwidth = check.further.quantity == "bandwidth"
        values = simulated.LEVEL * np.exp(-logs) if is_bandwidth else np.exp(logs)
        nodes = tuple(f"node{number}" for number in range(self.cluster.plan.nodes))
        first, second = (tuple(column.tolist()) for column in pairs.T)
        matrices = tuple(
            PairMatrix.model_construct(
                quantity=check.further.quantity, size_bytes=check.further.size_bytes, unit="1",
                better="higher" if is_bandwidth else "lower", nodes=nodes,
                first=first, second=second, value=tuple(column.tolist()), forward=(), backward=(), spread=(),
            )
            for column in values.T
        )  # fmt: skip
        return CheckResult.model_construct(check="pairs", verdict=Verdict.PASS, reason="", matrices=matrices)
