"""Which nodes a record proves, whose turn it is, and what is said of nodes that are left out."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import factory
import pytest
from clusterctl.model.facts import BusyProcess, Leftover
from clusterctl.model.results import Culprit, ValidationRecord, Verdict
from clusterctl.state.proofs import notes, oldest_first, proved
from clusterctl.validation import idle_part

NOW = datetime(2026, 3, 9, tzinfo=timezone.utc)
GOOD = factory.check("hello", Verdict.PASS, command=("mpirun",))
SLOW = Culprit(kind="node", nodes=("node2",), words="slow")


def record(*checks: Any) -> ValidationRecord:
    return factory.record(*checks).model_copy(update={"slots": {"node1": 2, "node2": 2}})


def test_a_record_proves_the_nodes_that_took_part_and_are_not_blamed() -> None:
    assert proved(record(GOOD)) == ("node1", "node2")
    assert proved(record(GOOD, factory.check("speed", Verdict.FAIL, culprits=(SLOW,)))) == ("node1",)
    assert proved(record(GOOD, factory.check("pairs", Verdict.FAIL, next_step="look"))) == ()
    assert proved(record(factory.check("hello", Verdict.SKIP))) == ()


def test_the_turn_goes_to_nodes_without_a_proof_and_then_to_the_oldest() -> None:
    last = {"a": NOW, "b": NOW - timedelta(days=3), "d": NOW - timedelta(days=1)}
    assert oldest_first("abcd", last) == ["c", "b", "d", "a"]


def test_the_notes_name_the_part_that_was_proved_and_nodes_without_a_proof_for_a_week() -> None:
    assert notes(("node1",), {}, {}, NOW) == ()
    left_out = {"node2": "allocated", "node3": "mixed", "node4": "drained: fan"}
    last = {"node2": NOW - timedelta(days=9), "node3": NOW - timedelta(days=2)}
    part, late = notes(("node1", "node5"), left_out, last, NOW)
    assert "2 of 5 nodes" in part
    assert "node[1,5]" in part
    assert "node2 (allocated); node3 (mixed); node4 (drained: fan)" in part
    assert "node4 (never), node2 (9 days)" in late
    assert "node3" not in late


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"rank": True}, "rank 7 of alice: ./solve"),
        ({"rank": False, "gpu": True}, "GPU process 7 of alice"),
        ({"rank": False, "trees": ("/usr/local/openmpi-5",)}, ""),  # a shell with the library loaded
    ],
)
def test_ranks_and_gpu_processes_make_a_node_busy(fields: dict[str, Any], told: str) -> None:
    one = BusyProcess(pid=7, user="alice", command="./solve", **fields)
    found = idle_part.at_work(factory.node(busy=[one.model_dump()]))
    assert told in found
    assert bool(found) == bool(told)


def test_a_rank_that_its_launcher_left_is_no_work() -> None:
    one = BusyProcess(pid=7, user="alice", command="./solve", rank=True)
    left = Leftover(pid=7, user="alice", command="./solve", age_s=9, why="its launcher is gone")
    assert idle_part.at_work(factory.node(busy=[one.model_dump()], leftovers=[left.model_dump()])) == ""
