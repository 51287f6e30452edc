"""smartctl and ipmitool that are silent, print garbage, fail or hang: each is a note, and never a finding."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import machine_parts as parts
import pytest
import recorded_machine
import rehearsal
from clusterctl.diagnosis.rules import registry
from clusterctl.model.hardware import Hardware, HardwareLooks
from machine_kinds import MACHINES
from recorded_machine import Answer, Machine

KIND = "plain-ethernet"
WHAT = {parts.SMART: "health of nvme0n1", parts.SDR: "sensors", parts.SEL: "event log of the board"}


def seen(tool: str, answer: Answer, patience: float = rehearsal.PATIENCE) -> Hardware:
    """Look at the disks and sensors of a machine on which one tool answers so."""
    machine = MACHINES[KIND](3)
    machine.tools[tool] = answer
    return looked(machine, patience)


def looked(machine: Machine, patience: float = rehearsal.PATIENCE) -> Hardware:
    with recorded_machine.folder() as folder:
        root, tools = machine.write(Path(folder))
        request = {"root": str(root), "tools": str(tools), "patience": patience, "sections": ["disks", "sensors"]}
        return Hardware.model_validate(rehearsal.record.collect(request))


def told(look: Hardware) -> list[tuple[str, str]]:
    view = rehearsal.view(KIND, node3=HardwareLooks(look))
    assert [one for one in registry.diagnose(view) if one.check in ("disks", "sensors")] == []
    assert look.odd == ()
    notes = "\n".join(registry.notes(view))
    assert all(f"{what}: {why}" in notes for what, why in look.unseen)
    return list(look.unseen)


@pytest.mark.parametrize("tool", WHAT)
@pytest.mark.parametrize(
    "answer",
    [Answer(""), Answer("\x00\ufffd garbage }{ | \n" * 50), Answer("Could not open device", 1), Answer("[1, 2]", 4)],
    ids=("silent", "garbage", "failing", "another form"),
)
def test_a_tool_that_tells_nothing_is_a_note(tool: str, answer: Answer) -> None:
    if (tool, answer.text) == (parts.SEL, ""):
        assert told(seen(tool, answer)) == []  # the log of a board may be empty
        return
    ((what, why),) = told(seen(tool, answer))
    assert what == WHAT[tool]
    assert why


@pytest.mark.parametrize("tool", WHAT)
def test_a_tool_that_hangs_is_given_up_and_named(tool: str) -> None:
    found = dict(told(seen(tool, Answer("", seconds=60.0), patience=0.2)))
    assert "did not end within" in found[WHAT[tool]]


FAILED = "Power Supply PS2 | Failure detected | Asserted"
FORM = "%m/%d/%Y | %H:%M:%S"


def test_an_event_without_a_time_is_a_note() -> None:
    text = f"   1 | Pre-Init  |0000000042| {FAILED}\n   2 | Pre-Init  |0000000043| {FAILED.replace('Ass', 'Deass')}\n"
    assert told(seen(parts.SEL, Answer(text))) == [
        ("event log of the board", "1 events have no time, the last is Power Supply PS2: Failure detected")
    ]


@pytest.mark.parametrize("days", [-4, 2000])
def test_an_event_is_as_old_as_the_clock_of_the_board_says(days: int) -> None:
    machine = MACHINES[KIND](3)
    board = time.time() - days * 86_400
    machine.tools[parts.SEL_CLOCK] = Answer(time.strftime("%m/%d/%y %H:%M:%S UTC\n", time.gmtime(board)))
    lines = [f"   {number} | {time.strftime(FORM, time.gmtime(board - age))} | {FAILED}\n" for number, age in AGES]
    machine.tools[parts.SEL] = Answer("".join(lines))
    look = looked(machine)
    ((at, text),) = [(one.at, one.text) for one in look.events]
    assert abs(look.time - at - 600) < 3600
    assert text == "Power Supply PS2: Failure detected"
    behind = "4 days ahead" if days < 0 else "2000 days behind"
    assert look.unseen == (("event log of the board", f"its clock is {behind}; the times of its events are set right"),)


def test_without_the_clock_of_the_board_events_keep_their_time_and_a_note_says_so() -> None:
    assert told(seen(parts.SEL_CLOCK, Answer("Get SEL Time command failed\n", 1))) == [
        (
            "event log of the board",
            "its clock could not be read: ipmitool sel time get ended with 1: Get SEL Time command failed",
        )
    ]


AGES = ((1, 600.0), (2, 3 * 86_400.0))
ODD: dict[str, Any] = {
    "no word of its health": {"smart_status": {}},
    "a word in its place": {"smart_status": {"passed": "maybe"}},
    "a list": {"smart_status": [True]},
    "messages of another form": {"smartctl": {"messages": "x"}, "smart_status": None},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_smartctl_of_another_form_says_nothing_of_the_disk(odd: dict[str, Any]) -> None:
    assert told(seen(parts.SMART, Answer(json.dumps(odd)))) == [("health of nvme0n1", "the disk tells none")]


def test_odd_counts_of_smartctl_are_left_out() -> None:
    table = [{"id": [5], "raw": {"value": 1}}, {"id": 5, "raw": 7}, "row", {"id": 197, "raw": {"value": 1 << 200}}]
    log = {"critical_warning": True, "percentage_used": "many", "media_errors": -1}
    answer = {
        "smart_status": {"passed": True},
        "nvme_smart_health_information_log": log,
        "ata_smart_attributes": {"table": table},
    }
    look = seen(parts.SMART, Answer(json.dumps(answer)))
    assert told(look) == []
    assert [one.name for one in look.readings if one.kind == "disk"] == ["state", "healthy"]
    assert [one for one in look.counters if one.kind == "disk"] == []
