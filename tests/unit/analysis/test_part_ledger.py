"""The ledger of parts: swapped, moved, gone and back, and no claim where nothing could be read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from clusterctl.analysis import part_ledger
from clusterctl.model.hardware import Part
from clusterctl.model.parts import PartLedger

DAY = datetime(2026, 1, 1, tzinfo=timezone.utc)


def gpu(place: str, serial: str) -> Part:
    return Part("gpu", place, "H100", serial, "96.00")


def after(*days: dict[str, list[Part]]) -> PartLedger:
    ledger = PartLedger()
    for number, seen in enumerate(days):
        ledger = part_ledger.updated(ledger, seen, DAY + timedelta(days=number))
    return ledger


def told(ledger: PartLedger, seen: dict[str, list[Part]]) -> list[tuple[str, str, str]]:
    return [(one.change, one.host, one.serial) for one in part_ledger.changes(ledger, seen)]


HEALTHY = {"node1": [gpu("a", "1"), gpu("b", "2")], "node2": [gpu("a", "3"), gpu("b", "4")]}


def test_the_first_look_and_an_equal_one_tell_nothing() -> None:
    assert told(PartLedger(), HEALTHY) == []
    assert told(after(HEALTHY, HEALTHY), HEALTHY) == []
    assert len(after(HEALTHY, HEALTHY).stays) == 4


def test_a_new_part_in_a_place_is_a_swap_and_its_predecessor_is_not_gone_too() -> None:
    seen = {**HEALTHY, "node1": [gpu("a", "9"), gpu("b", "2")]}
    assert told(after(HEALTHY), seen) == [("swapped", "node1", "9")]
    assert told(after(HEALTHY, seen), seen) == []


def test_a_part_that_changes_its_node_is_moved() -> None:
    seen = {"node1": [gpu("b", "2"), gpu("a", "3")], "node2": [gpu("a", "1"), gpu("b", "4")]}
    assert sorted(told(after(HEALTHY), seen)) == [("moved", "node1", "3"), ("moved", "node2", "1")]


def test_a_part_that_no_node_has_is_gone_until_it_is_back() -> None:
    without = {**HEALTHY, "node1": [gpu("b", "2")]}
    assert told(after(HEALTHY), without) == [("gone", "node1", "1")]
    assert told(after(HEALTHY, without), without) == []
    assert told(after(HEALTHY, without), HEALTHY) == [("returned", "node1", "1")]


def test_nothing_is_claimed_of_a_node_that_could_not_be_read_or_was_left_out() -> None:
    assert told(after(HEALTHY), {"node1": [], "node2": HEALTHY["node2"]}) == []
    assert told(after(HEALTHY), {"node2": HEALTHY["node2"]}) == []


def test_a_serial_number_that_two_parts_share_is_not_a_name() -> None:
    same = {"node1": [gpu("a", "0")], "node2": [gpu("a", "0")]}
    assert after(same).stays == ()
    assert told(after(HEALTHY), same) == [("gone", "node1", "2"), ("gone", "node2", "4")]
