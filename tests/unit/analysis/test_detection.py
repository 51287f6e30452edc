"""The verdict on simulated clusters of known truth; `make test-sim` prints the table of explanation/detection.md."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "sim"))

import detection
import simulated

SEED = 5


def counts(clusters: int, nodes: int, noise: float, **planted: float) -> dict[str, detection.Count]:
    plan = replace(simulated.Plan(nodes=nodes, noise=noise), **planted)  # type: ignore[arg-type]
    return detection.examine(detection.Row(plan, clusters), SEED).counts


@pytest.mark.parametrize("nodes", [4, 5, 8, 16])
def test_of_a_hundred_healthy_clusters_at_most_one_is_blamed(nodes: int) -> None:
    assert counts(100, nodes, 0.03)["clusterctl"].wrong <= 1


@pytest.mark.parametrize("nodes", [4, 8, 16, 64])
@pytest.mark.parametrize("what", ["slow_nodes", "slow_links", "slow_ways"])
def test_a_tenth_too_slow_is_found_at_one_per_cent_of_noise(nodes: int, what: str) -> None:
    count = counts(25, nodes, 0.01, **{what: 1})["clusterctl"]
    assert count.found == 25
    assert count.wrong <= 1


def test_several_at_once_are_told_apart() -> None:
    count = counts(10, 64, 0.01, slow_nodes=3, slow_links=3)["clusterctl"]
    assert count.wrong <= 1
    assert count.found >= 59  # of 60


def test_sampled_rounds_of_many_nodes_suffice_for_a_node() -> None:
    count = counts(3, 2000, 0.03, rounds=32, slow_nodes=2)["clusterctl"]
    assert (count.found, count.wrong) == (6, 0)


def test_three_per_cent_of_noise_fools_a_fixed_share_but_not_the_verdict() -> None:
    found = counts(20, 64, 0.03)
    assert found["5 % of mean"].wrong == 20
    assert found["two-pass"].wrong > 5
    assert found["clusterctl"].wrong == 0


def test_the_rivals_find_what_they_can() -> None:
    """Were they broken, the comparison would be worth nothing."""
    node = counts(20, 16, 0.01, slow_nodes=1)
    assert node["5 % of mean"].found == node["two-pass"].found == 20
    assert node["5 % of mean"].wrong == node["two-pass"].wrong == 0
