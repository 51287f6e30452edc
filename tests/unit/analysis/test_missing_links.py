"""A link that is too slow to be measured at a size is no healthy link."""

from __future__ import annotations

import factory
from clusterctl.analysis import speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import CheckResult, PairMatrix, Verdict

NODES = ("node1", "node2", "node3", "node4")


def matrix(size: int, *absent: tuple[int, int]) -> PairMatrix:
    return factory.matrix(NODES, absent=absent, size_bytes=size)


def named(*absent: tuple[int, int]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.nodes) for one in speed_verdict.missing_links([matrix(1 << 20), matrix(8 << 20, *absent)])]


def test_who_is_behind_missing_links() -> None:
    assert named() == []
    assert named((0, 1), (1, 2), (1, 3)) == [("node", ("node2",))]
    assert named((0, 1), (1, 3)) == [("node", ("node2",))]
    assert named((1, 3)) == [("pair", ("node2", "node4"))]


def test_nobody_is_behind_links_that_have_no_node_in_common_or_when_most_are_missing() -> None:
    assert named((0, 1), (2, 3)) == []
    assert named((0, 1), (0, 2), (0, 3), (1, 2)) == []


def test_it_is_no_pass_and_both_runs_have_to_show_it() -> None:
    lossy = CheckResult(
        check="pairs",
        verdict=Verdict.PASS,
        reason="4 ranks on 4 nodes",
        matrices=(matrix(1 << 20), matrix(8 << 20, (0, 1), (1, 2), (1, 3))),
    )
    first = speed_verdict.assess(lossy, OutlierPolicy())
    assert (first.verdict, first.hosts) == (Verdict.FAIL, ("node2",))
    assert first.reason == (
        "node2: its links to node[1,3-4] are too slow to measure the bandwidth of 8 MiB in the time of the others"
    )
    assert speed_verdict.suspects(first)
    assert speed_verdict.confirmed(first, lossy, OutlierPolicy()).verdict is Verdict.FAIL
    healthy = lossy.model_copy(update={"matrices": (matrix(1 << 20), matrix(8 << 20))})
    assert speed_verdict.confirmed(first, healthy, OutlierPolicy()).verdict is Verdict.PASS
    pair = lossy.model_copy(update={"matrices": (matrix(1 << 20), matrix(8 << 20, (1, 3)))})
    assert speed_verdict.confirmed(speed_verdict.assess(pair, OutlierPolicy()), pair, OutlierPolicy()).hosts == (
        "node2",
        "node4",
    )
