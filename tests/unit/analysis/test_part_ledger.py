"""The ledger of parts: swapped, moved, gone and back, and no claim where nothing could be read."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

import pytest
from clusterctl.analysis import part_ledger
from clusterctl.model.hardware import Counter, Hardware, HardwareReading, Part, PartLedger, Unseen

DAY = datetime(2026, 1, 1, tzinfo=timezone.utc)


def gpu(place: str, serial: str, uuid: str = "") -> Part:
    return Part("gpu", place, "H100", serial, "96.00", uuid)


def look(*parts: Part, on_the_bus: Iterable[str] = (), unseen: tuple[Unseen, ...] = ()) -> Hardware:
    readings = tuple(HardwareReading("gpu", place, "on the bus", value=True) for place in on_the_bus)
    return Hardware(schema_version=1, time=0, boot_id="b", readings=readings, parts=parts, unseen=unseen)


def after(*days: dict[str, Hardware]) -> PartLedger:
    ledger = PartLedger()
    for number, seen in enumerate(days):
        ledger = part_ledger.updated(ledger, seen, DAY + timedelta(days=number))
    return ledger


def told(ledger: PartLedger, seen: dict[str, Hardware]) -> list[tuple[str, str, str]]:
    return [(one.change, one.host, one.name) for one in part_ledger.changes(ledger, seen)]


HEALTHY = {"node1": look(gpu("a", "1"), gpu("b", "2")), "node2": look(gpu("a", "3"), gpu("b", "4"))}


def test_the_first_look_and_an_equal_one_tell_nothing() -> None:
    assert told(PartLedger(), HEALTHY) == []
    assert told(after(HEALTHY, HEALTHY), HEALTHY) == []
    assert len(after(HEALTHY, HEALTHY).stays) == 4


def test_a_new_part_in_a_place_is_a_swap_and_its_predecessor_is_not_gone_too() -> None:
    seen = {**HEALTHY, "node1": look(gpu("a", "9"), gpu("b", "2"))}
    assert told(after(HEALTHY), seen) == [("swapped", "node1", "9")]
    assert told(after(HEALTHY, seen), seen) == []


def test_a_part_that_changes_its_node_is_moved() -> None:
    seen = {"node1": look(gpu("b", "2"), gpu("a", "3")), "node2": look(gpu("a", "1"), gpu("b", "4"))}
    assert sorted(told(after(HEALTHY), seen)) == [("moved", "node1", "3"), ("moved", "node2", "1")]


def test_a_part_that_no_node_has_is_gone_until_it_is_back() -> None:
    without = {**HEALTHY, "node1": look(gpu("b", "2"))}
    assert told(after(HEALTHY), without) == [("gone", "node1", "1")]
    assert told(after(HEALTHY, without), without) == []
    assert told(after(HEALTHY, without), HEALTHY) == [("returned", "node1", "1")]


def test_all_parts_of_a_kind_are_gone_where_the_look_would_have_seen_them() -> None:
    none = {**HEALTHY, "node1": look()}
    assert told(after(HEALTHY), none) == [("gone", "node1", "1"), ("gone", "node1", "2")]
    modules = {"node1": look(Part("dimm", "A1", "M", "7", ""))}
    assert told(after(modules), {"node1": look()}) == [], "without root, no memory module is seen"


def test_nothing_is_claimed_of_a_node_that_could_not_be_read_or_was_left_out() -> None:
    late = Unseen("pci", "no answer in time")
    for unread in (Hardware(schema_version=1, time=0), look(unseen=(late,)), look(gpu("b", "2"), unseen=(late,))):
        assert told(after(HEALTHY), {**HEALTHY, "node1": unread}) == []
    assert told(after(HEALTHY), {"node2": HEALTHY["node2"]}) == []


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(look(gpu("b", "2"), on_the_bus="ab"), id="on the bus without an answer"),
        pytest.param(look(on_the_bus="ab", unseen=(Unseen("nvidia-smi", "it hangs"),)), id="no tool answers"),
        pytest.param(look(gpu("b", "2"), unseen=(Unseen("GPU a", "this login may not open it"),)), id="closed"),
        pytest.param(
            look(gpu("b", "2")).model_copy(update={"counters": (Counter("pcie", "a", "fatal errors", 0),)}),
            id="counted",
        ),
    ],
)
def test_a_place_that_the_look_saw_or_could_not_open_lost_no_part(seen: Hardware) -> None:
    silent = {**HEALTHY, "node1": seen}
    assert told(after(HEALTHY), silent) == []
    assert told(after(HEALTHY, silent), HEALTHY) == [], "it was there all the time"
    assert ("gone", "node1", "1") in told(after(HEALTHY, silent), {**HEALTHY, "node1": look(gpu("b", "2"))})


def test_a_serial_number_that_two_parts_share_is_not_a_name() -> None:
    same = {"node1": look(gpu("a", "0")), "node2": look(gpu("a", "0"))}
    assert after(same).stays == ()
    assert told(after(HEALTHY), same) == [("gone", "node1", "2"), ("gone", "node2", "4")]


def test_two_gpus_of_one_board_share_its_serial_number_and_have_their_own_uuid() -> None:
    both = {"node1": look(gpu("a", "0", "GPU-a"), gpu("b", "0", "GPU-b"))}
    assert told(after(both), {"node1": look(gpu("a", "0", "GPU-a"))}) == [("gone", "node1", "0")]
    other = {"node1": look(gpu("a", "0", "GPU-a"), gpu("b", "0", "GPU-c"))}
    assert told(after(both), other) == [("swapped", "node1", "0")]
    assert ("swapped", "node1", "0") in told(after(both), {"node1": look(gpu("a", "0", "GPU-c"))})


@pytest.mark.parametrize("known", [gpu("a", "1", "GPU-a"), gpu("a", "GPU-a")], ids=["both", "of an older release"])
def test_a_gpu_that_tells_its_serial_number_or_its_uuid_alone_for_once_is_the_same(known: Part) -> None:
    days = [{"node1": look(part)} for part in (known, gpu("a", "", "GPU-a"), gpu("a", "1", "GPU-a"), gpu("a", "1"))]
    for number in range(1, len(days)):
        assert told(after(*days[:number]), days[number]) == []
    (stay,) = after(*days).stays
    assert (stay.serial, stay.uuid) == ("1", "GPU-a")
    assert told(after(*days), {"node1": look(gpu("a", "", "GPU-z"))}) == [("swapped", "node1", "GPU-z")]


def test_parts_that_a_node_makes_up_hold_no_run_and_fill_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2500
    looks = [
        look(*(gpu(f"{day} {number}", f"{day} {number}") for number in range(count)), on_the_bus=map(str, range(count)))
        for day in range(3)
    ]
    began = time.monotonic()
    ledger = after(*({"node1": one} for one in looks))
    assert len(part_ledger.changes(ledger, {"node1": looks[0]})) == 2 * count
    assert time.monotonic() - began < 5
    monkeypatch.setattr(part_ledger, "_MOST_STAYS", 10)
    ledger = part_ledger.updated(ledger, {"node2": HEALTHY["node2"]}, DAY + timedelta(days=9))
    assert [len(ledger.of_host(host)) for host in ("node1", "node2")] == [10, 2]
    assert {stay.serial.partition(" ")[0] for stay in ledger.of_host("node1")} == {"2"}
