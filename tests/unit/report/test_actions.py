from __future__ import annotations

from datetime import timedelta

from clusterctl.model import results
from clusterctl.report import actions, validation_table
from report_records import BEGAN, CHECKS, DATA, HUNG, PAIRS, record


def test_what_to_do_names_each_thing_once_worst_first() -> None:
    todo = actions.of(record((*CHECKS, PAIRS, HUNG.model_copy(update={"check": "broadcast"}))))
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
    assert slow.evidence == ("bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s", "node2: 250 MB/s")
    assert todo[2].evidence == ("node1 to node3: 1.2 GB/s",)
    assert slow.repeat == PAIRS.repeat


def test_a_real_slow_link_is_the_one_thing_to_do() -> None:
    (one,) = actions.of(results.load((DATA / "slow-link.json").read_bytes(), "slow-link.json"))
    assert (one.kind, one.nodes, one.checks) == ("node", "node5", ("pairs",))
    assert "86 % below its neighbours' 1.04 GB/s" in one.words
    assert actions.of(results.load((DATA / "healthy.json").read_bytes(), "healthy.json")) == ()


def test_nothing_to_do_when_all_is_well() -> None:
    assert actions.of(record(CHECKS[:1])) == ()
    assert validation_table.opening(record(CHECKS[:1])) == ()
