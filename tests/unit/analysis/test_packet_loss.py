"""Lost packets, as TCP has counted them: whom they tell of, and that one run alone blames nobody."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest
from clusterctl.analysis import agreement, packet_loss, speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import CheckResult, Culprit, Figure, PairMatrix, Verdict
from noisy_links import of_all


def names(count: int) -> tuple[str, ...]:
    return tuple(f"node{number}" for number in range(1, count + 1))


def matrix(count: int) -> PairMatrix:
    return of_all(count, [1e9] * math.comb(count, 2))


def both(first: int, second: int) -> tuple[tuple[int, int], ...]:
    return (first, second), (second, first)


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
    lost = {*of(2, 8), *of(7, 8), *both(4, 5)}
    assert named(8, *lost) == [("node", ("node2",)), ("node", ("node7",)), ("pair", ("node4", "node5"))]
    assert named(4, *both(2, 4)) == [("pair", ("node2", "node4"))]
    assert named(2, *both(1, 2)) == [("pair", ("node1", "node2"))]
    several = named(8, *both(1, 2), *both(2, 3))  # of seven links
    assert several == [("pair", ("node1", "node2")), ("pair", ("node2", "node3"))]


def test_what_is_lost_in_one_direction_is_named_with_sender_and_receiver() -> None:
    (found,) = packet_loss.links(figures((4, 2)), [matrix(4)])
    assert (found.kind, found.nodes) == ("one_way", ("node4", "node2"))
    assert found.words == "node4 to node2: packets are lost, 5 % of the TCP segments that way"
    (sends,) = packet_loss.links(figures((3, 1), (3, 2), (3, 4)), [matrix(4)])
    assert sends.words == "node3: packets are lost, 5 % of the TCP segments from it to node[1-2,4]"
    (receives,) = packet_loss.links(figures((1, 3), (2, 3), (4, 3)), [matrix(4)])
    assert receives.words == "node3: packets are lost, 5 % of the TCP segments to it from node[1-2,4]"


def test_where_all_links_lose_packets_it_is_all_together() -> None:
    (found,) = packet_loss.links(figures(*itertools.combinations(range(1, 5), 2)), [matrix(4)])
    assert (found.kind, found.nodes) == ("together", names(4))
    assert found.words == "packets are lost everywhere: all links lose 5 % of their TCP segments"


def test_no_figure_is_nobody_s_fault() -> None:
    assert packet_loss.links((), [matrix(4)]) == ()
    assert packet_loss.links((), ()) == ()


# --- how many are too many --------------------------------------------------------------------------------------------


def counted(
    nodes: int, sent: int, *, lost: int = 0, early: int = 0, **odd: tuple[int, int]
) -> dict[tuple[str, str], float]:
    """Return the lossy ways among all ways of so many nodes that lose a few; ``odd`` is (sent, lost) from a to b."""
    number = nodes * (nodes - 1)
    usual = packet_loss.Counts(sent, lost)
    ways = {("a", "b") if name == "a_b" else ("b", "a"): packet_loss.Counts(*counts) for name, counts in odd.items()}
    everything = sum(ways.values(), packet_loss.Counts())
    for _ in range(number - len(ways)):
        everything += usual
    if lost:
        ways |= {(f"x{at}", f"y{at}"): usual for at in range(number - len(ways))}
    return packet_loss.lossy(ways, everything, number, {("a", "b"): early})


def test_the_fewest_lost_segments_that_count_grow_with_what_was_sent() -> None:
    """Captured in six containers: 3 % of what node2 sends to node4 dropped, and a healthy link at a load of 44."""
    assert counted(6, 25000, a_b=(8309, 184)) == {("a", "b"): pytest.approx(0.0221, rel=0.01)}
    assert counted(6, 25000, a_b=(25733, 883))
    assert counted(6, 25000, a_b=(2000, 70))
    assert counted(6, 25000, a_b=(15410, 8)) == {}
    assert counted(6, 25000, a_b=(1000, 12)) == {}  # a clump or two may be chance
    assert counted(6, 25000, a_b=(40_000, 399)) == {}  # below one in a hundred


def test_one_per_cent_counts_where_the_receiver_has_seen_the_gaps() -> None:
    """Measured between two namespaces: 1 % of the packets dropped, 16 MiB: 135 to 308 lost, 247 to 1010 early."""
    assert counted(6, 25000, a_b=(11724, 135), early=247)
    below = {"a_b": (25000, 200)}  # a sample of clumps, below one in a hundred
    assert counted(6, 25000, **below) == {}
    assert counted(6, 25000, **below, early=60) == {}
    assert counted(6, 25000, **below, early=400) == {("a", "b"): 0.008}
    assert counted(6, 25000, a_b=(25000, 75), early=400) == {}
    assert counted(6, 25000, lost=50, a_b=(25000, 150), early=400) == {}  # three times what all lose


def test_links_are_held_against_what_the_others_lose() -> None:
    assert counted(16, 3000, lost=9, a_b=(3000, 60)) == {}  # of a fabric that loses 0.3 % everywhere
    assert counted(16, 3000, lost=9, a_b=(3000, 150)) == {("a", "b"): 0.05}
    assert counted(16, 3000, a_b=(3000, 60)) == {("a", "b"): 0.02}
    everywhere = counted(4, 9000, lost=450)
    assert len(everywhere) == 12  # a rate that all have is no excuse


def test_a_figure_that_is_of_no_measured_link_blames_nobody() -> None:
    """A check of the user's own may call its quantity so as well."""
    one = Figure(quantity=packet_loss.SENT_AGAIN, nodes=("node1",), value=0.05, unit="1")
    assert packet_loss.links([one], ()) == ()
    assert packet_loss.links([one, *figures((1, 9))], [matrix(4)]) == ()


def test_the_words_say_how_many() -> None:
    found = packet_loss.links((*figures((1, 2), (2, 3)), *figures((2, 4), share=0.07)), [matrix(4)])
    assert [one.words for one in found] == [
        "node2: packets are lost, 5 to 7 % of the TCP segments on its links to node[1,3-4]"
    ]


def test_it_says_why_where_the_links_are_slow_as_well() -> None:
    slow = Culprit(
        kind="node", nodes=("node2",), quantity="bandwidth", size_bytes=64, ratio=0.1, score=9.0, words="node2: slow"
    )
    (found,) = agreement.merge([*packet_loss.links(figures(*of(2, 4)), [matrix(4)]), slow])
    assert (found.quantity, found.ratio) == ("bandwidth", 0.1)
    assert found.words == ("node2: packets are lost, 5 % of the TCP segments on its links to node[1,3-4]; slow")


def test_a_lossy_link_is_confirmed_though_the_losses_slow_it_by_another_amount_in_each_run() -> None:
    def run(ratio: float) -> tuple[Culprit, ...]:
        slow = Culprit(
            kind="pair",
            nodes=("node2", "node4"),
            quantity="bandwidth",
            size_bytes=64,
            ratio=ratio,
            score=9.0,
            words="x: y",
        )
        return agreement.merge([*packet_loss.links(figures((2, 4)), [matrix(4)]), slow])

    (found,) = agreement.confirm(run(0.9), run(0.3))
    assert found.nodes == ("node2", "node4")
    assert "packets are lost" in found.words


def test_the_way_that_loses_packets_is_the_culprit_where_the_way_back_is_the_slower_one() -> None:
    words = "node4 to node2: bandwidth that way is 60 % below the way back's"
    back = Culprit(
        kind="one_way", nodes=("node4", "node2"), quantity="bandwidth", size_bytes=64, ratio=0.4, score=9.0, words=words
    )
    (found,) = agreement.merge([*packet_loss.links(figures((2, 4)), [matrix(4)]), back])
    assert (found.kind, found.nodes) == ("one_way", ("node2", "node4"))
    assert found.words.startswith("node2 to node4: packets are lost, 5 % of the TCP segments that way; bandwidth")


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
    assert "in one run and not in the next: node2: packets are lost, 5 %" in again.reason
