"""Links and nodes that are slow in one direction: named with sender and receiver, and healthy ones left alone."""

from __future__ import annotations

import itertools

import noisy_links
import numpy as np
import pytest
from clusterctl.analysis import agreement, outliers, speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import CheckResult, Culprit, PairMatrix, Verdict

POLICY = OutlierPolicy()


def matrix(
    count: int,
    slow: dict[tuple[int, int], float] | None = None,
    *,
    noise: float = 0.01,
    shared: float = 0.0,
    seed: int = 1,
) -> PairMatrix:
    """Return both directions of all pairs; ``slow`` is by sender and receiver (from 1) the share of the speed.

    ``shared`` is the noise that both directions of a link have in common.
    """
    rng = np.random.default_rng(seed)
    links = list(itertools.combinations(range(count), 2))

    def speed(sender: int, receiver: int, moment: float) -> float:
        part = (slow or {}).get((sender + 1, receiver + 1), 1.0)
        return float(1e9 * part * np.exp(rng.normal(0, noise) + moment))

    moments = rng.normal(0, shared, len(links))
    forward = [speed(*link, moment) for link, moment in zip(links, moments, strict=True)]
    backward = [speed(*link[::-1], moment) for link, moment in zip(links, moments, strict=True)]
    both = (2 / (1 / there + 1 / back) for there, back in zip(forward, backward, strict=True))
    return noisy_links.of_all(count, both, forward=tuple(forward), backward=tuple(backward))


def named(found: tuple[Culprit, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.nodes) for one in found]


@pytest.mark.parametrize("count", [4, 6, 8, 16, 40])
@pytest.mark.parametrize("way", [(2, 4), (4, 2)])
def test_a_link_that_is_slow_one_way_is_named_with_its_sender_first(count: int, way: tuple[int, int]) -> None:
    found = outliers.among_directions(matrix(count, {way: 0.5}), POLICY)
    assert named(found) == [("one_way", (f"node{way[0]}", f"node{way[1]}"))]
    assert found[0].ratio == pytest.approx(0.5, rel=0.1)
    assert found[0].words.startswith(f"node{way[0]} to node{way[1]}: bandwidth of 1 MiB that way is ")
    assert "below the way back's " in found[0].words


@pytest.mark.parametrize("count", [4, 6, 8, 16])
@pytest.mark.parametrize(("sends", "words"), [(True, "of what it sends is "), (False, "of what it receives is ")])
def test_a_node_that_only_sends_or_only_receives_slowly_is_named(count: int, sends: bool, words: str) -> None:
    others = [number for number in range(1, count + 1) if number != 3]
    slow = {(3, other) if sends else (other, 3): 0.6 for other in others}
    found = outliers.among_directions(matrix(count, slow), POLICY)
    assert named(found) == [("node", ("node3",))]
    assert words in found[0].words


def test_a_link_that_is_slow_both_ways_is_a_pair() -> None:
    for count in (6, 16):
        slow = matrix(count, {(2, 4): 0.3, (4, 2): 0.3})
        assert outliers.among_directions(slow, POLICY) == ()
        uneven = matrix(count, {(2, 4): 0.2, (4, 2): 0.4})
        assert outliers.among_directions(uneven, POLICY) == ()
        assert named(outliers.among_links(uneven, POLICY)) == [("pair", ("node2", "node4"))]


def test_the_way_back_may_suffer_from_the_slow_way() -> None:
    """Measured: a link with 50 Mbit/s one way had 6 MB/s there and 154 MB/s back, beside 800 MB/s of the others."""
    found = outliers.among_directions(matrix(6, {(2, 4): 0.0075, (4, 2): 0.19}, noise=0.2), POLICY)
    assert named(found) == [("one_way", ("node2", "node4"))]


def test_a_fault_that_averaging_hides_is_seen() -> None:
    """Links that are measured at different moments scatter by 5 %; what lacks 15 % one way lacks 8 % in the average."""
    slow = matrix(16, {(5, 2): 0.85}, shared=0.05)
    assert outliers.among_links(slow, POLICY) == ()
    assert named(outliers.among_directions(slow, POLICY)) == [("one_way", ("node5", "node2"))]


def test_healthy_links_and_links_that_were_not_measured_apart_name_nobody() -> None:
    wrong = sum(bool(outliers.among_directions(matrix(8, seed=seed), POLICY)) for seed in range(200))
    assert wrong <= 2 * 200 * POLICY.level
    average = matrix(8, {(2, 4): 0.1}).model_copy(update={"forward": (), "backward": ()})
    assert outliers.among_directions(average, POLICY) == ()
    assert outliers.among_directions(matrix(2, {(1, 2): 0.1}), POLICY) == ()


def test_all_that_is_said_of_a_link_is_one_culprit_with_its_direction() -> None:
    slow = matrix(8, {(4, 2): 0.1})
    both = (*outliers.among_links(slow, POLICY), *outliers.among_directions(slow, POLICY))
    assert {one.kind for one in both} == {"pair", "one_way"}
    (merged,) = agreement.merge(both)
    assert (merged.kind, merged.nodes, merged.ratio) == ("one_way", ("node4", "node2"), both[-1].ratio)
    assert merged.words.startswith("node4 to node2: bandwidth of 1 MiB that way is ")
    back = both[-1].model_copy(update={"nodes": ("node2", "node4")})
    assert named(agreement.merge((*both, back))) == [("pair", ("node2", "node4"))]


def test_two_runs_have_to_show_the_same_direction() -> None:
    (there,), (back,) = (outliers.among_directions(matrix(8, {way: 0.5}), POLICY) for way in ((2, 4), (4, 2)))
    assert named(agreement.confirm([there], [there])) == [("one_way", ("node2", "node4"))]
    assert agreement.confirm([there], [back]) == ()
    pair = there.model_copy(update={"kind": "pair"})
    assert named(agreement.confirm([back], [pair])) == [("pair", ("node2", "node4"))]
    assert named(agreement.confirm([pair], [back])) == [("pair", ("node2", "node4"))]


def test_a_check_fails_for_it_and_names_sender_and_receiver() -> None:
    check = CheckResult(check="pairs", verdict=Verdict.PASS, reason="fine", matrices=(matrix(6, {(4, 2): 0.2}),))
    found = speed_verdict.assess(check, POLICY)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node4", "node2"))
    again = speed_verdict.confirmed(
        found, check.model_copy(update={"matrices": (matrix(6, {(4, 2): 0.2}, seed=2),)}), POLICY
    )
    assert named(again.culprits) == [("one_way", ("node4", "node2"))]
