"""Each fault of the rehearsal is found and blamed on its node alone, and healthy machines have no finding."""

from __future__ import annotations

import re

import captures
import gpu_faults
import gpu_parts
import pytest
import rehearsal
from clusterctl.diagnosis.rules import registry
from clusterctl.model.hardware import COUNTING, HardwareLooks, HardwareReading
from fault import Fault
from machine_kinds import MACHINES
from recorded_machine import Machine
from session_faults import SessionFault

# Each fault on one kind of machine, in turn; 'make rehearsal' plays it on all of its kinds.
PLAYED = [
    pytest.param(fault, kind, id=f"{fault.name} on {kind}")
    for number, fault in enumerate(rehearsal.FAULTS)
    for kind in (fault.machines[number % len(fault.machines)],)
]


@pytest.mark.parametrize("kind", MACHINES)
def test_healthy_machines_have_no_finding(kind: str) -> None:
    assert registry.diagnose(rehearsal.view(kind)) == ()


@pytest.mark.parametrize("capture", captures.CAPTURES, ids=lambda capture: capture.path)
def test_a_capture_is_read_whole_and_has_the_findings_of_its_known_faults_alone(capture: captures.Capture) -> None:
    if not capture.is_here:
        pytest.skip(f"{capture.path} is not on this machine")
    assert capture.wrong() == []


@pytest.mark.skipif(not captures.BESIDE.is_dir(), reason="the captures are not on this machine")
def test_every_capture_of_the_index_is_read() -> None:
    index = (captures.BESIDE / "INDEX.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+/[\w.-]+)", index, re.MULTILINE)
    assert sorted(rows) == sorted(one.path for one in captures.CAPTURES)


@pytest.mark.parametrize(("fault", "kind"), PLAYED)
def test_a_fault_is_found_and_blamed_on_its_node(fault: Fault, kind: str) -> None:
    row = rehearsal.play(fault, kind)
    assert row.found
    assert row.named_rightly, row.blamed
    assert row.wrong == ()


@pytest.mark.parametrize("fault", rehearsal.PAST_FAULTS, ids=lambda fault: fault.name)
def test_of_two_nodes_the_one_that_changed_is_named(fault: Fault) -> None:
    kind = fault.machines[rehearsal.PAST_FAULTS.index(fault) % len(fault.machines)]
    row = rehearsal.play_past(fault, kind)
    assert (row.found, row.blamed, row.wrong) == (True, (rehearsal.CULPRIT,), ())


def test_of_two_nodes_with_a_card_each_no_firmware_is_the_odd_one() -> None:
    fault = next(one for one in rehearsal.PAST_FAULTS if one.name == "of two: firmware of a card")
    assert rehearsal.play_past(fault, "l40s-pcie").wrong == ()
    both = registry.diagnose(
        rehearsal.view("l40s-pcie", **{rehearsal.CULPRIT: rehearsal.with_fault(fault, "l40s-pcie")})
    )
    assert [one.hosts for one in both if one.check == "firmware"] == [(rehearsal.CULPRIT,)]


@pytest.mark.parametrize("kind", MACHINES)
def test_a_node_that_is_as_it_was_has_no_finding(kind: str) -> None:
    view = rehearsal.with_past(kind)
    assert registry.diagnose(view) == ()
    assert not [note for note in registry.notes(view) if note.startswith("Changed")]


def test_a_gpu_whose_serial_number_is_not_told_for_once_is_the_same_by_its_uuid() -> None:
    def plant(machine: Machine, _look: int) -> None:
        for device in gpu_parts.gpus("l40s-pcie"):
            gpu_faults.set_for(machine, device, "<serial>16500000003", "<serial>N/A</serial><serial>")

    fault = Fault("no serial number", 0, ("l40s-pcie",), plant, "", ())
    view = rehearsal.with_past("l40s-pcie", **{rehearsal.CULPRIT: rehearsal.with_fault(fault, "l40s-pcie")})
    parts = [part for part in view.hardware[rehearsal.CULPRIT].now.parts if part.kind == "gpu"]
    assert [(part.serial, part.uuid[:12]) for part in parts] == [("", "GPU-00000003")] * 4
    assert view.part_changes == ()


@pytest.mark.parametrize("fault", rehearsal.SESSION_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_a_login_shows_is_blamed_on_its_node_alone(fault: SessionFault) -> None:
    row = rehearsal.play_session(fault)
    assert (row.found, row.blamed, row.wrong) == (True, (rehearsal.CULPRIT,), ())


def test_every_cause_of_the_list_is_rehearsed() -> None:
    causes = {fault.cause for fault in (*rehearsal.FAULTS, *rehearsal.SESSION_FAULTS)}
    assert causes >= set(range(1, 26))


def test_a_link_that_flaps_is_told_once() -> None:
    fault = next(one for one in rehearsal.FAULTS if one.name == "Ethernet link flaps, and the kernel's log tells it")
    found = registry.diagnose(rehearsal.planted(fault, "plain-ethernet"))
    assert [one.check for one in found] == ["links"]


def test_cards_that_are_far_away_on_all_nodes_are_a_note() -> None:
    fault = next(one for one in rehearsal.FAULTS if one.name == "the RDMA card is on another NUMA node")
    looks = rehearsal.planted(fault, "l40s-pcie").hardware[rehearsal.CULPRIT]
    view = rehearsal.view("l40s-pcie", **dict.fromkeys(rehearsal.NODES, looks))
    assert [one for one in registry.diagnose(view) if one.check == "gpudirect"] == []
    assert any("On node[1-4], a GPU has no RDMA card on its NUMA node" in note for note in registry.notes(view))


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        pytest.param(("l40s-pcie", "l40s-pcie", "l40s-pcie", "plain-ethernet"), [], id="another board"),
        pytest.param(("l40s-pcie", "plain-ethernet", "plain-ethernet", "plain-ethernet"), [], id="one GPU node"),
        pytest.param(("l40s-pcie", "dual-rail-roce", "dual-rail-roce", "dual-rail-roce"), [], id="one of its board"),
        pytest.param(("l40s-pcie", "l40s-pcie", "dual-rail-roce", "dual-rail-roce"), [], id="half of a board"),
        pytest.param(("l40s-pcie", "l40s-pcie", "l40s-pcie", "dual-rail-roce"), ["warning"], id="the only one without"),
    ],
)
def test_a_node_that_is_built_without_gpus_is_named_where_most_of_its_like_have_some(
    kinds: tuple[str, ...], named: list[str]
) -> None:
    looks = {
        name: rehearsal.healthy(kind, at) for at, (name, kind) in enumerate(zip(rehearsal.NODES, kinds, strict=True), 1)
    }
    found = registry.diagnose(rehearsal.view("l40s-pcie", **looks))
    assert [one.severity for one in found if "it has no" in one.cause] == named


def test_a_small_virtual_machine_beside_large_ones_with_gpus_is_no_fault() -> None:
    board = HardwareReading("board", "", "model", "Google Google Compute Engine")
    view = rehearsal.view("l40s-pcie", node4=rehearsal.healthy("cloud-vm", 4))
    virtual = {
        name: HardwareLooks(looks.now.model_copy(update={"readings": (*looks.now.readings, board)}))
        for name, looks in view.hardware.items()
    }
    found = registry.diagnose(rehearsal.view("l40s-pcie", **virtual))
    assert [one.cause for one in found if "it has no" in one.cause] == []


def test_what_is_read_twice_are_sections() -> None:
    assert set(COUNTING) <= set(rehearsal.record.SECTIONS)
