"""From a run to its verdict: measured on, and run again for as long as chance may have named the same link."""

from __future__ import annotations

from functools import partial

import healthy
import nightly_pairs
import numpy as np
import pytest
import simulated
from clusterctl.analysis import agreement, sequential
from clusterctl.model.culprits import Culprit
from clusterctl.model.results import CheckResult, Verdict

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
    assert one.decision is not None
    assert one.decision.unclear[5], "a fault of the floor's size may be there"
    ends = (int(cluster.first[5]), int(cluster.second[5]))
    suspect = link(*ends).model_copy(update={"size_bytes": simulated.SIZE})
    assert one.has_decided(suspect)
    assert not one.has_decided(suspect.model_copy(update={"ratio": 0.97}))
