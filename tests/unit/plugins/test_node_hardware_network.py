"""What the look at the hardware says of links where files, tools and counters are bad: nothing, and why."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import network_parts
import pytest
import rehearsal
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.table import BESIDE_PEERS, LIMITS, SUMS
from clusterctl.model.hardware import Hardware, Unseen
from machine_kinds import MACHINES
from recorded_machine import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from recorded_machine import Machine

pytestmark = pytest.mark.programs

JUDGED = set(LIMITS) | set(SUMS) | set(BESIDE_PEERS)
SECTIONS = ["interfaces", "interface_counters", "rdma_ports", "rdma_counters", "lossless"]
PORT = f"{network_parts.RDMA}/mlx5_0/ports/1"


def look_at(machine: Machine) -> Hardware:
    with tempfile.TemporaryDirectory() as folder:
        root, tools = machine.write(Path(folder))
        found = rehearsal.record.collect({"root": str(root), "tools": str(tools), "sections": SECTIONS})
        return Hardware.model_validate(found)


def roce() -> Machine:
    return MACHINES["l40s-pcie"](1)


def fabric() -> Machine:
    return MACHINES["a100-sxm"](1)


def counters(look: Hardware, name: str) -> dict[str, int]:
    return {one.device: one.value for one in look.counters if one.name == name}


def test_parts_are_told_with_what_stays_with_them() -> None:
    look = look_at(fabric())
    cards = [part for part in look.parts if part.kind == "hca"]
    assert [part.serial for part in cards] == [f"b83f:d203:0001:{number:02x}0a" for number in range(4)]
    assert cards[0][1:3] == ("0000:40:00.0", "MT_0000000223")
    assert [part.serial for part in look.parts if part.kind == "nic"] == ["b8:3f:d2:01:17:00", "b8:3f:d2:01:17:10"]


def test_what_is_read_is_judged_and_what_is_judged_is_read() -> None:
    drivers = (f"{side}_{what}" for side in ("rx", "tx") for what in ("pause_frames", "pfc_ena_frames_pri0"))
    machine = roce()
    lines = "".join(f"     {name}: 1\n" for _, name in JUDGED)
    machine.tools["ethtool -S ens4np0"] = Answer(f"NIC statistics:\n{lines}")
    read = {(one.kind, one.name) for one in look_at(machine).counters}
    traffic = {(kind, packets) for (kind, _), (packets, _) in BESIDE_PEERS.items()}
    assert read == JUDGED | traffic
    assert {("interface", name) for name in drivers} <= JUDGED


def test_an_address_that_a_hypervisor_invents_is_no_part() -> None:
    assert [part for part in look_at(MACHINES["cloud-vm"](1)).parts if part.kind == "nic"] == []


def test_what_programs_make_and_virtual_functions_are_left_out() -> None:
    machine = roce()
    machine.links[f"{network_parts.NET}/eth0_0/device"] = "../../../devices/pci0000:00/0000:17:00.0"
    machine.add(f"{network_parts.NET}/eth0_0/phys_port_name", "pf0vf3")
    machine.add(f"{network_parts.NET}/eth0_0/carrier_changes", 9)
    machine.links[f"{network_parts.RDMA}/mlx5_9/device"] = "../../../devices/pci0000:00/0000:40:00.1"
    machine.links["/sys/devices/pci0000:00/0000:40:00.1/physfn"] = "../0000:40:00.0"
    machine.add(f"{network_parts.RDMA}/mlx5_9/fw_ver", "1")
    look = look_at(machine)
    assert set(counters(look, "carrier_changes")) == {"eth0", "eth0s1", "ens4np0"}
    assert look.devices("rdma_device") == ("mlx5_0",)


def test_a_counter_that_cannot_be_read_is_left_out_and_named() -> None:
    machine = fabric()
    del machine.files[f"{PORT}/counters/symbol_error"]
    machine.links[f"{PORT}/counters/symbol_error"] = "/proc/self/mem"  # a read at its begin ends with EIO
    look = look_at(machine)
    assert set(counters(look, "symbol_error")) == {"mlx5_1/1", "mlx5_2/1", "mlx5_3/1"}
    assert Unseen("rdma_counters", f"{PORT}/counters/symbol_error: Input/output error") in look.unseen


@pytest.mark.parametrize("garbage", ["", "\0\xff", "N/A (no PMA)", "-1", "0x", "1e9"])
def test_garbage_in_a_counter_or_a_rate_is_no_value(garbage: str) -> None:
    machine = fabric()
    machine.add(f"{PORT}/counters/symbol_error", garbage)
    machine.add(f"{PORT}/rate", garbage)
    machine.add(f"{PORT}/pkeys/1", garbage if garbage != "-1" else "")
    look = look_at(machine)
    assert "mlx5_0/1" not in counters(look, "symbol_error")
    assert "mlx5_0/1" not in look.values("rdma_port", "rate_gbps")
    assert "mlx5_0/1" not in look.values("rdma_port", "pkeys")


def test_tools_that_print_garbage_or_hang_are_notes() -> None:
    machine = roce()
    machine.tools["dcb pfc show dev ens4np0"] = Answer("prio-pfc 0:maybe\n")
    machine.tools["mlnx_qos -i ens4np0"] = Answer("Traceback (most recent call last):\n", code=1)
    machine.tools["ethtool -S ens4np0"] = Answer("", seconds=60)
    look = look_at(machine)
    assert look.values("lossless", "pfc") == {}
    notes = [f"{what}: {why}" for what, why in look.unseen]
    assert "PFC of ens4np0: mlnx_qos -i ens4np0 ended with 1: Traceback (most recent call last)" in notes
    assert any(note.startswith("counters of the driver of ens4np0: ethtool -S ens4np0 did not end") for note in notes)
    assert counters(look, "rx_crc_errors")["ens4np0"] == 2


@pytest.mark.parametrize("text", ["\0\x07 garbage }{", '{"rx_packets": 1}', "rx packets 1"])
def test_counters_of_a_driver_in_another_form_are_a_note(text: str) -> None:
    machine = roce()
    machine.tools["ethtool -S ens4np0"] = Answer(text)
    assert ("counters of the driver of ens4np0", "ethtool -S ens4np0 printed no counter") in look_at(machine).unseen


def test_a_driver_without_counters_is_no_note() -> None:
    machine = roce()
    machine.tools["ethtool -S ens4np0"] = Answer("no stats available\n", code=94)
    assert not [what for what, _ in look_at(machine).unseen if "counters of the driver" in what]


@pytest.mark.parametrize("kind", [fabric, roce])
def test_an_mtu_that_no_tool_tells_is_a_note(kind: Callable[[], Machine]) -> None:
    machine = kind()
    machine.tools["ibv_devinfo"] = Answer("No IB devices found\n", code=255)
    assert ("active MTU of RDMA ports", "ibv_devinfo ended with 255: No IB devices found") in look_at(machine).unseen
    machine.tools.clear()
    assert any(what == "active MTU of RDMA ports" and "not installed" in why for what, why in look_at(machine).unseen)


def test_an_mtu_that_follows_from_the_interface_is_told_once() -> None:
    machine, interface = MACHINES["dual-rail-roce"](3), f"{network_parts.NET}/ens4np0/mtu"
    machine.add(interface, 1500)
    machine.replace("ibv_devinfo", "active_mtu:\t\t4096 (5)", "active_mtu:\t\t1024 (3)", 1)
    found = registry.diagnose(rehearsal.view("dual-rail-roce", node3=rehearsal.looks(machine, machine)))
    assert [one.cause for one in found if "MTU" in one.cause and one.check == "rdma"] == [
        "the MTU of the interface of RDMA mlx5_0/1 is 1500, and 4200 on most nodes"
    ]


def test_a_counter_that_was_reset_and_one_at_its_end_are_notes_and_no_findings() -> None:
    kind, number = "a100-sxm", 3
    first, second = MACHINES[kind](number), rehearsal.later(kind, number)
    second.add(f"{PORT}/counters/link_downed", 0)
    for machine in (first, second):
        machine.add(f"{PORT}/counters/symbol_error", 0xFFFF)
    seen = rehearsal.view(kind, node3=rehearsal.looks(first, second))
    assert registry.diagnose(seen) == ()
    told = registry.notes(seen)
    assert any("On node3, symbol_error of mlx5_0/1 is at its highest value" in note for note in told)
    assert any("On node3, link_downed of mlx5_0/1 is smaller than before" in note for note in told)
