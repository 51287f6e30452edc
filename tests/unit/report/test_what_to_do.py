from __future__ import annotations

from datetime import timedelta

from clusterctl.model import results
from clusterctl.model.results import CheckResult, Culprit, Verdict
from clusterctl.report import tables, what_to_do
from report_records import BEGAN, CHECKS, DATA, HUNG, PAIRS, record


def test_what_to_do_names_each_thing_once_worst_first() -> None:
    todo = what_to_do.of(record((*CHECKS, PAIRS, HUNG.model_copy(update={"check": "broadcast"}))))
    assert [(one.kind, one.nodes) for one in todo] == [
        ("node", "node4"),
        ("node", "node2"),
        ("pair", "node[1,3]"),
        ("check", "node2"),
        ("check", ""),
    ]
    slow = todo[1]
    assert (slow.words, slow.more) == ("node2 is slow", ("node2 answers late",))
    assert slow.since == BEGAN - timedelta(days=3)
    assert slow.evidence == (
        "bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s",
        "node2: bandwidth, 8 MiB (mpi): 250 MB/s",
    )
    assert slow.repeat == PAIRS.repeat


def test_a_real_slow_link_is_the_one_thing_to_do() -> None:
    (one,) = what_to_do.of(results.load((DATA / "slow-link.json").read_bytes(), "slow-link.json"))
    assert (one.kind, one.nodes, one.checks) == ("node", "node5", ("pairs",))
    assert "86 % below its neighbours' 1.04 GB/s" in one.words
    assert what_to_do.of(results.load((DATA / "healthy.json").read_bytes(), "healthy.json")) == ()


def test_nothing_to_do_when_all_is_well() -> None:
    assert what_to_do.of(record(CHECKS[:1])) == ()
    assert tables.validation_opening(record(CHECKS[:1])) == ()


def test_a_check_that_passed_has_nothing_to_do_whatever_it_noted() -> None:
    passed = PAIRS.model_copy(update={"verdict": Verdict.PASS})
    assert what_to_do.of(record((passed,))) == ()
    assert passed.named == ()


def test_a_link_that_fails_one_way_names_sender_and_receiver_in_order() -> None:
    both = tuple(
        Culprit(kind="one_way", nodes=nodes, words="lost") for nodes in (("node4", "node2"), ("node2", "node4"))
    )
    todo = what_to_do.of(record((PAIRS.model_copy(update={"culprits": both}),)))
    assert [(one.kind, one.nodes) for one in todo] == [("one_way", "node4 → node2"), ("one_way", "node2 → node4")]
    assert all("direction" in one.advice for one in todo)


def test_a_boundary_shows_its_groups_and_two_cuts_of_the_same_nodes_are_two_actions() -> None:
    cuts = ((("node1", "node2"), ("node3", "node4")), (("node1", "node4"), ("node2", "node3")))
    both = tuple(
        Culprit(
            kind="boundary", nodes=(*one, *other), groups=(one, other), quantity=quantity, words="slow between them"
        )
        for (one, other), quantity in zip(cuts, ("bandwidth", "latency"), strict=True)
    )
    check = PAIRS.model_copy(update={"culprits": both, "comparisons": ()})
    assert [one.nodes for one in what_to_do.of(record((check,)))] == ["node[1-2] | node[3-4]", "node[1,4] | node[2-3]"]
    assert check.named == ()
    # A figure of node2 alone that missed its reference still blames node2.
    assert check.model_copy(update={"comparisons": PAIRS.comparisons}).named == ("node2",)


def test_a_culprit_that_is_not_known_is_a_next_step_and_blames_nobody() -> None:
    check = CheckResult(
        check="hello",
        verdict=Verdict.FAIL,
        reason="no answer",
        hosts=("node1", "node2"),
        next_step="run it again with --search",
    )
    (one,) = what_to_do.of(record((check,)))
    assert (one.advice, one.known) == ("Next step: run it again with --search", False)
    assert check.named == ()
    assert check.model_copy(update={"next_step": ""}).named == ("node1", "node2")


def test_culprits_are_blamed_before_every_host_of_the_reason() -> None:
    assert HUNG.model_copy(update={"hosts": ("node1", "node4")}).named == ("node4",)


def test_a_known_cause_brings_its_own_advice() -> None:
    full = Culprit(kind="node", nodes=("node3",), words="node3: its /tmp is full", cure="free space in /tmp")
    (one,) = what_to_do.of(record((HUNG.model_copy(update={"culprits": (full,), "search": None}),)))
    assert one.advice == "Free space in /tmp."
