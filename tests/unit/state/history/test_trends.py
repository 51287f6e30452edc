from __future__ import annotations

from clusterctl.model.results import Comparison, Reference, Verdict
from clusterctl.state import history as run_history
from kept_runs import CLUSTER, SLOW, figure, record, remember


def test_trends_show_what_is_worth_showing() -> None:
    remember(*(record(night, 100 + night % 3) for night in range(6)))
    remember(record(6, 10, "FAIL"))
    off = figure(10, "node1").model_copy(update={"samples": ()})
    last = record(
        7,
        10,
        "FAIL",
        check={
            "culprits": (SLOW,),
            "comparisons": (
                Comparison(
                    figure=off,
                    reference=Reference(value=100, lower=-0.1, unit="B/s", source="file"),
                    verdict=Verdict.FAIL,
                    words="low",
                ),
            ),
        },
    )
    trends = remember(last).trends
    assert [one.figure.nodes for one in trends] == [("node2",), ("node1",), ()]
    for one in trends:
        assert [point.value for point in one.points] == [100, 101, 102, 100, 101, 102, 10, 10]
        assert one.changed_at == record(6).run_id
        assert one.points[-1].run_id == last.run_id
        assert one.figure.samples == ()
    assert [one.figure.nodes for one in remember(record(8)).trends] == [()]


def test_a_trend_has_so_many_points_and_begins_with_the_baseline() -> None:
    remember(*(record(night) for night in range(10)))
    with run_history.open() as history:
        (one,) = history.trends(CLUSTER, record(9), points=4)
        assert [point.run_id for point in one.points] == [record(night).run_id for night in range(6, 10)]
        history.accept(CLUSTER, record(8).run_id)
        (one,) = history.trends(CLUSTER, record(9))
        assert len(one.points) == 2
