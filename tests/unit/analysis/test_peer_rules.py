"""The rules of other tools do what their descriptions say; `make rehearsal-performance` compares them with ours."""

from __future__ import annotations

import verdicts

SEED = 15


def cells(fault: str, nodes: int, noise: float, clusters: int) -> dict[str, verdicts.Count]:
    return verdicts.examine(verdicts.Case(fault, nodes, noise, 0, clusters), SEED)


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
    text = verdicts.page(asked, [verdicts.examine(asked[0], SEED)], SEED, 2)
    assert "`make rehearsal-performance CLUSTERS=2` writes this page" in text
    assert f"The seed is {SEED}; the repeats are 2." in text
