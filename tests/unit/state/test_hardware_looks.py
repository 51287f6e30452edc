"""Looks at the hardware are kept with their counters, and the oldest are forgotten."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from clusterctl.model.hardware import Counter, Event, Hardware, HardwareReading, Part
from clusterctl.state import hardware_looks, paths

NOW = datetime(2026, 1, 10, tzinfo=timezone.utc)


def look(at: datetime, count: int) -> Hardware:
    return Hardware(
        schema_version=1,
        time=at.timestamp(),
        boot_id="b",
        counters=(Counter("nic", "eth0", "rx_errors", count),),
        events=(Event(at.timestamp(), "xid", "0000:3b:00.0", "79", "text"),),
        parts=(Part("gpu", "0000:3b:00.0", "H100", "1", ""),),
    )


def test_the_newest_looks_and_the_oldest_of_the_day_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    times = [NOW - timedelta(hours=hours) for hours in (50, 23, 20, 4, 3, 2, 1)]
    for number, at in enumerate(times):
        hardware_looks.keep("c", {"node1": look(at, number)}, at)
    (found,) = hardware_looks.past("c", {"node1"}, NOW).values()
    assert [one.counters[0].value for one in found] == [1, 3, 4, 5, 6]
    assert all(one.events == () for one in found)
    assert hardware_looks.past("c", {"node2"}, NOW) == {}
    assert [(stay.first, stay.last) for stay in hardware_looks.ledger("c").stays] == [(times[0], times[-1])]


def test_old_looks_are_forgotten_and_a_damaged_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in range(hardware_looks.KEEP + 3):
        at = NOW + timedelta(minutes=number)
        hardware_looks.keep("c", {"node1": look(at, number)}, at)
    places = sorted(paths.hardware_dir("c").iterdir())
    assert len(places) == hardware_looks.KEEP
    places[-1].write_bytes(b"damaged")
    found = hardware_looks.past("c", {"node1"}, NOW + timedelta(hours=1))["node1"]
    assert found[-1].counters[0].value == hardware_looks.KEEP + 1
    paths.parts_file("c").write_text("{", encoding="utf-8")
    assert hardware_looks.ledger("c").stays == ()


def test_a_node_that_could_not_be_looked_at_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hardware_looks.keep("c", {"node1": Hardware(schema_version=1, time=1.0)}, NOW)
    assert hardware_looks.past("c", {"node1"}, NOW) == {}


def test_an_odd_value_leaves_the_look_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sound = HardwareReading("gpu", "a", "power W", 90.0)
    odd = (HardwareReading("gpu", "b", "power W", float("nan")), HardwareReading("new", "a", "x", float("inf")))
    hardware_looks.keep("c", {"node1": Hardware(schema_version=1, time=1.0, boot_id="b", readings=(sound, *odd))}, NOW)
    (kept,) = hardware_looks.past("c", {"node1"}, NOW)["node1"]
    assert kept.readings == (sound,)
