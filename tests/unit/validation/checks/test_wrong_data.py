"""Whom wrong values blame: over captured answers of one check, and joined over the checks of a run."""

from __future__ import annotations

import pytest
from captured_cluster import judge
from clusterctl.model.results import CheckResult, Culprit, RankReport, Search, Verdict, WrongAnswer
from clusterctl.report import what_to_do
from clusterctl.validation.check_results import CheckResults
from clusterctl.validation.checks import wrong_data
from node_programs import load
from report_records import record

REPEAT = "clusterctl validate hosts.ini --checks"
SENT = {"network": "wrong-sent-network", "pairs": "wrong-sent-pairs", "reduce": "wrong-reduce"}


def captured(check: str, name: str) -> CheckResult:
    return judge(f"{name}-5.0.7", check).result(check, repeat=f"{REPEAT} {check}")


def joined(*found: CheckResult) -> dict[str, CheckResult]:
    results = CheckResults(lambda _event: None)
    for one in found:
        results.finish(one)
    return {one.check: one for one in results.all}


@pytest.mark.parametrize(
    ("name", "check", "hosts", "words"),
    [
        ("wrong-sent-pairs", "pairs", ("node2",), "rank 1 on node2 sends wrong values to rank 0 on node1, rank 2 on"),
        ("wrong-sent-network", "network", ("node2", "node3"), "what rank 3 on node2 sent arrived wrong at rank 5 on"),
        ("wrong-link", "point_to_point", ("node2", "node3"), "it is not known which end makes it wrong; rank 4 on"),
        ("wrong-reduce", "reduce", (), "rank 0 on node1: reduce sum"),  # the roots are innocent
        ("wrong-reduce-share", "reduce", ("node2",), "rank 3 on node2 sends wrong values to rank 0 on node1, rank 4"),
        ("wrong-alltoall", "collectives", ("node2",), "rank 3 on node2 sends wrong values to ranks 0 and 1 on node1"),
        ("wrong-broadcast", "broadcast", ("node2",), "rank 2 on node2 sends wrong values to ranks 0 and 1 on node1"),
        ("wrong-received", "scatter", ("node2",), "rank 3 on node2 gets wrong values from rank 0 on node1, rank 4 on"),
    ],
)
def test_who_saw_a_wrong_value_is_not_blamed_for_it(name: str, check: str, hosts: tuple[str, ...], words: str) -> None:
    found = captured(check, name)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, hosts)
    assert words in found.reason
    assert bool(wrong_data.undecided(joined(found).values())) == (len(hosts) != 1)


def test_several_checks_are_one_finding_about_the_node_that_sends() -> None:
    run = joined(*(captured(check, name) for check, name in SENT.items()))
    assert {one.named for one in run.values()} == {("node2",)}
    (action,) = what_to_do.of(record(tuple(run.values())))
    assert (action.kind, action.hosts, action.checks) == ("node", ("node2",), tuple(SENT))
    assert "test its memory" in action.advice
    assert action.evidence[0].startswith(
        "rank 5 on node3: piece 0 from rank 3, value 16384 (1 of 32768 wrong): expected"
    )
    assert run["reduce"].reason.startswith("node2 makes values wrong, as 'network', 'pairs' show; rank 0 on node1: ")
    assert not run["reduce"].next_step


def test_one_sender_and_one_receiver_are_a_pair_and_a_search_decides() -> None:
    run = joined(captured("network", "wrong-sent-network"), captured("point_to_point", "wrong-link"))
    for check, one in run.items():
        (culprit,) = one.culprits
        assert (culprit.kind, culprit.nodes) == ("one_way", ("node2", "node3"))
        assert culprit.cure.endswith(f"{REPEAT} {check} --search")
    (action,) = what_to_do.of(record(tuple(run.values())))
    assert action.nodes == "node2 → node3"


def test_of_two_nodes_a_third_decides_and_after_a_search_it_is_the_path() -> None:
    one = captured("network", "wrong-sent-network")
    two = one.model_copy(update={"ranks": tuple(rank for rank in one.ranks if rank.host in {"node2", "node3"})})
    assert "together with a third node" in joined(two)["network"].culprits[0].cure
    searched = one.model_copy(update={"search": Search(check="network", bound=8, launches=(), words="nothing")})
    assert "cables" in joined(searched)["network"].culprits[0].cure


def test_what_a_search_found_is_told_of_the_other_checks() -> None:
    culprit = Culprit(kind="node", nodes=("node2",), words="node2 gets wrong values in each group")
    search = Search(check="reduce", bound=8, launches=(), culprits=(culprit,), words=culprit.words)
    found = captured("reduce", "wrong-reduce").model_copy(
        update={"search": search, "culprits": (culprit,), "hosts": ("node2",)}
    )
    run = joined(found, captured("network", "wrong-sent-network"))
    assert run["reduce"] == found
    assert run["network"].named == ("node2",)


def wrong(rank: int, what: str, expected: str = "5") -> RankReport:
    answer = WrongAnswer(what=what, expected=expected, got="6")
    return RankReport(rank=rank, host=f"node{rank + 1}", ok=False, compared=1, wrong=1, problems=(answer,))


def origin(*reports: RankReport, nodes: int = 6) -> wrong_data.Origin:
    ranks = [RankReport(rank=rank, host=f"node{rank + 1}") for rank in range(nodes)]
    for report in reports:
        mine = ranks[report.rank]
        problems = (*mine.problems, *report.problems)
        ranks[report.rank] = report.model_copy(update={"problems": problems})
    return wrong_data.origin([wrong_data.traces(ranks)], {report.host for report in ranks})


FROM = "piece 0 from rank {}, value 1 (1 of 9 wrong)"


@pytest.mark.parametrize(
    ("reports", "hosts"),
    [
        ([wrong(1, FROM.format(0)), wrong(2, FROM.format(1))], ("node2",)),  # its other direction decides
        ([wrong(1, FROM.format(0)), wrong(0, FROM.format(1))], ("node2", "node1")),
        ([wrong(1, FROM.format(0)), wrong(2, FROM.format(1)), wrong(0, FROM.format(2))], ()),  # all alike
        ([wrong(1, FROM.format(0)), wrong(2, FROM.format(1)), wrong(3, FROM.format(2))], ()),
        ([wrong(1, FROM.format(0)), wrong(4, FROM.format(3))], ("node1", "node2", "node4", "node5")),
        ([wrong(at, FROM.format(3 * (at > 2))) for at in (1, 2, 4, 5)], ("node1", "node4")),
        ([wrong(1, FROM.format(1))], ("node2",)),
        ([wrong(2, "reduce sum i4[1] to rank 2, value 0 (1 of 1 wrong)")], ()),
        ([wrong(2, "reduce sum i4[1] to rank 2, value 0 (1 of 1 wrong)")] * 2, ("node3",)),
        ([wrong(2, "allreduce sum i4[1], value 0 (1 of 1 wrong)")], ("node3",)),
        ([wrong(at, "allreduce sum i4[1], value 0 (1 of 1 wrong)") for at in range(5)], ()),
        ([wrong(2, "its own send buffer after allreduce of 8 bytes, value 0 (1 of 2 wrong)")], ("node3",)),
        ([wrong(2, "MPI_Init", "an answer")], ()),  # it died, and has told no value
    ],
)  # fmt: skip
def test_the_end_with_several_partners_is_to_blame(reports: list[RankReport], hosts: tuple[str, ...]) -> None:
    assert origin(*reports).hosts == hosts


# The numbers are those of rank_program.shares_of_seven: 1 to 7 in turn, times the rank's number from 1 on.
@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ([9, 18, 27, 36, 45], ", without the share from rank 8"),  # 5 x 9 is rank 8's
        ([-9, -18, -27, -36, -45], ", with twice the share from rank 8"),
        ([45], ""),  # several ranks explain one value, and so does a flipped bit
        ([1, 1, 1, 1, 1], ""),
        ([9, 18, 27, 36, 44], ""),
    ],
)
def test_a_share_that_a_sum_lacks_tells_its_rank(missing: list[int], words: str) -> None:
    program = load("rank_program")
    np = pytest.importorskip("numpy")
    places = np.arange(len(missing))
    assert program.lost_share(missing, program.shares_of_seven(10)(places)) == words
    findings = program.Findings()
    expected = (places % 7 + 1) * 55
    findings.array("sum", expected - np.array(missing), expected, shares=program.shares_of_seven(10))
    assert findings.problems[0]["what"] == f"sum, value 0 ({len(missing)} of {len(missing)} wrong{words})"


def test_a_wrong_value_of_unequal_parts_tells_whose_it_is() -> None:
    program = load("rank_program")
    assert [program.place_of(at, [1, 2, 3]) for at in (0, 2, 3)] == [
        "value 0 from rank 0",
        "value 1 from rank 1",
        "value 0 from rank 2",
    ]
