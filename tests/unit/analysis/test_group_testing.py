"""The search against simulated clusters of known truth: whom it names, and after how many launches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest
from clusterctl.analysis import group_trials
from clusterctl.analysis.group_testing import GroupSearch, bound
from search_faults import (
    Across,
    BadNodes,
    Flaky,
    FromSize,
    InRole,
    Once,
    Several,
    Together,
    Unreached,
    Way,
    names,
    play,
    seeded,
)

NEVER = FromSize(10**6)


def a_node(*nodes: int) -> set[tuple[str, frozenset[int]]]:
    return {("node", frozenset({node})) for node in nodes}


def as_one(kind: str, nodes: Iterable[int]) -> set[tuple[str, frozenset[int]]]:
    return {(kind, frozenset(nodes))}


def test_the_bound_is_the_one_that_was_promised() -> None:
    assert all(bound(nodes) == 2 * math.ceil(math.log2(nodes)) + 4 for nodes in range(1, 10_001))


@pytest.mark.parametrize("alone", [True, False], ids=["fails-alone", "needs-a-partner"])
def test_one_bad_node_is_named_within_the_bound_wherever_it_is(alone: bool) -> None:
    for nodes in range(1 if alone else 3, 65):
        for bad in range(nodes):
            found = play(nodes, BadNodes(frozenset({bad}), alone))
            assert found.culprits == a_node(bad), (nodes, bad)
            assert found.launches <= found.search.bound, (nodes, bad)


@pytest.mark.parametrize("nodes", [100, 129, 1000, 4097, 10_000])
def test_one_bad_node_of_many_is_named_within_the_bound(nodes: int) -> None:
    dice = seeded(nodes)
    for bad in (0, nodes - 1, *dice.sample(range(nodes), 8)):
        found = play(nodes, BadNodes(frozenset({bad}), alone=dice.random() < 0.5))
        assert found.culprits == a_node(bad)
        assert found.launches <= found.search.bound


def test_a_bad_pair_is_named_and_neither_of_its_ends_alone() -> None:
    for nodes in range(3, 17):
        for pair in itertools.combinations(range(nodes), 2):
            found = play(nodes, Together(frozenset(pair)))
            assert found.culprits == as_one("pair", pair), (nodes, pair)
            assert found.launches <= found.search.bound + 19, (nodes, pair)


def test_two_nodes_alone_are_told_apart_where_that_can_be() -> None:
    assert play(2, BadNodes(frozenset({1}))).culprits == a_node(1)
    together = play(2, Together(frozenset({0, 1})))
    assert together.culprits == as_one("pair", (0, 1))
    assert "there is no third node to tell which" in together.search.words
    both = play(2, BadNodes(frozenset({0, 1})))
    assert both.culprits == frozenset()
    assert "no single node's fault" in both.search.words


@pytest.mark.parametrize("many", [2, 3])
def test_several_bad_nodes_are_all_named(many: int) -> None:
    dice = seeded(many)
    for nodes in (8, 9, 15, 16, 33, 100, 1000):
        for _ in range(20):
            bad = dice.sample(range(nodes), many)
            found = play(nodes, BadNodes(frozenset(bad), alone=dice.random() < 0.5))
            assert found.culprits == a_node(*bad), (nodes, bad)
            assert found.launches <= many * found.search.bound


@pytest.mark.parametrize("nodes", [3, 4, 5, 7, 8, 16, 33, 100])
def test_a_fault_of_size_is_no_node_s_and_told_with_its_size(nodes: int) -> None:
    for size in range(2, nodes + 1):
        found = play(nodes, FromSize(size))
        [(kind, members)] = found.culprits
        assert (kind, len(members)) == ("together", size), (nodes, size)


def test_three_that_fail_only_together_are_named() -> None:
    dice = seeded(3)
    for nodes in (4, 5, 8, 16, 100):
        for _ in range(10):
            three = dice.sample(range(nodes), 3)
            assert play(nodes, Together(frozenset(three))).culprits == as_one("together", three), (nodes, three)


def test_a_bad_node_does_not_hide_a_bad_pair() -> None:
    dice = seeded(4)
    for _ in range(30):
        bad, *pair = dice.sample(range(64), 3)
        found = play(64, Several((BadNodes(frozenset({bad})), Together(frozenset(pair)))))
        assert found.culprits == a_node(bad) | as_one("pair", pair)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 100, 10_000])
def test_what_does_not_come_again_is_nobody_s(nodes: int) -> None:
    found = play(nodes, NEVER)
    assert found.culprits == frozenset()
    assert found.search.words == f"it did not come again in {found.launches} launches"
    assert found.launches <= 4 + group_trials.COMES_AGAIN


def test_what_fails_on_every_node_alone_is_no_node_s_fault() -> None:
    for nodes in (2, 3, 4, 8, 100):
        found = play(nodes, FromSize(1))
        assert found.culprits == frozenset()
        assert "look at what they share" in found.search.words


@pytest.mark.parametrize(("probability", "named", "wrong"), [(0.8, 0.95, 0.03), (0.5, 0.95, 0.03), (0.3, 0.95, 0.03)])
def test_a_fault_that_comes_now_and_then_is_named_or_nobody_is(probability: float, named: float, wrong: float) -> None:
    dice = seeded(5)
    right = false = 0
    for _ in range(200):
        nodes = dice.choice((4, 8, 16, 33, 100))
        bad = dice.randrange(nodes)
        found = play(nodes, Flaky(BadNodes(frozenset({bad}), alone=False), probability, dice))
        right += found.culprits == a_node(bad)
        false += not found.culprits <= a_node(bad)
    assert right >= 200 * named
    assert false <= 200 * wrong


def test_the_number_of_repeats_follows_from_the_bounds() -> None:
    for missed, rate in ((0.01, 0.3), (0.05, 0.5), (0.001, 0.8)):
        times = group_trials.repeats(missed, rate)
        assert (1 - rate) ** times <= missed < (1 - rate) ** (times - 1)
    with pytest.raises(ValueError, match="no number of launches"):
        group_trials.repeats(0.01, 0)


def test_one_bad_node_of_232_takes_three_minutes_where_a_launch_takes_half_a_minute() -> None:
    for bad in range(232):
        for alone in (True, False):
            found = play(232, BadNodes(frozenset({bad}), alone))
            assert found.culprits == a_node(bad)
            assert 30 * found.steps <= 180


@pytest.mark.parametrize(("nodes", "rack"), [(6, 3), (8, 4), (8, 2), (16, 5), (64, 32), (232, 77)])
def test_two_racks_that_fail_together_are_a_boundary_and_no_node_is_blamed(nodes: int, rack: int) -> None:
    (found,) = play(nodes, Across(frozenset(range(rack)))).search.culprits
    assert (found.kind, list(map(len, found.groups))) == ("boundary", [rack, nodes - rack])
    assert "both pass by themselves" in found.words
    assert "launches with nodes of both failed" in found.words


def test_the_limit_is_never_exceeded_and_what_still_fails_is_said() -> None:
    found = GroupSearch(names(64), limit=6)
    while not found.done:
        found.tell([not Together(frozenset({3, 40})).hits([int(name[4:]) for name in group]) for group in found.next()])
    assert found.launches <= 6
    assert found.words == "stopped after 5 launches; node[0-63] still fail"


def test_the_words_say_what_the_launches_showed() -> None:
    words = play(8, BadNodes(frozenset({5}))).search.words
    assert words == "node5: 3 of 3 launches with it failed; 5 of 5 launches without passed"


def test_wrong_use_is_refused() -> None:
    for nodes in ([], ["node1", "node1"]):
        with pytest.raises(ValueError, match="each of them once"):
            GroupSearch(nodes)
    with pytest.raises(ValueError, match="4 answers are expected, not 1"):
        GroupSearch(names(8)).tell([True])


# --- who launches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launching", [True, False], ids=["launching", "not-launching"])
def test_a_node_that_is_bad_in_one_role_is_named_with_its_role_wherever_it_is(launching: bool) -> None:
    for nodes in (*range(3, 34), 64):
        for bad in range(nodes):
            launcher = bad if launching else (bad + 1 + bad % (nodes - 1)) % nodes
            found = play(nodes, InRole(bad, launching), launcher)
            assert found.culprits == a_node(bad), (nodes, bad, launcher, found.search.words)
            role = "when it launches" if launching else "when it does not launch"
            assert found.search.words.startswith(f"node{bad} {role}: "), found.search.words
            assert found.launches <= found.search.bound + 1, (nodes, bad, launcher)


def test_the_first_example_is_not_taken_for_a_pair() -> None:
    """A daemon that does not run on one of four nodes: every launch passes that this node launches itself."""
    found = play(4, InRole(3, launching=False), launcher=0)
    assert found.culprits == a_node(3)
    assert found.search.words == (
        "node3 when it does not launch: 4 of 4 launches with it failed; 3 of 3 launches without passed"
    )


@pytest.mark.parametrize("bad", [None, 2], ids=["healthy", "beside-a-bad-node"])
@pytest.mark.parametrize("nodes", [4, 5, 8, 13])
def test_a_launch_that_fails_once_by_chance_blames_nobody(nodes: int, bad: int | None) -> None:
    """A busy machine: one launch of the search comes too late, whichever it is."""
    fault = BadNodes(frozenset() if bad is None else frozenset({bad}))
    for late in range(1, bound(nodes) + 4):
        found = play(nodes, Once(fault, late), launcher=0)
        others = {node for _, of in found.culprits for node in of} - {bad}
        assert not others, (late, found.search.words)


def test_a_node_that_cannot_launch_on_another_is_named_with_the_direction() -> None:
    for nodes in range(3, 33):
        for target in range(1, nodes):
            found = play(nodes, Way(0, target), launcher=0)
            assert found.culprits == as_one("one_way", (0, target)), (nodes, target, found.search.words)
            assert found.search.words.startswith(f"node{target} when node0 launches: "), found.search.words
            assert [one.nodes for one in found.search.culprits] == [("node0", f"node{target}")]
            assert found.launches <= found.search.bound + 1, (nodes, target)


def test_a_node_that_is_cut_off_is_named_whether_it_launched_or_not() -> None:
    for nodes in range(3, 33):
        for bad in range(nodes):
            for launcher in {0, bad, nodes - 1}:
                found = play(nodes, Unreached(bad), launcher)
                assert found.culprits == a_node(bad), (nodes, bad, launcher, found.search.words)
                assert found.launches <= found.search.bound, (nodes, bad, launcher)


def test_plain_faults_are_found_whichever_node_launches() -> None:
    for nodes in range(3, 33):
        for launcher in range(nodes):
            bad = (launcher * 7 + 3) % nodes
            found = play(nodes, BadNodes(frozenset({bad})), launcher)
            assert found.culprits == a_node(bad), (nodes, bad, launcher)
            assert found.launches <= found.search.bound
            pair = frozenset({bad, (bad + 1 + launcher % (nodes - 1)) % nodes})
            assert play(nodes, Together(pair), launcher).culprits == as_one("pair", pair), (nodes, pair, launcher)


def test_of_two_nodes_the_way_is_told_where_the_other_way_passes() -> None:
    found = play(2, Way(0, 1), launcher=0)
    assert found.culprits == as_one("one_way", (0, 1))
    assert "no third node" in found.search.words


def test_an_unknown_launcher_is_refused() -> None:
    with pytest.raises(ValueError, match="node9"):
        GroupSearch(names(8), launcher="node9")
