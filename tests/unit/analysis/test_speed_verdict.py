from __future__ import annotations

import random

import pytest
from clusterctl.analysis import robust_stats, speed_verdict
from clusterctl.model.results import CheckResult, Figure, PairMatrix, RankReport, Reference, Verdict

POLICY = robust_stats.OutlierPolicy()
MIB = 1 << 20


def result(*figures: Figure, matrices: tuple[PairMatrix, ...] = (), verdict: Verdict = Verdict.PASS) -> CheckResult:
    ranks = tuple(RankReport(rank=rank, host=f"node{rank + 1}") for rank in range(4))
    return CheckResult(
        check="pairs", verdict=verdict, reason="4 ranks on 4 nodes", figures=figures, matrices=matrices, ranks=ranks
    )


def speeds(*values: float, quantity: str = "memory_bandwidth") -> tuple[Figure, ...]:
    return tuple(
        Figure(quantity=quantity, nodes=(f"node{at}",), value=value, unit="B/s", better="higher")
        for at, value in enumerate(values, start=1)
    )


def matrix(slow: dict[tuple[int, int], float] | None = None, nodes: int = 8, seed: int = 1) -> PairMatrix:
    generator = random.Random(seed)  # noqa: S311 - a seed that does not change
    pairs = [(first, second) for second in range(nodes) for first in range(second)]
    values = [(slow or {}).get(pair, 1.0) * 1e9 * generator.gauss(1, 0.01) for pair in pairs]
    return PairMatrix(
        quantity="bandwidth",
        size_bytes=MIB,
        unit="B/s",
        better="higher",
        nodes=tuple(f"node{at + 1}" for at in range(nodes)),
        first=tuple(first for first, _ in pairs),
        second=tuple(second for _, second in pairs),
        value=tuple(values),
    )


def limit(value: float, lower: float = -0.1) -> Reference:
    return Reference(value=value, lower=lower, unit="B/s", source="file", citation="validation.yml")


TOGETHER = Figure(
    quantity="bus_bandwidth",
    operation="allreduce",
    backend="mpi",
    size_bytes=64 * MIB,
    value=1.1e9,
    low=1.09e9,
    high=1.12e9,
    confidence=0.95,
    unit="B/s",
    better="higher",
)


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.ERROR, Verdict.SKIP])
def test_who_has_his_verdict_keeps_it(verdict: Verdict) -> None:
    before = result(*speeds(1, 1, 1, 1, 1, 0.1), matrices=(matrix(),), verdict=verdict)
    assert speed_verdict.assess(before, POLICY, lambda _figure: limit(100.0)) is before
    assert not speed_verdict.suspects(before)


def test_nothing_measured_is_nothing_to_say() -> None:
    assert speed_verdict.assess(result(), POLICY) == result()


def test_a_healthy_check_keeps_its_words_and_gets_its_comparisons() -> None:
    after = speed_verdict.assess(result(TOGETHER, matrices=(matrix(),)), POLICY, lambda _figure: limit(1.1e9))
    assert (after.verdict, after.reason, after.culprits, after.evidence) == (
        Verdict.PASS,
        "4 ranks on 4 nodes; can detect 3 % (bandwidth) on links",
        (),
        (),
    )
    assert [one.verdict for one in after.comparisons] == [Verdict.PASS]


def test_a_figure_below_its_reference_fails_the_check() -> None:
    after = speed_verdict.assess(result(TOGETHER), POLICY, lambda _figure: limit(1.25e9))
    assert after.verdict is Verdict.FAIL
    assert after.reason == "allreduce of 64 MiB: 1.1 GB/s of bus bandwidth, 12 % below 1.25 GB/s (validation.yml)"
    assert after.evidence == (f"{after.reason}; 95 % interval 1.09 GB/s to 1.12 GB/s",)
    assert (after.hosts, after.culprits) == ((), ())
    assert speed_verdict.suspects(after)


def test_the_worst_figures_come_first_and_the_others_are_counted() -> None:
    figures = speeds(1e9, 0.5e9, 0.7e9, 0.8e9, 0.6e9, 1e9)
    after = speed_verdict.assess(result(*figures), POLICY, lambda _figure: limit(1e9))
    assert after.reason.startswith("node2: memory bandwidth: 500 MB/s, 50 % below 1 GB/s (validation.yml); node5:")
    assert after.reason.endswith("; and 1 more")
    assert after.hosts == ("node2", "node5", "node3", "node4")


def test_a_slow_node_is_named_by_its_own_speed() -> None:
    after = speed_verdict.assess(result(*speeds(1.0, 1.01, 0.99, 0.5, 1.0, 1.02, 0.98, 1.0)), POLICY)
    assert after.verdict is Verdict.FAIL
    assert after.hosts == ("node4",)
    assert after.reason.startswith("node4: memory bandwidth is")
    assert "score" in after.evidence[0]


def test_a_slow_node_is_told_from_a_slow_link() -> None:
    slow = {(at, 3): 0.1 for at in range(3)} | {(3, at): 0.1 for at in range(4, 8)}
    node = speed_verdict.assess(result(matrices=(matrix(slow),)), POLICY)
    assert [(one.kind, one.nodes) for one in node.culprits] == [("node", ("node4",))]
    link = speed_verdict.assess(result(matrices=(matrix({(2, 7): 0.1}),)), POLICY)
    assert [(one.kind, one.nodes) for one in link.culprits] == [("pair", ("node3", "node8"))]
    assert link.hosts == ("node3", "node8")
    assert link.evidence[1].startswith("  node3 - node8: 9")
    assert all("GB/s" in line or "MB/s" in line for line in link.evidence[2:])


@pytest.mark.parametrize(
    ("between_1_and_4", "named"),
    [(1258.4, []), (1600.0, []), (2100.0, [("node2", "node3")]), (2400.0, [("node2", "node3")])],
)
def test_a_slow_round_of_four_nodes_is_no_slow_link(between_1_and_4: float, named: list[tuple[str, str]]) -> None:
    """Real figures (MB/s) of four healthy containers on two cores: 1-4 and 2-3 play in one round."""
    values = (2150.6, 2178.2, 1235.6, between_1_and_4, 2111.1, 2138.8)
    seen = matrix(nodes=4).model_copy(update={"value": tuple(value * 1e6 for value in values)})
    assert (seen.first[2], seen.second[2], seen.first[3], seen.second[3]) == (1, 2, 0, 3)
    assert [one.nodes for one in speed_verdict.assess(result(matrices=(seen,)), POLICY).culprits] == named


def test_the_median_of_a_nodes_links_is_left_to_the_matrix() -> None:
    slow = {(at, 3): 0.1 for at in range(3)} | {(3, at): 0.1 for at in range(4, 8)}
    own = [Figure(quantity="bandwidth", size_bytes=MIB, nodes=(f"node{at}",), value=1e8 if at == 4 else 1e9, unit="B/s",
                  better="higher") for at in range(1, 9)]  # fmt: skip
    after = speed_verdict.assess(result(*own, matrices=(matrix(slow),)), POLICY)
    assert [one.nodes for one in after.culprits] == [("node4",)]
    assert "on its links" in after.reason
    alone = speed_verdict.assess(result(*own), POLICY)
    assert [one.nodes for one in alone.culprits] == [("node4",)]


@pytest.mark.parametrize(
    ("source", "nodes", "verdict"), [("history", 4, "PASS"), ("history", 3, "FAIL"), ("file", 4, "FAIL")]
)
def test_the_history_leaves_a_nodes_links_to_a_matrix_that_can_tell(source: str, nodes: int, verdict: str) -> None:
    own = Figure(quantity="bandwidth", size_bytes=MIB, nodes=("node1",), value=1e8, unit="B/s", better="higher")
    reference = Reference.model_validate({"value": 1e9, "lower": -0.5, "unit": "B/s", "source": source})
    after = speed_verdict.assess(result(own, matrices=(matrix(nodes=nodes),)), POLICY, lambda _figure: reference)
    assert after.verdict.value == verdict
    every = own.model_copy(update={"nodes": ()})
    assert (
        speed_verdict.assess(result(every, matrices=(matrix(),)), POLICY, lambda _: reference).verdict is Verdict.FAIL
    )


def test_figures_of_other_kinds_are_not_mixed() -> None:
    figures = (*speeds(1, 1, 1, 1.0), *speeds(0.01, 0.01, 0.01, 0.01, quantity="compute"))
    assert speed_verdict.assess(result(*figures), POLICY).verdict is Verdict.PASS


# --- once is chance ---------------------------------------------------------------------------------------------------


def test_what_both_runs_show_stays() -> None:
    raw = result(TOGETHER, *speeds(1.0, 1.01, 0.99, 0.5, 1.0, 1.02, 0.98, 1.0))
    references = {"bus_bandwidth": limit(1.25e9)}
    first = speed_verdict.assess(raw, POLICY, lambda figure: references.get(figure.quantity))
    after = speed_verdict.confirmed(first, raw, POLICY, lambda figure: references.get(figure.quantity))
    assert after.verdict is Verdict.FAIL
    assert after.hosts == ("node4",)
    assert "12 % below" in after.reason


def test_what_only_one_run_shows_is_told_and_does_not_fail() -> None:
    first = speed_verdict.assess(
        result(TOGETHER, *speeds(1.0, 1.01, 0.99, 0.5, 1.0, 1.02)), POLICY, lambda _: limit(1.0)
    )
    assert first.verdict is Verdict.FAIL
    after = speed_verdict.confirmed(first, result(TOGETHER, *speeds(1.0, 1.01, 0.99, 1.0, 1.0, 1.02)), POLICY)
    assert (after.verdict, after.culprits, after.hosts) == (Verdict.PASS, (), ())
    assert after.reason.startswith("4 ranks on 4 nodes; can detect 4 % (memory bandwidth) on nodes; in one run and not")
    assert "in one run and not in the next: node4: memory bandwidth" in after.reason


def test_a_figure_that_the_second_run_did_not_come_to_is_not_refuted() -> None:
    first = speed_verdict.assess(result(TOGETHER), POLICY, lambda _figure: limit(2e9))
    small = TOGETHER.model_copy(update={"size_bytes": 8, "value": 3e9})
    after = speed_verdict.confirmed(first, result(small), POLICY, lambda _figure: limit(2e9))
    assert after.verdict is Verdict.FAIL
    assert after.reason.endswith("; a second run did not come to measure it")
    assert [one.verdict for one in after.comparisons] == [Verdict.PASS, Verdict.FAIL]


def test_two_runs_that_blame_different_ones_blame_nobody() -> None:
    first = speed_verdict.assess(result(*speeds(1.0, 1.01, 0.99, 0.5, 1.0, 1.02, 1, 1)), POLICY)
    second = result(*speeds(1.0, 0.5, 0.99, 1.0, 1.0, 1.02, 1, 1))
    after = speed_verdict.confirmed(first, second, POLICY)
    assert (after.verdict, after.culprits) == (Verdict.PASS, ())
    below = speed_verdict.assess(result(*speeds(1.0, 1.0, 0.5)), POLICY, lambda _figure: limit(0.9))
    other = speed_verdict.confirmed(below, result(*speeds(1.0, 0.5, 1.0)), POLICY, lambda _figure: limit(0.9))
    assert other.verdict is Verdict.PASS
    assert [one.words for one in other.comparisons if "in one run of two" in one.words]


def test_a_wrong_answer_in_the_second_run_stands() -> None:
    first = speed_verdict.assess(result(*speeds(1.0, 1.0, 1.0, 0.5, 1.0, 1.0)), POLICY)
    wrong = result(verdict=Verdict.FAIL).model_copy(update={"reason": "rank 3 got 7"})
    assert speed_verdict.confirmed(first, wrong, POLICY) is wrong


@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.SKIP])
def test_a_second_run_that_could_not_be_run_confirms_and_refutes_nothing(verdict: Verdict) -> None:
    first = speed_verdict.assess(result(*speeds(1.0, 1.01, 1.0, 0.5, 1.0, 1.0, 0.99, 1.02)), POLICY)
    gone = result(verdict=verdict).model_copy(update={"reason": "no node answers"})
    after = speed_verdict.confirmed(first, gone, POLICY)
    assert after.verdict is Verdict.FAIL
    assert after.culprits == first.culprits
    assert after.reason.endswith("a second run confirmed nothing: no node answers")


def test_an_assessed_result_is_written_and_read_back() -> None:
    after = speed_verdict.assess(
        result(TOGETHER, matrices=(matrix({(2, 7): 0.1}),)), POLICY, lambda _figure: limit(1.25e9)
    )
    assert CheckResult.model_validate_json(after.model_dump_json()) == after


@pytest.mark.parametrize("spread", [0.01, 0.1])
def test_healthy_clusters_blame_nobody_twice(spread: float) -> None:
    generator = random.Random(spread)  # noqa: S311 - a seed that does not change
    alarms = 0
    for _ in range(100):
        first, second = (
            result(*speeds(*(generator.gauss(1, spread) for _ in range(8))), matrices=(matrix(seed=seed),))
            for seed in (generator.randrange(1 << 30), generator.randrange(1 << 30))
        )
        after = speed_verdict.assess(first, POLICY)
        if after.verdict is Verdict.FAIL:
            alarms += speed_verdict.confirmed(after, second, POLICY).verdict is Verdict.FAIL
    assert alarms <= 2
