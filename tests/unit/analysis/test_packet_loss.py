"""Lost packets, as TCP has counted them: whom they tell of, and that one run alone blames nobody."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from clusterctl.analysis import outliers, packet_loss, speed_verdict
from clusterctl.analysis.outliers import OutlierPolicy
from clusterctl.model.culprits import Culprit
from clusterctl.model.results import CheckResult, Figure, PairMatrix, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable


def names(count: int) -> tuple[str, ...]:
    return tuple(f"node{number}" for number in range(1, count + 1))


def matrix(count: int) -> PairMatrix:
    links = list(itertools.combinations(range(count), 2))
    return PairMatrix(
        quantity="bandwidth",
        size_bytes=1 << 20,
        unit="B/s",
        better="higher",
        nodes=names(count),
        first=tuple(first for first, _ in links),
        second=tuple(second for _, second in links),
        value=(1e9,) * len(links),
    )


def figures(*lost: tuple[int, int], share: float = 0.05) -> tuple[Figure, ...]:
    return tuple(
        Figure(quantity=packet_loss.SENT_AGAIN, nodes=(f"node{first}", f"node{second}"), value=share, unit="1")
        for first, second in lost
    )


def named(count: int, *lost: tuple[int, int]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.nodes) for one in packet_loss.links(figures(*lost), [matrix(count)])]


def of(node: int, count: int) -> Iterable[tuple[int, int]]:
    return ((min(node, other), max(node, other)) for other in range(1, count + 1) if other != node)


@pytest.mark.parametrize("count", [3, 4, 16])
def test_a_node_whose_links_all_lose_packets_is_named(count: int) -> None:
    assert named(count, *of(2, count)) == [("node", ("node2",))]


def test_two_nodes_and_a_pair_are_told_apart() -> None:
    lost = {*of(2, 8), *of(7, 8), (4, 5)}
    assert named(8, *lost) == [("node", ("node2",)), ("node", ("node7",)), ("pair", ("node4", "node5"))]
    assert named(4, (2, 4)) == [("pair", ("node2", "node4"))]
    assert named(2, (1, 2)) == [("pair", ("node1", "node2"))]
    assert named(8, (1, 2), (2, 3)) == [("pair", ("node1", "node2")), ("pair", ("node2", "node3"))]  # of seven links


def test_where_all_links_lose_packets_it_is_all_together() -> None:
    (found,) = packet_loss.links(figures(*itertools.combinations(range(1, 5), 2)), [matrix(4)])
    assert (found.kind, found.nodes) == ("together", names(4))
    assert found.words == "all links send 5 % of their TCP segments again, so packets are lost everywhere"


def test_a_few_lost_packets_are_nobody_s_fault() -> None:
    assert packet_loss.links(figures(*of(2, 4), share=0.009), [matrix(4)]) == ()
    assert packet_loss.links((), [matrix(4)]) == ()
    assert packet_loss.links((), ()) == ()


def test_a_figure_that_is_of_no_measured_link_blames_nobody() -> None:
    """A check of the user's own may call its quantity so as well."""
    one = Figure(quantity=packet_loss.SENT_AGAIN, nodes=("node1",), value=0.05, unit="1")
    assert packet_loss.links([one], ()) == ()
    assert packet_loss.links([one, *figures((1, 9))], [matrix(4)]) == ()


def test_the_words_say_how_many() -> None:
    found = packet_loss.links((*figures((1, 2), (2, 3)), *figures((2, 4), share=0.07)), [matrix(4)])
    assert [one.words for one in found] == [
        "node2: 5 to 7 % of the TCP segments on its links to node[1,3-4] were sent again, so packets are lost"
    ]


def test_it_says_why_where_the_links_are_slow_as_well() -> None:
    slow = Culprit(
        kind="node", nodes=("node2",), quantity="bandwidth", size_bytes=64, ratio=0.1, score=9.0, words="node2: slow"
    )
    (found,) = outliers.merge([*packet_loss.links(figures(*of(2, 4)), [matrix(4)]), slow])
    assert (found.quantity, found.ratio) == ("bandwidth", 0.1)
    assert found.words == (
        "node2: slow; 5 % of the TCP segments on its links to node[1,3-4] were sent again, so packets are lost"
    )


def test_it_is_no_pass_and_both_runs_have_to_show_it() -> None:
    lossy_run = CheckResult(
        check="pairs", verdict=Verdict.PASS, reason="fine", matrices=(matrix(4),), figures=figures(*of(2, 4))
    )
    first = speed_verdict.assess(lossy_run, OutlierPolicy())
    assert (first.verdict, first.hosts) == (Verdict.FAIL, ("node2",))
    assert speed_verdict.suspects(first)
    assert speed_verdict.confirmed(first, lossy_run, OutlierPolicy()).verdict is Verdict.FAIL
    healthy = lossy_run.model_copy(update={"figures": ()})
    again = speed_verdict.confirmed(first, healthy, OutlierPolicy())
    assert again.verdict is Verdict.PASS
    assert "in a first run and not in a second: node2: 5 %" in again.reason
