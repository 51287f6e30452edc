"""Pairs are measured on: further jobs of the check, judged from what their ranks would print."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from clusterctl.analysis import speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.validation.checks import base
from clusterctl.validation.checks.base import Check
from clusterctl.validation.checks.pairs import Further, Pairs, PairsOptions
from clusterctl.validation.confirming import MeasuringOn

MPI = "/usr/local/openmpi-5.0.7-aa"
MIB = 1 << 20
NOISE, ROUND_S, DEADLINE_S = 0.03, 0.1, 60.0
POLICY = OutlierPolicy()


class Cluster:
    """Prints what the ranks of a job print: links of 1 GB/s with noise, some of them slow; and counts seconds."""

    def __init__(
        self, count: int, slow: dict[tuple[int, int], float] | None = None, broken: Verdict | None = None
    ) -> None:
        self.count, self.slow, self.broken = count, slow or {}, broken
        self.rng = np.random.default_rng(3)
        self.now = 0.0
        self.jobs: list[Further] = []
        self.told: list[str] = []
        self.site = base.Site(
            version="5.0.7",
            slots={f"node{at + 1}": 1 for at in range(count)},
            libraries={f"node{at + 1}": MPI for at in range(count)},
        )

    def line(self, event: str, rank: int, **more: object) -> OutputLine:
        head = {"clusterctl": 1, "event": event, "check": "pairs", "rank": rank, "host": f"node{rank + 1}"}
        return OutputLine("stdout", 1.0, json.dumps({**head, **more}))

    def samples(self, pair: tuple[int, int], number: int) -> list[float]:
        part = 1 - self.slow.get(pair, 0.0)
        return [float(value) for value in 1e9 * part * np.exp(self.rng.normal(0, NOISE, number))]

    def run(self, check: Check) -> CheckResult:
        """Return a job of the check, as its own judge sees it."""
        assert isinstance(check, Pairs)
        further = check.further
        rounds = self.count - 1 + self.count % 2
        pairs = [(first, second) for second in range(self.count) for first in range(second)]
        number = 1
        if further is not None:
            self.jobs.append(further)
            pairs, number = [pair for each in further.rounds for pair in each], further.repeats
            rounds = len(further.rounds) * number
            if self.broken is not None:
                return CheckResult(check="pairs", verdict=self.broken, reason="it broke")
        self.now += 1.0 + rounds * ROUND_S
        lines = [
            self.line("measured", first, samples=self.samples((first, second), number), peer=f"node{second + 1}",
                      quantity="bandwidth", unit="B/s", better="higher", bytes=MIB, backend="mpi")
            for first, second in pairs
        ]  # fmt: skip
        figures = {"measuring_s": rounds * ROUND_S * 2, "rounds": rounds}  # of two sizes
        lines += [
            self.line(
                "result", rank, ok=True, compared=9, wrong=0, library_path=f"{MPI}/lib/libmpi.so", figures=figures
            )
            for rank in range(self.count)
        ]
        found = check.judge(self.site, JobOutcome("exited", 2.0, rc=0, lines=tuple(lines)))
        return CheckResult(
            check="pairs", verdict=found.verdict, reason=found.reason, ranks=found.ranks, matrices=found.matrices,
            figures=found.figures, deadline_s=DEADLINE_S,
        )  # fmt: skip

    def pursue(self, share: float = 0.2) -> tuple[CheckResult, bool, bool]:
        options = PairsOptions(measure_on=share, latency_bytes=(8,), bandwidth_bytes=(MIB,))
        check = Pairs(options)
        first = self.run(check)
        assert first.verdict is Verdict.PASS
        assessed = speed_verdict.assess(first, POLICY)
        on = MeasuringOn(check, self.run, self.told.append, POLICY, lambda: self.now)
        pursued = on.pursued(first, assessed)
        return pursued.result, pursued.is_open, pursued.is_final


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_link_that_one_tournament_rarely_shows_is_named(nodes: int) -> None:
    cluster = Cluster(nodes, {(0, 2): 0.1})
    result, is_open, _ = cluster.pursue()
    assert not is_open
    assert (result.verdict, result.hosts) == (Verdict.FAIL, ("node1", "node3"))
    assert result.culprits[0].words.endswith("times")
    assert "measured on" in result.culprits[0].words
    assert 1 <= len(cluster.jobs) <= 3
    assert len(cluster.told) == len(cluster.jobs)
    assert cluster.now - 1.0 - ROUND_S * nodes <= 0.2 * DEADLINE_S + 1.5  # the start of a job is not known before


def test_a_slow_node_is_named_as_a_node() -> None:
    result, _, _ = Cluster(8, {(at, 3): 0.1 for at in range(3)} | {(3, at): 0.1 for at in range(4, 8)}).pursue()
    assert [(one.kind, one.nodes) for one in result.culprits] == [("node", ("node4",))]


def test_healthy_nodes_pass_and_the_reason_says_that_they_were_measured_on() -> None:
    result, is_open, _ = Cluster(8).pursue()
    assert (result.verdict, is_open) == (Verdict.PASS, False)
    assert "measured on in" in result.reason
    assert result.culprits == ()


def test_without_a_share_or_time_nothing_is_launched() -> None:
    cluster = Cluster(8, {(0, 2): 0.1})
    assert cluster.pursue(0.0)[1]
    assert cluster.pursue(0.0001)[1]
    assert cluster.jobs == []


def test_a_further_job_with_a_wrong_answer_is_the_result() -> None:
    result, _, is_final = Cluster(8, broken=Verdict.FAIL).pursue()
    assert (result.reason, is_final) == ("it broke", True)


def test_a_further_job_that_cannot_run_decides_nothing() -> None:
    cluster = Cluster(8, broken=Verdict.ERROR)
    result, _, is_final = cluster.pursue()
    assert (result.verdict, is_final, len(cluster.jobs)) == (Verdict.PASS, False, 1)


def test_the_program_is_asked_for_the_pairs_alone() -> None:
    check = Pairs().measuring_on(("bandwidth", MIB), (((0, 1), (2, 3)), ((0, 2),)), 7)
    argv = check.program(Cluster(4).site, 60.0)
    given = dict(itertools.pairwise(argv))
    assert (given["--bandwidth"], given["--repeats"]) == (str(MIB), "7")
    assert "--latency" not in argv
    assert all(argv)  # an empty word may get lost on the way through a launcher
    assert "--max-rounds" not in argv
