"""Measuring on after the tournament: what is asked for, who is named, and who is cleared."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clusterctl.analysis import links, repeated_links, sequential
from clusterctl.analysis.links import LinkValues
from clusterctl.analysis.repeated_links import Repeats

sys.path.insert(0, str(Path(__file__).parents[2] / "sim"))

import measured_on
import simulated

SEED = 5
BOUNDS = sequential.Bounds()


def count(clusters: int, nodes: int, noise: float, **planted: float) -> measured_on.Count:
    plan = replace(simulated.Plan(nodes=nodes, noise=noise), **planted)  # type: ignore[arg-type]
    return measured_on.examine(measured_on.Case(plan, clusters), SEED)


@pytest.mark.parametrize("nodes", [4, 5, 8, 16])
def test_a_tenth_too_slow_is_found_at_three_per_cent_of_noise(nodes: int) -> None:
    for what in ("slow_nodes", "slow_links"):
        found = count(20, nodes, 0.03, **{what: 1})
        assert (found.found, found.wrong, found.over) == (20, 0, 0)


@pytest.mark.parametrize("nodes", [4, 8, 16])
def test_nobody_healthy_is_named(nodes: int) -> None:
    assert count(40, nodes, 0.03).wrong == 0


def test_a_link_three_per_cent_slow_is_found_at_one_per_cent_of_noise() -> None:
    assert count(20, 8, 0.01, slow_links=1, slowdown=0.03).found >= 18


def tournament(nodes: int, seed: int = 1) -> tuple[simulated.Cluster, LinkValues, np.random.Generator]:
    rng = np.random.default_rng(seed)
    cluster = simulated.build(simulated.Plan(nodes=nodes, noise=0.02), rng)
    known = LinkValues.of(simulated.measure(cluster, rng))
    assert known is not None
    return cluster, known, rng


@pytest.mark.parametrize("nodes", [4, 7, 16, 40])
def test_what_is_asked_for_are_rounds_of_disjoint_pairs_within_the_budget(nodes: int) -> None:
    cluster, known, rng = tournament(nodes)
    number = {pair: at for at, pair in enumerate(zip(cluster.first.tolist(), cluster.second.tolist(), strict=True))}
    plays: list[Repeats] = []
    left = 60
    for _ in range(sequential.LOOKS):
        ask = sequential.decide(known, plays, left, BOUNDS).ask
        if ask is None:
            break
        left -= ask.played
        assert left >= 0
        pairs = [pair for each in ask.rounds for pair in each]
        assert len(set(pairs)) == len(pairs)
        assert all(max(Counter(node for pair in each for node in pair).values()) == 1 for each in ask.rounds)
        links = np.array([number[pair] for pair in pairs])
        plays.append(Repeats(links, simulated.measure_on(cluster, links, ask.repeats, rng)))
    assert plays
    assert sequential.decide(known, plays, left, BOUNDS).ask is None or len(plays) < sequential.LOOKS


def test_without_time_nothing_is_asked_for_and_nobody_is_named() -> None:
    for nodes in (4, 8):
        decision = sequential.decide(tournament(nodes)[1], [], 0, BOUNDS)
        assert (decision.ask, decision.nodes, decision.links) == (None, (), ())
        assert decision.unclear.all()


@pytest.mark.parametrize("nodes", [4, 8])
def test_one_bad_moment_of_a_link_is_no_fault(nodes: int) -> None:
    """A link that was late once, at a tenth of its speed, is not named; one that is always late is."""
    _, known, rng = tournament(nodes)
    links = np.arange(known.logs.size)
    logs = rng.normal(0, 0.02, (links.size, 10))
    once, always = logs.copy(), logs.copy()
    once[0, 3] += 2.3
    always[0] += 2.3
    assert sequential.decide(known, [Repeats(links, once)], 0, BOUNDS).links == ()
    assert [one.at for one in sequential.decide(known, [Repeats(links, always)], 0, BOUNDS).links] == [0]


def test_what_was_not_measured_is_left_out() -> None:
    """A job that ends early leaves holes; they count as nothing."""
    _, known, rng = tournament(8)
    links = np.arange(known.logs.size)
    logs = rng.normal(0, 0.02, (links.size, 10))
    logs[3] += 0.3
    logs[:, 8:] = np.nan
    logs[5] = np.nan
    decision = sequential.decide(known, [Repeats(links, logs)], 0, BOUNDS)
    assert [one.at for one in decision.links] == [3]
    assert decision.times[[3, 5]].tolist() == [8, 0]


def test_a_pair_comes_once_and_the_rounds_are_few() -> None:
    first, second = np.triu_indices(16, 1)
    table = links.Links.of(16, first.astype(np.int64), second.astype(np.int64))
    ask = repeated_links.of_all(table, 60)
    assert ask is not None
    assert (len(ask.rounds), ask.repeats) == (15, 4)
    assert repeated_links.of_all(table, 14) is None
