"""Measuring on: runs of a check become one, and it ends when it judges finely enough or the time is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusterctl.analysis import speed_verdict
from clusterctl.analysis.packet_loss import SENT_AGAIN
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import Verdict
from clusterctl.validation import patience
from factory import check, figure
from noisy_links import matrix

if TYPE_CHECKING:
    from clusterctl.model.results import CheckResult

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

    def patient(self, seconds: float) -> patience.Patience:
        return patience.Patience(seconds, self.take, self.told.append, lambda: self.now)


def assess(result: CheckResult) -> CheckResult:
    return speed_verdict.assess(result, OutlierPolicy())


def test_it_measures_on_until_a_tenth_would_be_seen() -> None:
    runs = Runs()
    assert max(one.fraction for one in assess(runs.first()).fineness) > 0.15
    result, number = runs.patient(1000).measured_on(runs.first(), assess)
    assert result.verdict is Verdict.PASS
    assert all(one.fraction <= patience.GOAL for one in result.fineness)
    assert 2 < number < 20
    assert result.reason.endswith(f"; {number} runs together")
    assert runs.told[0].startswith("measured on after 1 run, since it judged to ±")
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

    found = patience.pooled([run(1, 0.02), run(5, 0.04), run(3)])
    assert found.matrices[0].value == (3.0,) * 6
    assert found.matrices[0].backward == (6.0,) * 6
    assert found.matrices[0].spread == ()
    speed, lost = found.figures
    assert (speed.value, len(speed.samples)) == (3.5, 6)
    assert lost.value == pytest.approx(0.03)
    assert len(patience.pooled([run(1, 0.02), run(5), run(3)]).figures) == 1  # one run of three lost some
