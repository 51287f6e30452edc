"""From a run to its verdict: measured on, and run again for as long as chance may have named the same link."""

from __future__ import annotations

from functools import partial

import healthy
import nightly_pairs
import numpy as np
import pytest
import simulated
from clusterctl.analysis import agreement, sequential, speed_verdict
from clusterctl.analysis.packet_loss import SENT_AGAIN
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import CheckResult, Culprit, Verdict
from clusterctl.validation import confirming
from factory import check, figure
from noisy_links import matrix

SIZES = [("latency", 1), ("latency", 4096), ("bandwidth", 65536), ("bandwidth", simulated.SIZE)]
NODES = 64


def validated(seed: int, suite: str = "nightly", **planted: float) -> tuple[CheckResult, nightly_pairs.Night]:
    rng = np.random.default_rng(seed)
    plan = simulated.Plan(nodes=NODES, noise=0.03, **planted)  # type: ignore[arg-type]
    cluster = simulated.build(plan, rng)
    night = nightly_pairs.Night(cluster, partial(healthy.result, cluster, rng, SIZES), rng, suite)
    return night.validated(), night


def test_a_link_that_two_runs_name_by_chance_is_run_again() -> None:
    found = healthy.examine(NODES, 1, seed=18)
    assert found.reasons == {}
    assert found.jobs == {4: 1}, "the tournament, pairs that are measured on, and two more runs"


@pytest.mark.parametrize("suite", ["smoke", "nightly"])
def test_a_slow_link_among_bad_moments_is_named_all_the_same(suite: str) -> None:
    for seed in range(3):
        found, night = validated(seed, suite, slow_links=1, slowdown=0.3)
        assert found.verdict is Verdict.FAIL
        names = {frozenset(f"node{end}" for end in link) for link in night.cluster.bad_links}
        assert {frozenset(one.nodes) for one in found.culprits} == names
        assert night.launches <= 5


def link(first: int, second: int, quantity: str = "bandwidth") -> Culprit:
    nodes = (f"node{first}", f"node{second}")
    return Culprit(kind="pair", nodes=nodes, quantity=quantity, ratio=0.7, score=9.0, tested=2016, words="slow")


def test_chance_is_told_by_what_a_run_names_beside_the_others() -> None:
    common, runs = link(0, 1), [[link(0, 1), *(link(at, 9) for at in range(number))] for number in (8, 6, 4)]
    assert agreement.by_chance([common], runs[:2]) == pytest.approx(8 * 6 / 2016)
    assert agreement.by_chance([common], runs) == pytest.approx(8 * 6 * 4 / 2016**2)
    assert agreement.by_chance([common], [[common], runs[0]]) == 0, "a run that names nothing else names by no chance"
    assert agreement.by_chance([], runs) == 0
    node = common.model_copy(update={"kind": "node", "nodes": ("node1",)})
    assert agreement.by_chance([node], [[node, link(0, 1)], [node, link(0, 2)]]) == 0


def test_a_suspect_of_which_little_is_left_needs_no_second_run() -> None:
    rng = np.random.default_rng(4)
    cluster = simulated.build(simulated.Plan(nodes=30, noise=0.03, late=0.0), rng)
    matrix = simulated.measure(cluster, rng)
    value = np.array(matrix.value)
    value[5] *= 0.7  # a bad moment of the tournament
    one = sequential.Undecided(matrix.model_copy(update={"value": tuple(value.tolist())}), sequential.Bounds())
    ask = one.ask(20)
    assert ask is not None
    pairs = np.array([pair for each in ask.rounds for pair in each])
    logs = simulated.measure_on(cluster, cluster.number_of(pairs), ask.repeats, rng)
    first, second = (tuple(column.tolist()) for column in pairs.T)
    repeats = [
        matrix.model_copy(update={"first": first, "second": second, "value": tuple(column.tolist())})
        for column in (simulated.LEVEL * np.exp(-logs)).T
    ]
    one.add(repeats)
    one.ask(0)
    assert one.decision.unclear[5], "a fault of the floor's size may be there"
    ends = (int(cluster.first[5]), int(cluster.second[5]))
    suspect = link(*ends).model_copy(update={"size_bytes": simulated.SIZE})
    assert one.has_decided(suspect)
    assert not one.has_decided(suspect.model_copy(update={"ratio": 0.97}))


# --- measuring on: runs of a check become one, and it ends when it judges finely enough or the time is up ---


NOISE = 0.08


class Runs:
    """Takes runs of ten seconds each by a clock of its own, and counts them."""

    def __init__(self, slow: dict[int, float] | None = None, verdict: Verdict = Verdict.PASS) -> None:
        self.slow, self.verdict, self.now, self.count, self.told = slow, verdict, 0.0, 1, list[str]()

    def first(self) -> CheckResult:
        return check("pairs", matrices=(matrix(8, NOISE, slow=self.slow, seed=self.count),), seconds=10.0)

    def take(self) -> CheckResult:
        self.now += 10
        self.count += 1
        found = self.first()
        return found.model_copy(update={"verdict": self.verdict}) if self.count == 3 else found

    def patient(self, seconds: float) -> confirming.Patience:
        return confirming.Patience(seconds, self.take, self.told.append, lambda: self.now)


def assess(result: CheckResult) -> CheckResult:
    return speed_verdict.assess(result, OutlierPolicy())


def test_it_measures_on_until_a_tenth_would_be_seen() -> None:
    runs = Runs()
    assert max(one.fraction for one in assess(runs.first()).fineness) > 0.15
    result, number = runs.patient(1000).measured_on(runs.first(), assess)
    assert result.verdict is Verdict.PASS
    assert all(one.fraction <= confirming.GOAL for one in result.fineness)
    assert 2 < number < 20
    assert result.reason.endswith(f"; {number} runs together")
    assert runs.told[0].startswith("measured on after 1 run, since it can detect ")
    assert result.seconds == 10 * number


@pytest.mark.parametrize(("seconds", "number"), [(0, 1), (15, 1), (41, 3), (61, 4)])
def test_it_ends_in_time_and_leaves_half_of_it_to_confirm(seconds: float, number: int) -> None:
    runs = Runs()
    patient = runs.patient(seconds)
    result, counted = patient.measured_on(runs.first(), assess)
    assert (result.verdict, counted) == (Verdict.PASS, number)
    patient.again(assess)
    assert runs.now <= max(seconds, 10)


def test_a_fault_that_one_run_cannot_see_is_seen_by_several_and_confirmed() -> None:
    runs = Runs({4: 0.18})
    assert assess(runs.first()).verdict is Verdict.PASS
    patient = runs.patient(2000)
    result, _number = patient.measured_on(runs.first(), assess)
    assert speed_verdict.suspects(result)
    final = speed_verdict.confirmed(result, patient.again(assess), OutlierPolicy())
    assert [one.nodes for one in final.culprits] == [("node1", "node6")]


def test_a_run_that_goes_wrong_stands_alone() -> None:
    runs = Runs(verdict=Verdict.FAIL)
    result, number = runs.patient(1000).measured_on(runs.first(), assess)
    assert (result.verdict, number) == (Verdict.FAIL, 0)


def test_runs_become_one_by_medians() -> None:
    def run(value: float, *lost: float) -> CheckResult:
        speed = figure(value, "node1", quantity="compute", samples=(value, value + 1))
        losses = [figure(share, "node1", "node2", quantity=SENT_AGAIN) for share in lost]
        return check("pairs", Verdict.PASS, speed, *losses, matrices=(one_link(value),))

    def one_link(value: float) -> object:
        return matrix(4).model_copy(
            update={"value": (value,) * 6, "forward": (value,) * 6, "backward": (2 * value,) * 6}
        )

    found = confirming.pooled([run(1, 0.02), run(5, 0.04), run(3)])
    assert found.matrices[0].value == (3.0,) * 6
    assert found.matrices[0].backward == (6.0,) * 6
    assert found.matrices[0].spread == ()
    speed, lost = found.figures
    assert (speed.value, len(speed.samples)) == (3.5, 6)
    assert lost.value == pytest.approx(0.03)
    assert len(confirming.pooled([run(1, 0.02), run(5), run(3)]).figures) == 1  # one run of three lost some
