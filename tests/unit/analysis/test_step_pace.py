from __future__ import annotations

import random

import pytest
from clusterctl.analysis import step_pace
from clusterctl.analysis.step_pace import StepReport


def job(
    ranks: int, own_s: dict[int, float] | None = None, *, reports: int = 20, noise: float = 0.05, seed: int = 1
) -> dict[int, list[StepReport]]:
    """Ranks in lock-step: all take the step of the slowest, and the others wait for it."""
    chance = random.Random(seed)  # noqa: S311 - noise of a simulation
    found: dict[int, list[StepReport]] = {rank: [] for rank in range(ranks)}
    for _ in range(reports):
        own = {rank: (own_s or {}).get(rank, 0.02) * chance.lognormvariate(0, noise) for rank in found}
        step = max(own.values()) + 0.01
        for rank, each in found.items():
            each.append(StepReport(rank, f"node{rank // 2 + 1}", 10, 10 * step, 10 * (step - own[rank])))
    return found


@pytest.mark.parametrize("ranks", [3, 4, 8, 64])
def test_the_late_rank_is_named_and_no_other(ranks: int) -> None:
    pace = step_pace.judge(job(ranks, {2: 0.06}))
    assert [(one.rank, one.host) for one in pace.late] == [(2, "node2")]
    assert pace.late[0].own_s == pytest.approx(0.06, rel=0.1)
    assert pace.late[0].usual_s == pytest.approx(0.02, rel=0.1)
    assert pace.step_s == pytest.approx(0.07, rel=0.1)


def test_all_ranks_of_a_late_node_are_named() -> None:
    assert {one.rank for one in step_pace.judge(job(16, {4: 0.06, 5: 0.05})).late} == {4, 5}


def test_healthy_ranks_are_hardly_ever_named() -> None:
    named = [step_pace.judge(job(8, noise=0.2, seed=seed)).late for seed in range(300)]
    assert sum(map(bool, named)) <= 9, "three in a hundred"
    fine = step_pace.judge(job(8)).finest
    assert fine is not None
    assert 0.05 <= fine < 0.6


def test_a_rank_that_costs_no_noticeable_part_of_the_step_is_not_late() -> None:
    reports = job(8, {3: 0.04})
    long = {
        rank: [one._replace(whole_s=one.whole_s + 10, waited_s=one.waited_s + 10) for one in each]
        for rank, each in reports.items()
    }
    assert step_pace.judge(reports).late
    assert not step_pace.judge(long).late


def test_what_cannot_be_judged_is_not_judged() -> None:
    assert "2 ranks are too few" in step_pace.judge(job(2, {1: 0.2})).unknown
    assert "sent 5 of the 6 reports" in step_pace.judge(job(4, {1: 0.2}, reports=5)).unknown
    silent = {rank: [one._replace(waited_s=0.0) for one in each] for rank, each in job(4, {1: 0.2}).items()}
    assert "with pace.waiting()" in step_pace.judge(silent).unknown
    assert step_pace.judge(silent).late == ()
