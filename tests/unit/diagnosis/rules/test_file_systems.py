"""A file system that is almost full is told once: by the rule of disks where clusterctl writes there."""

from __future__ import annotations

import dataclasses

from clusterctl.diagnosis.rules import registry
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from doctor_view import seen

SIZE = 100 << 30


def full(free: int, disk_free: int) -> list[tuple[str, str]]:
    """Tell what is found where / has so much left by the look at the hardware, and by the facts."""
    readings = tuple(
        HardwareReading("filesystem", "/", name, value)
        for name, value in (("size in bytes", SIZE), ("free bytes", free), ("read-only", False), ("remote", False))
    )

    def change(record: dict[str, object]) -> None:
        record["disk"] = [{"path": "/usr/local", "free_bytes": disk_free, "total_bytes": SIZE}]

    look = HardwareLooks(Hardware(schema_version=1, time=1.0, readings=readings))
    view = dataclasses.replace(seen(node3=change), hardware={"node3": look})
    return [(one.check, one.cause) for one in registry.diagnose(view)]


def test_a_root_disk_that_is_almost_full_is_found() -> None:
    assert full(900 << 20, 20 << 30) == [("file systems", "/ has less than 1 % of its space free")]
    assert full(2 << 30, 20 << 30) == []


def test_it_is_told_once_where_the_rule_of_disks_tells_it() -> None:
    assert [check for check, _ in full(900 << 20, 900 << 20)] == ["disk"]
