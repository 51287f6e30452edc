"""Parts that are gone are findings; those that were swapped, moved or brought back are notes, by the kept ledger."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from clusterctl.diagnosis import doctor
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading, Part
from clusterctl.state import hardware_looks

DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
DISK = Part("disk", "sda", "M", "D1", "1")


def gpu(number: int, place: str = "") -> Part:
    return Part("gpu", place or f"0000:{number}0:00.0", "H100", f"165{number}", "96", f"GPU-{number}")


def look(*parts: Part) -> Hardware:
    bus = tuple(HardwareReading("gpu", part.place, "on the bus", value=True) for part in parts if part.kind == "gpu")
    return Hardware(schema_version=1, time=DAY.timestamp(), boot_id="b", readings=bus, parts=parts)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def told(*days: dict[str, Hardware]) -> list[tuple[list[str], list[str]]]:
    """Return what doctor says on each day of the parts that it looks at: the causes of findings, and the notes."""
    found = []
    for number, day in enumerate(days):
        looks = {host: HardwareLooks(one) for host, one in day.items()}
        view = doctor.with_hardware(View(hosts=(), nodes={}), "c", looks)
        causes = [one.cause for one in registry.diagnose(view) if one.check == "parts"]
        found.append((causes, list(registry.notes(view))))
        hardware_looks.keep("c", day, DAY + timedelta(days=number))
    return found


TWO = {"node1": look(gpu(1), gpu(2), DISK), "node2": look(gpu(3), gpu(4))}


def test_a_swapped_part_is_a_note_once() -> None:
    swapped = {**TWO, "node1": look(gpu(9, gpu(1).place), gpu(2), DISK)}
    note = "Swapped: GPU 1659 is in 0000:10:00.0 of node1, in the place of 1651."
    assert told(TWO, swapped, swapped) == [([], []), ([], [note]), ([], [])]


def test_a_part_that_another_node_has_now_is_a_note() -> None:
    moved = {"node1": look(gpu(2), DISK), "node2": look(gpu(3), gpu(4), gpu(1, "0000:50:00.0"))}
    note = "Moved: GPU 1651 is in 0000:50:00.0 of node2, and was in 0000:10:00.0 of node1."
    assert told(TWO, moved, moved) == [([], []), ([], [note]), ([], [])]


def test_a_part_that_is_gone_is_a_finding_and_a_note_when_it_comes_back() -> None:
    without = {**TWO, "node1": look(gpu(2), DISK)}
    cause = "GPU 1651 in 0000:10:00.0 was there until 2026-03-01, and is gone"
    note = "Back: GPU 1651 is in 0000:10:00.0 of node1; it was last seen on 2026-03-01 in 0000:10:00.0 of node1."
    assert told(TWO, without, TWO) == [([], []), ([cause], []), ([], [note])]


def test_all_gpus_of_a_node_that_are_gone_are_one_finding() -> None:
    cause = "GPU 1651 in 0000:10:00.0, 1652 in 0000:20:00.0 were there until 2026-03-01, and are gone"
    assert told(TWO, {**TWO, "node1": look(DISK)})[1][0] == [cause]


def test_a_gpu_that_is_on_the_bus_and_gives_no_answer_is_not_gone() -> None:
    silent = TWO["node1"].model_copy(update={"parts": (gpu(2), DISK)})
    assert told(TWO, {**TWO, "node1": silent}, TWO) == [([], [])] * 3


def test_a_serial_number_that_is_not_told_for_once_is_no_swap() -> None:
    unnamed = {**TWO, "node1": look(gpu(1)._replace(serial=""), gpu(2), DISK)}
    assert told(TWO, unnamed, TWO) == [([], [])] * 3
