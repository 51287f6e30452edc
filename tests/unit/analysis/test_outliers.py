"""Who is named, who is not, and in which words."""

from __future__ import annotations

import numpy as np
import pytest
from clusterctl.analysis import agreement, outliers
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import Better, Culprit, Figure, PairMatrix

POLICY = OutlierPolicy()


def matrix(
    count: int,
    noise: float = 0.005,
    slow_nodes: dict[int, float] | None = None,
    slow_links: dict[tuple[int, int], float] | None = None,
    better: Better = "higher",
    seed: int = 5,
    size_bytes: int = 1 << 20,
) -> PairMatrix:
    """Return what a cluster shows whose slow nodes and links reach the given share of their neighbours' speed."""
    first, second = np.triu_indices(count, 1)
    logs = np.random.default_rng(seed).normal(0, noise, first.size)
    for node, speed in (slow_nodes or {}).items():
        logs[(first == node) | (second == node)] -= np.log(speed)
    for (one, other), speed in (slow_links or {}).items():
        logs[(first == one) & (second == other)] -= np.log(speed)
    value = 1.1e9 * np.exp(-logs) if better == "higher" else 20 * np.exp(logs)
    return PairMatrix(
        quantity="bandwidth" if better == "higher" else "latency",
        size_bytes=size_bytes,
        unit="B/s" if better == "higher" else "us",
        better=better,
        nodes=tuple(f"node{number}" for number in range(count)),
        first=tuple(first.tolist()),
        second=tuple(second.tolist()),
        value=tuple(value.tolist()),
    )


def figures(*values: float, better: Better = "higher", samples: tuple[float, ...] = ()) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            quantity="memory_bandwidth",
            nodes=(f"node{number}",),
            value=value,
            unit="B/s",
            better=better,
            samples=samples,
        )
        for number, value in enumerate(values)
    )


def named(culprits: tuple[Culprit, ...]) -> list[tuple[str, ...]]:
    return [one.nodes for one in culprits]


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 40])
def test_a_slow_node_is_named_and_nobody_else(count: int, better: Better) -> None:
    found = outliers.among_links(matrix(count, slow_nodes={2: 0.9}, better=better), POLICY)
    assert named(found) == [("node2",)]
    assert found[0].kind == "node"
    assert found[0].ratio == pytest.approx(0.9 if better == "higher" else 1 / 0.9, abs=0.02)


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8, 40])
def test_a_slow_link_is_named_and_neither_of_its_ends(count: int, better: Better) -> None:
    found = outliers.among_links(matrix(count, slow_links={(0, 2): 0.1}, better=better), POLICY)
    assert named(found) == [("node0", "node2")]
    assert found[0].kind == "pair"
    assert found[0].ratio == pytest.approx(0.1 if better == "higher" else 10, rel=0.03)


@pytest.mark.parametrize("count", [5, 6, 9, 40])
def test_a_slow_node_and_a_slow_link_are_told_apart(count: int) -> None:
    found = outliers.among_links(matrix(count, slow_nodes={0: 0.8}, slow_links={(2, 4): 0.5}), POLICY)
    assert named(found) == [("node0",), ("node2", "node4")]


def test_a_link_that_is_slower_than_its_slow_node_explains_is_named_too() -> None:
    found = outliers.among_links(matrix(12, slow_nodes={3: 0.8}, slow_links={(3, 8): 0.3}), POLICY)
    assert named(found) == [("node3",), ("node3", "node8")]
    assert named(agreement.merge(found)) == [("node3", "node8"), ("node3",)]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 8, 40])
def test_a_fast_link_or_node_is_no_culprit(count: int) -> None:
    assert outliers.among_links(matrix(count, slow_links={(0, 1): 5.0}), POLICY) == ()
    if count != 3:  # there it cannot be told from a slow link between the others
        assert outliers.among_links(matrix(count, slow_nodes={1: 2.0}), POLICY) == ()


def test_of_two_nodes_nobody_is_named() -> None:
    assert outliers.among_links(matrix(2), POLICY) == ()
    assert outliers.among_nodes(figures(1e10, 1e9), POLICY) == ()


def test_of_three_nodes_a_slow_node_cannot_be_told_from_a_fast_link() -> None:
    assert outliers.among_links(matrix(3, slow_nodes={1: 0.1}), POLICY) == ()


def test_two_racks_of_equal_size_blame_no_node() -> None:
    across = {(one, other): 0.5 for one in (0, 1) for other in (2, 3)}
    assert outliers.among_links(matrix(4, slow_links=across), POLICY) == ()
    across = {(one, other): 0.5 for one in range(8) for other in range(8, 16)}
    assert [one.kind for one in outliers.among_links(matrix(16, slow_links=across), POLICY)] == ["boundary"]


@pytest.mark.parametrize("count", [3, 4, 6, 8, 40])
def test_equal_links_do_not_divide_by_zero_and_the_floor_decides(count: int) -> None:
    assert outliers.among_links(matrix(count, noise=0), POLICY) == ()
    assert outliers.among_links(matrix(count, noise=0, slow_links={(0, 1): 0.98}), POLICY) == ()
    assert named(outliers.among_links(matrix(count, noise=0, slow_links={(0, 1): 0.95}), POLICY)) == [
        ("node0", "node1")
    ]


def test_a_tight_distribution_does_not_cry_wolf() -> None:
    tight = matrix(40, noise=1e-4, slow_nodes={1: 0.98}, slow_links={(4, 5): 0.98})
    assert outliers.among_links(tight, POLICY) == ()
    assert named(outliers.among_links(tight, OutlierPolicy(floor=0.01))) == [("node1",), ("node4", "node5")]


@pytest.mark.parametrize("count", [5, 12])
def test_a_link_whose_own_samples_scatter_is_no_culprit(count: int) -> None:
    slow = matrix(count, slow_links={(0, 1): 0.85})
    assert named(outliers.among_links(slow, POLICY)) == [("node0", "node1")]
    spread = tuple((0.3 if place == 0 else 0.005) * value for place, value in enumerate(slow.value))
    assert outliers.among_links(slow.model_copy(update={"spread": spread}), POLICY) == ()


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf"), -1.0])
def test_what_was_not_measured_is_left_out(bad: float) -> None:
    slow = matrix(8, slow_nodes={2: 0.5})
    broken = slow.model_copy(update={"value": (bad, *slow.value[1:]), "spread": (0.0,) * len(slow.value)})
    assert named(outliers.among_links(broken, POLICY)) == [("node2",)]


def test_what_has_no_good_direction_is_not_judged() -> None:
    assert outliers.among_links(matrix(8, slow_nodes={2: 0.1}).model_copy(update={"better": "none"}), POLICY) == ()
    assert outliers.among_nodes(figures(1, 1, 1, 9, better="none"), POLICY) == ()


def test_an_empty_matrix_blames_nobody() -> None:
    empty = matrix(4).model_copy(update={"first": (), "second": (), "value": ()})
    assert outliers.among_links(empty, POLICY) == ()


@pytest.mark.parametrize("count", [3, 4, 7, 8, 100])
def test_a_slow_node_is_named_by_its_own_figure(count: int) -> None:
    values = 1e10 * np.exp(np.random.default_rng(3).normal(0, 0.004, count))
    values[1] *= 0.5
    found = outliers.among_nodes(figures(*values), POLICY)
    assert named(found) == [("node1",)]
    assert found[0].ratio == pytest.approx(0.5, abs=0.02)
    assert outliers.among_nodes(figures(*values, better="lower"), POLICY) == ()  # it is the best then


def test_a_node_whose_samples_scatter_is_not_blamed() -> None:
    values = (1e10, 1.001e10, 0.999e10, 1.0005e10, 0.8e10)
    steady, noisy = (1e10,) * 9, tuple(1e10 * step for step in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8))
    assert named(outliers.among_nodes(figures(*values, samples=steady), POLICY)) == [("node4",)]
    assert outliers.among_nodes(figures(*values, samples=noisy), POLICY) == ()


def test_figures_of_all_together_are_left_out() -> None:
    whole = figures(1e10, 1.001e10, 0.999e10)
    everybody = whole[0].model_copy(update={"nodes": (), "value": 1e3})
    assert outliers.among_nodes((*whole, everybody), POLICY) == ()


def test_words_name_who_and_how_much() -> None:
    (node,) = outliers.among_links(matrix(8, noise=0, slow_nodes={2: 0.1}), POLICY)
    assert node.words == "node2: bandwidth of 1 MiB on its links is 110 MB/s, 90 % below its neighbours' 1.1 GB/s"
    (pair,) = outliers.among_links(matrix(8, noise=0, slow_links={(3, 5): 0.1}, better="lower"), POLICY)
    assert pair.words == "node3 and node5: latency of 1 MiB between them is 200 us, 10 times their other links' 20 us"
    (own,) = outliers.among_nodes(figures(1e10, 1e10, 1e10, 7.1e9), POLICY)
    assert own.words == "node3: memory bandwidth is 7.1 GB/s, 29 % below its neighbours' 10 GB/s"


def test_several_sizes_of_one_node_are_one_culprit() -> None:
    found = [
        one
        for size, speed in ((1 << 10, 0.9), (1 << 20, 0.5))
        for one in outliers.among_links(matrix(8, slow_nodes={2: speed}, size_bytes=size), POLICY)
    ]
    (merged,) = agreement.merge(found)
    assert merged.nodes == ("node2",)
    assert merged.size_bytes == 1 << 20
    assert merged.words.endswith("(so is bandwidth of 1 KiB)")


def test_a_pair_is_left_out_where_another_size_blames_its_node() -> None:
    node = outliers.among_links(matrix(8, slow_nodes={2: 0.5}), POLICY)
    pair = outliers.among_links(matrix(8, slow_links={(2, 5): 0.5}, size_bytes=64), POLICY)
    other = outliers.among_links(matrix(8, slow_links={(4, 5): 0.5}, size_bytes=64), POLICY)
    assert set(named(agreement.merge((*node, *pair, *other)))) == {("node2",), ("node4", "node5")}


def test_only_what_both_runs_name_is_confirmed() -> None:
    first = outliers.among_links(matrix(9, slow_nodes={0: 0.5}, slow_links={(3, 4): 0.5}), POLICY)
    second = outliers.among_links(matrix(9, slow_nodes={0: 0.6}, slow_links={(3, 5): 0.5}, seed=6), POLICY)
    (confirmed,) = agreement.confirm(first, second)
    assert confirmed.nodes == ("node0",)
    assert confirmed.ratio == pytest.approx(0.6, abs=0.03)  # the weaker evidence is the one to rely on
    assert agreement.confirm(first, ()) == ()


def test_a_link_that_is_off_by_something_else_each_time_is_not_confirmed() -> None:
    first = outliers.among_links(matrix(9, slow_links={(3, 4): 0.9}), POLICY)
    second = outliers.among_links(matrix(9, slow_links={(3, 4): 0.5}, seed=6), POLICY)
    assert named(first) == named(second) == [("node3", "node4")]
    assert agreement.confirm(first, second) == ()
    assert named(agreement.confirm(first, first)) == [("node3", "node4")]


@pytest.mark.parametrize("count", [4, 5, 6, 8, 16])
def test_healthy_clusters_are_suspected_no_oftener_than_the_policy_says(count: int) -> None:
    policy = OutlierPolicy(floor=1e-6)
    runs = 150
    suspected = sum(bool(outliers.among_links(matrix(count, noise=0.03, seed=seed), policy)) for seed in range(runs))
    assert policy.level == pytest.approx(0.1)
    assert suspected <= 27  # 15 expected at most; more than 27 happens once in 700
    assert not outliers.among_links(matrix(count, noise=0.03, seed=0), policy.over(10**6))


def test_a_heavy_tail_is_no_list_of_culprits() -> None:
    runs = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        noisy = matrix(64, noise=0.01, seed=seed)
        value = np.array(noisy.value)
        late = rng.random(value.size) < 0.02
        value[late] *= np.exp(-rng.exponential(0.2, int(late.sum())))
        runs.append(outliers.among_links(noisy.model_copy(update={"value": tuple(value.tolist())}), POLICY))
    assert min(map(len, runs)) > 20  # so many that some would be named twice by chance
    assert agreement.confirm(*runs) == ()


def test_many_slow_links_that_are_slow_again_are_confirmed() -> None:
    slow = {(node, node + 1): 0.5 for node in range(0, 40, 2)}
    runs = [outliers.among_links(matrix(40, slow_links=slow, seed=seed), POLICY) for seed in (1, 2)]
    assert len(agreement.confirm(*runs)) == 20
