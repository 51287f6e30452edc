"""The verdict on simulated clusters of known truth; `make test-sim` prints the table of explanation/detection.md."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import verdicts

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


# --- the rules of other tools do what their descriptions say; `make rehearsal-performance` compares them with ours ---


PEER_SEED = 15


def cells(fault: str, nodes: int, noise: float, clusters: int) -> dict[str, verdicts.Count]:
    return verdicts.examine(verdicts.Case(fault, nodes, noise, 0, clusters), PEER_SEED)


def test_all_rules_find_a_slow_node_where_there_is_little_noise() -> None:
    found = cells("slow node, 10 %", 16, 0.01, 20)
    assert {name: count.rightly for name, count in found.items()} == dict.fromkeys(found, 20)


def test_a_pair_test_with_good_partners_clears_both_ends_of_a_slow_link() -> None:
    found = cells("slow link, 10 %", 16, 0.01, 20)
    assert (found["two-pass"].rightly, found["elimination"].rightly) == (0, 0)
    assert found["clusterctl"].rightly == 20


def test_losses_that_the_kernel_counted_name_the_link_whatever_its_speed() -> None:
    count = cells("lossy link, 2 %", 16, 0.03, 20)["clusterctl"]
    assert (count.rightly, count.wrongly) == (20, 0)


def test_the_clock_counts_launches_and_rounds() -> None:
    found = cells("slow node, 10 %", 16, 0.01, 5)
    assert found["two-pass"].seconds == [2 * 30 + 2 * 0.1] * 5
    assert found["clusterctl"].seconds == [2 * 30 + (15 + 135) * 0.1] * 5, "one further job measures 15 rounds 9 times"


def test_the_page_names_seed_and_repeats() -> None:
    asked = [verdicts.Case("nothing", 4, 0.01, 0, 2)]
    text = verdicts.page(asked, [verdicts.examine(asked[0], PEER_SEED)], PEER_SEED, 2)
    assert "`make rehearsal-performance CLUSTERS=2` writes this page" in text
    assert f"The seed is {PEER_SEED}; the repeats are 2." in text
