"""How finely a check could judge: what it says it would have named is named, and what is smaller is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from clusterctl.analysis import outliers, speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import CheckResult, Comparison, Figure, RankReport, Reference, Verdict
from noisy_links import matrix

POLICY = OutlierPolicy()


def ranks(count: int, busy: float, *, own: float = 0.1, shared: bool = False) -> tuple[RankReport, ...]:
    """Return reports of ranks that had a tenth of their node's processor time, in which that part was busy."""
    figures = {speed_verdict.OWN: 10 * own, speed_verdict.BUSY: 10 * busy, speed_verdict.ALL: 10.0}
    machine = {speed_verdict.MACHINE: "one"} if shared else {}
    return tuple(RankReport(rank=rank, host=f"node{rank + 1}", figures=figures, facts=machine) for rank in range(count))


def passed(**fields: Any) -> CheckResult:
    return CheckResult(check="pairs", verdict=Verdict.PASS, reason="fine", **fields)


@pytest.mark.parametrize("count", [4, 6, 8, 16])
@pytest.mark.parametrize("noise", [0.005, 0.03])
def test_a_link_beyond_the_limit_is_named_and_one_within_is_not(count: int, noise: float) -> None:
    healthy = matrix(count, noise)
    limit, _ = outliers.finest_link(healthy, POLICY)
    assert limit is not None
    for times, named in ((1.6, True), (0.4, False)):
        slow = matrix(count, noise, slow={1: 1 - float(np.exp(-times * limit))})
        found = [one for one in outliers.among_links(slow, POLICY) if one.nodes == ("node1", "node3")]
        assert bool(found) is named, (times, limit)


@pytest.mark.parametrize("count", [4, 7, 8, 30])
def test_a_node_beyond_the_limit_is_named_and_one_within_is_not(count: int) -> None:
    def figures(part: float = 0.0) -> list[Figure]:
        values = 1e9 * np.exp(np.random.default_rng(2).normal(0, 0.02, count))
        values[2] = 1e9 * (1 - part)
        return [
            Figure(quantity="compute", nodes=(f"node{number}",), value=float(value), unit="FLOP/s", better="higher")
            for number, value in enumerate(values, 1)
        ]

    limit = outliers.finest_node(figures(), POLICY)
    assert limit is not None
    for times, named in ((1.6, True), (0.4, False)):
        found = outliers.among_nodes(figures(1 - float(np.exp(-times * limit))), POLICY)
        assert [one.nodes for one in found] == ([("node3",)] if named else [])


def test_a_pass_says_how_finely_it_judged_and_why_it_was_coarse() -> None:
    calm = speed_verdict.assess(passed(matrices=(matrix(8, 0.005),), ranks=ranks(8, 0.15)), POLICY)
    assert {(one.kind, one.quantity, one.why) for one in calm.fineness} == {
        ("link", "bandwidth", ""),
        ("node", "bandwidth", ""),
    }
    assert all(one.fraction < 0.05 for one in calm.fineness)
    assert calm.reason == "fine; can detect 3 % (bandwidth) on links"
    noisy = speed_verdict.assess(passed(matrices=(matrix(6, 0.12, seed=2),), ranks=ranks(6, 0.8)), POLICY)
    assert noisy.verdict is Verdict.PASS
    assert noisy.fineness[0].fraction > 0.3
    assert noisy.reason.startswith("fine; can detect ")
    assert noisy.reason.endswith(
        "% (bandwidth) on links: the cores were busy with something else on node[1-6], 70 % of their time"
    )


def test_a_latency_that_may_double_unseen_is_said_in_times() -> None:
    (bandwidth,) = speed_verdict.assess(passed(matrices=(matrix(8, 0.4),)), POLICY).matrices
    latency = bandwidth.model_copy(update={"quantity": "latency", "better": "lower", "unit": "us"})
    found = speed_verdict.assess(passed(matrices=(latency,)), POLICY)
    assert re.search(r"\d(\.\d)? times \(latency\) on links", found.reason), found.reason


def test_the_finest_size_of_a_quantity_counts() -> None:
    small = matrix(8, 0.1).model_copy(update={"size_bytes": 65536})
    both = speed_verdict.assess(passed(matrices=(small, matrix(8, 0.01))), POLICY)
    (link,) = (one for one in both.fineness if one.kind == "link")
    assert link.fraction < 0.1


def test_where_nothing_is_compared_nothing_is_said() -> None:
    for few in (passed(), passed(matrices=(matrix(2),))):
        found = speed_verdict.assess(few, POLICY)
        assert (found.fineness, found.reason) == ((), "fine")


def test_ranks_of_one_machine_are_no_other_work() -> None:
    assert speed_verdict.busy_nodes(ranks(4, 0.5, own=0.12, shared=True)) == {}
    assert speed_verdict.busy_nodes(ranks(4, 0.5, own=0.05)) == pytest.approx(
        {f"node{number}": 0.45 for number in range(1, 5)}
    )
    assert set(speed_verdict.busy_nodes((*ranks(1, 0.9), *ranks(3, 0.2)[1:]))) == {"node1"}
    assert speed_verdict.busy_nodes([RankReport(rank=0, host="node1")]) == {}


def compared(better: str, value: float, interval: Sequence[float], **limits: float) -> Comparison:
    figure = Figure(
        quantity="bus_bandwidth" if better == "higher" else "time",
        value=value,
        low=interval[0],
        high=interval[1],
        unit="B/s" if better == "higher" else "s",
        better=better,  # type: ignore[arg-type]
    )
    reference = Reference(value=100.0, unit=figure.unit, source="history", **limits)  # type: ignore[arg-type]
    return Comparison(figure=figure, reference=reference, verdict=Verdict.PASS, words="")


def test_what_is_compared_with_the_history_alone_has_the_distance_to_its_limit() -> None:
    found = speed_verdict.fineness(
        passed(
            comparisons=(compared("higher", 100, (90, 110), lower=-0.2), compared("lower", 100, (90, 110), upper=0.2))
        ),
        (),
        POLICY,
    )
    assert {(one.kind, one.quantity): one.fraction for one in found} == {
        ("job", "bus_bandwidth"): pytest.approx(1 - 80 / 110, abs=1e-3),
        ("job", "time"): pytest.approx(120 / 90 - 1, abs=1e-3),
    }
    assert speed_verdict.fineness_words(found) == "can detect 27 % (bus bandwidth) and 33 % (time) on jobs"
