"""A change since the last look is a warning where no neighbour explains it, told once, and of the same device alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import changes_since_last_look
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading, Part

if TYPE_CHECKING:
    from clusterctl.model.hardware import Value

MAC = "b8:3f:d2:01:17:00"


def look(speed: Value, mtu: int = 1500, address: str = MAC, at: float = 90_000.0, firmware: str = "1") -> Hardware:
    told: dict[str, Value] = {"speed": speed, "mtu": mtu, "address": address, "operstate": "up", "wanted_up": True}
    readings = tuple(HardwareReading("interface", "eth0", name, value) for name, value in told.items())
    return Hardware(schema_version=1, time=at, readings=readings, parts=(Part("disk", "sda", "M", "S", firmware),))


def view(*nodes: tuple[Hardware, Hardware | None]) -> View:
    looks = {
        f"node{number}": HardwareLooks(now=now, past=(before,) if before else ())
        for number, (now, before) in enumerate(nodes, start=1)
    }
    return View(hosts=(), nodes={}, hardware=looks)


def causes(given: View) -> list[str]:
    return [one.cause for one in changes_since_last_look.changes(given)]


def test_a_node_alone_is_held_against_its_past_and_told_once() -> None:
    before, now = look(10_000, at=0.0), look(1_000)
    (told,) = changes_since_last_look.changes(view((now, before)))
    assert told.hosts == ("node1",)
    assert told.cause == "the speed in Mb/s of eth0 is 1000, and was 10000 at the last look 25 h ago"
    assert causes(view((look(1_000), now))) == []
    assert causes(view((now, None))) == []


def test_what_got_better_is_a_note() -> None:
    given = view((look(10_000), look(1_000, at=0.0)))
    assert causes(given) == []
    assert list(changes_since_last_look.changes_notes(given)) == [
        "Changed on node1: the speed in Mb/s of eth0 is 10000, and was 1000 at the last look."
    ]


def test_a_change_that_neighbours_share_or_judge_is_a_note() -> None:
    before, now = look(10_000, mtu=1500, at=0.0), look(10_000, mtu=9000)
    shared = view((now, before), (now, before), (now, before))
    assert causes(shared) == []
    assert list(changes_since_last_look.changes_notes(shared)) == [
        "Changed on node[1-3]: the MTU of eth0 is 9000, and was 1500 at the last look."
    ]
    odd = view((now, before), (look(10_000, mtu=4000), before), (before, before))
    assert len(causes(odd)) == 2  # three values on three nodes: nothing is usual


def test_another_device_in_its_place_is_not_compared() -> None:
    other = look(1_000, address="b8:3f:d2:09:17:00")
    assert causes(view((other, look(10_000, at=0.0)))) == []


def test_firmware_of_a_part_is_compared_by_its_serial_number() -> None:
    given = view((look(10_000, firmware="2"), look(10_000, at=0.0)))
    assert causes(given) == ["the firmware of the M of sda is 2, and was 1 at the last look 25 h ago"]


def test_an_odd_value_is_not_compared() -> None:
    assert causes(view((look("fast"), look(10_000, at=0.0)))) == []
