"""Groups of nodes that are slow towards each other, from the matrix alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import verdicts
from clusterctl.analysis import agreement, boundary, group_testing, outliers, robust_stats, sequential, speed_verdict
from clusterctl.analysis.links import LinkValues
from clusterctl.model.results import CheckResult, PairMatrix, Verdict
from noisy_links import of_all

SEED = 15
POLICY = robust_stats.OutlierPolicy()


def racks(*sizes: int, slower: float = 0.9, noise: float = 0.01, seed: int = 1) -> PairMatrix:
    """Return the bandwidths between racks of so many nodes; names are in the order of the racks."""
    rng = np.random.default_rng(seed)
    rack = np.repeat(np.arange(len(sizes)), sizes)
    links = list(itertools.combinations(range(rack.size), 2))
    values = [1e9 * (slower if rack[a] != rack[b] else 1.0) * np.exp(rng.normal(0, noise)) for a, b in links]
    return of_all(int(rack.size), [float(value) for value in values])


def named(matrix: PairMatrix) -> list[tuple[str, tuple[tuple[str, ...], ...] | tuple[str, ...]]]:
    return [(one.kind, one.groups or one.nodes) for one in outliers.among_links(matrix, POLICY)]


def nodes(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"node{number}" for number in range(first, last + 1))


@pytest.mark.parametrize("sizes", [(3, 3), (8, 8), (4, 12), (3, 29), (32, 32)])
def test_two_racks_are_told_by_their_links_and_no_node_is_blamed(sizes: tuple[int, int]) -> None:
    one, other = sizes
    assert named(racks(*sizes)) == [("boundary", (nodes(1, one), nodes(one + 1, one + other)))]


def test_three_racks_are_three_groups() -> None:
    assert named(racks(6, 6, 6)) == [("boundary", (nodes(1, 6), nodes(7, 12), nodes(13, 18)))]


def test_the_sentence_names_the_groups_the_figures_and_what_to_look_at() -> None:
    (found,) = outliers.among_links(racks(4, 4, noise=0.0), POLICY)
    assert found.words == (
        "between node[1-4] and node[5-8]: bandwidth of 1 MiB from one to another is 900 MB/s, 10 % below that within "
        "each of them, 1,000 MB/s; each does well by itself, so look at what lies between them: a switch or its uplink"
    )


def test_a_slow_node_beside_a_boundary_is_named_too() -> None:
    matrix = racks(8, 8)
    slow = [value * (0.8 if "node3" in link else 1) for link, value in zip(matrix.links, matrix.value, strict=True)]
    assert [kind for kind, _ in named(matrix.model_copy(update={"value": tuple(slow)}))] == ["boundary", "node"]


def test_slow_nodes_are_no_boundary_though_a_link_is_as_slow_as_the_slower_end() -> None:
    matrix = racks(16)
    slow = [
        value * (0.8 if set(link) & set(nodes(1, 4)) else 1)
        for link, value in zip(matrix.links, matrix.value, strict=True)
    ]
    assert {kind for kind, _ in named(matrix.model_copy(update={"value": tuple(slow)}))} == {"node"}


def test_one_more_switch_on_the_way_is_no_fault_of_the_latency() -> None:
    def latency(slower: float) -> PairMatrix:
        values = {"value": tuple(1e9 / value for value in racks(4, 4, slower=slower, seed=3).value)}
        return racks(4, 4).model_copy(update={"quantity": "latency", "unit": "us", "better": "lower", **values})

    assert named(latency(0.7)) == []
    assert [kind for kind, _ in named(latency(0.4))] == ["boundary"]


def test_both_runs_have_to_show_the_same_groups() -> None:
    one, same, other = (
        outliers.among_links(racks(*sizes, seed=seed), POLICY)
        for sizes, seed in (((4, 8), 1), ((4, 8), 2), ((8, 4), 3))
    )
    assert [culprit.kind for culprit in agreement.confirm(one, same)] == ["boundary"]
    assert agreement.confirm(one, other) == ()


def test_a_boundary_blames_no_node() -> None:
    run = CheckResult(check="pairs", verdict=Verdict.PASS, reason="all pairs", matrices=(racks(8, 8),))
    judged = speed_verdict.assess(run, POLICY)
    assert (judged.verdict, judged.hosts, judged.named) == (Verdict.FAIL, (), ())
    assert judged.named_words == "between node[1-8] | node[9-16]"


def test_the_links_without_the_boundary_are_alike() -> None:
    known = LinkValues.of(racks(6, 10))
    assert known is not None
    found = boundary.find(known, POLICY)
    assert found is not None
    assert np.ptp(boundary.without(known, found).logs) < 0.08


@pytest.mark.parametrize(("nodes_", "noise", "least"), [(16, 0.01, 20), (16, 0.03, 19), (64, 0.03, 20)])
def test_two_racks_of_equal_size_are_found_in_simulated_clusters(nodes_: int, noise: float, least: int) -> None:
    case = verdicts.Case("rack boundary, 10 %", nodes_, noise, 0, 20)
    count = verdicts.examine(case, SEED)["clusterctl"]
    assert count.rightly >= least
    assert count.wrongly == 0


def test_a_boundary_waits_for_a_second_run_and_is_not_measured_on() -> None:
    run = CheckResult(check="pairs", verdict=Verdict.PASS, reason="all pairs", matrices=(racks(8, 8),))
    assert sequential.chosen(speed_verdict.assess(run, POLICY)) == ()


def wired(*sizes: int, noise: float = 0.0, seed: int = 1, own: int = 1) -> PairMatrix:
    """Return racks whose nodes hang on so many switches of their rack."""
    rack = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    switches = {
        f"node{number}": tuple(f"leaf{at}" if own == 1 else f"leaf{at}-{one}" for one in range(1, own + 1))
        for number, at in enumerate(rack, start=1)
    }
    return racks(*sizes, noise=noise, seed=seed).model_copy(update={"switches": switches})


def test_two_racks_of_equal_size_are_named_with_the_switches_that_they_hang_on() -> None:
    (found,) = outliers.among_links(wired(4, 4), POLICY)
    assert found.words == (
        "between node[1-4] on leaf1 and node[5-8] on leaf2: bandwidth of 1 MiB from one to another is 900 MB/s, 10 % "
        "below that within each of them, 1,000 MB/s; each does well by itself, so look at what lies between them: "
        "the uplinks of leaf1 and leaf2, and the switches that join them"
    )


def test_three_racks_with_two_switches_each_name_all_of_them() -> None:
    (found,) = outliers.among_links(wired(6, 6, 6, own=2, noise=0.01), POLICY)
    assert (
        "between node[1-6] on leaf1-1 and leaf1-2, node[7-12] on leaf2-1 and leaf2-2 and node[13-18] on" in found.words
    )
    assert found.words.endswith(
        "the uplinks of leaf1-1, leaf1-2, leaf2-1, leaf2-2 and 2 more, and the switches that join them"
    )


def test_switches_name_the_boundary_in_noisy_clusters_and_both_runs_agree() -> None:
    for seed in range(20):
        one, two = (outliers.among_links(wired(8, 8, noise=0.03, seed=2 * seed + run), POLICY) for run in (1, 2))
        (found,) = [culprit for culprit in agreement.confirm(one, two) if culprit.kind == "boundary"]
        assert found.words.startswith("between node[1-8] on leaf1 and node[9-16] on leaf2: ")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"node5": ("leaf1",)}, id="a node of the second group hangs on the switch of the first"),
        pytest.param({"node5": ("leaf1", "leaf2")}, id="a node hangs on both"),
        pytest.param({"node5": ()}, id="the switch of one node is unknown"),
    ],
)
def test_switches_that_do_not_tell_the_groups_apart_are_not_named(change: dict[str, tuple[str, ...]]) -> None:
    matrix = wired(4, 4)
    (found,) = outliers.among_links(matrix.model_copy(update={"switches": {**matrix.switches, **change}}), POLICY)
    assert found.words.startswith("between node[1-4] and node[5-8]: ")
    assert found.words.endswith("look at what lies between them: a switch or its uplink")


def test_groups_on_one_switch_point_inside_it() -> None:
    matrix = wired(4, 4)
    same = dict.fromkeys(matrix.switches, ("leaf1",))
    (found,) = outliers.among_links(matrix.model_copy(update={"switches": same}), POLICY)
    assert found.words.endswith("look at what lies between them: the inside of leaf1, the switch of all these nodes")


def test_a_search_that_ends_at_a_boundary_names_the_switches_too() -> None:
    groups = (nodes(1, 8), nodes(9, 16))
    switches = {**dict.fromkeys(groups[0], ("a",)), **dict.fromkeys(groups[1], ("b",))}

    def search(known: dict[str, tuple[str, ...]]) -> group_testing.GroupSearch:
        found = group_testing.GroupSearch(nodes(1, 16), switches=known)
        while not found.done:
            found.tell([not all(set(group) & set(side) for side in groups) for group in found.next()])
        return found

    found, plain = search(switches), search({})
    (told,), (unknown,) = found.culprits, plain.culprits
    assert told.words.startswith("between node[1-8] on a and node[9-16] on b: both pass by themselves, and ")
    assert told.words.endswith(
        "; look at what lies between them: the uplinks of a and b, and the switches that join them"
    )
    assert told.words in found.words
    assert unknown.words.startswith("between node[1-8] and node[9-16]: both pass by themselves, and ")
    assert unknown.words.endswith("; look at what lies between them: a switch or its uplink")
    assert unknown.words in plain.words
