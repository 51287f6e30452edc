"""The look at the hardware goes on where a section hangs or fails, and where a tool hangs, and says so."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import network_parts
import pytest
import rehearsal
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.hardware import record, storage
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.hardware.record import Tree
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.engines import beyond
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.diagnosis.rules.table import ARRAYS, BESIDE_PEERS, LIMITS, SUMS
from clusterctl.model.hardware import Hardware, HardwareLooks, Unseen
from clusterctl.support import content
from factory import DATA
from machine_kinds import MACHINES
from recorded_machine import Answer, Machine

pytestmark = pytest.mark.programs


def section(monkeypatch: pytest.MonkeyPatch, name: str, read: Any) -> None:
    module = types.ModuleType(name)
    setattr(module, f"read_{name}", read)
    monkeypatch.setitem(sys.modules, f"{record.__package__}.{name}", module)


def test_a_section_that_hangs_is_named_with_what_it_read_and_the_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "hangs")

    def hang(tree: Tree, answer: record.Answer, _request: dict[str, Any]) -> None:
        answer.reading("node", "", "before", 1)
        tree.text("/dead")
        (tmp_path / "hangs").read_bytes()

    def fine(_tree: Tree, answer: record.Answer, _request: dict[str, Any]) -> None:
        answer.counter("nic", "eth0", "rx_errors", 3)

    def breaks(_tree: Tree, _answer: record.Answer, _request: dict[str, Any]) -> None:
        raise ValueError("odd")

    for name, read in (("hang", hang), ("breaks", breaks), ("fine", fine)):
        section(monkeypatch, name, read)
    monkeypatch.setattr(record, "SECTIONS", {name: name for name in ("hang", "breaks", "fine")})
    found = record.collect({"root": str(tmp_path), "section_s": 1.0})
    assert found["counters"] == [["nic", "eth0", "rx_errors", 3]]
    assert found["unseen"] == [
        ["hang", "no answer in time while it read /dead"],
        ["breaks", "ValueError: odd"],
    ]


def test_a_tool_that_hangs_is_killed_and_one_that_is_missing_is_no_problem(tmp_path: Path) -> None:
    tool = tmp_path / "slow-tool"
    tool.write_text("#!/bin/sh\necho begun\nexec sleep 60\n", encoding="utf-8")
    tool.chmod(0o755)
    tree = Tree(tools=str(tmp_path))
    assert tree.tool("absent-tool") == ""
    output = tree.run([tree.tool("slow-tool"), "-q"], seconds=0.5)
    assert output.text == "begun\n"
    assert output.problem == "slow-tool -q did not end within 0.5 s"


def test_a_path_that_cannot_be_read_is_a_problem_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    tree = Tree(root=str(tmp_path))
    assert tree.text("/missing") is None
    assert tree.text("/loop") is None
    assert list(tree.problems) == ["/loop"]


def test_a_link_that_cannot_be_read_is_a_problem_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    tree = Tree(root=str(tmp_path))
    assert (tree.link("/missing"), tree.link("/file"), tree.link("/dangling")) == ("", "", "nowhere")
    assert not tree.exists("/missing")
    assert not tree.exists("/dangling")
    assert tree.exists("/file")
    assert tree.problems == {}
    assert tree.link("/loop/device") == ""
    assert not tree.exists("/loop/bonding")
    assert tree.problems == dict.fromkeys(("/loop/device", "/loop/bonding"), os.strerror(errno.ELOOP))


def test_a_file_that_is_too_long_is_cut_and_a_problem(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(bytes((1 << 20) + 1))
    (tmp_path / "short").write_bytes(bytes((1 << 20) - 1))
    tree = Tree(root=str(tmp_path))
    assert len(tree.data("/long") or b"") == 1 << 20
    assert len(tree.data("/short") or b"") == (1 << 20) - 1
    assert tree.problems == {"/long": "only its first 1 MiB were read"}


def test_dead_file_systems_are_each_named_and_wait_together(tmp_path: Path) -> None:
    places = ("/apps", "/home", "/scratch")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    mounts = [f"server:{place} {place} nfs4 rw 0 0" for place in places]
    (tmp_path / "proc" / "self" / "mounts").write_text("\n".join(mounts), encoding="utf-8")
    (tmp_path / "calls").mkdir()
    dead = {place: {"hangs": True} for place in places}
    (tmp_path / "calls" / "file_systems.json").write_text(json.dumps(dead), encoding="utf-8")
    request = {"root": str(tmp_path), "sections": ["file_systems"], "file_system_s": 2.0, "section_s": 5.5}
    found = record.collect(request)
    assert [row[1] for row in found["readings"] if row[2:] == ["answers", False]] == list(places)
    assert found["unseen"] == []


def test_a_file_system_of_this_machine_is_asked_for_its_space() -> None:
    found = storage._state("/")  # noqa: SLF001 - what a child process answers
    assert 0 < found["free bytes"] <= found["size in bytes"]
    assert found["answer in s"] >= 0
    assert storage._state("/absent") == {"problem": "No such file or directory"}  # noqa: SLF001


# --- A real link that goes down and comes back, in a network namespace of its own, is found by its counter's grow ---


_LOOK = f'{sys.executable} -m node_look.hardware.record \'{{"sections":["interfaces","interface_counters"]}}\''
_STEPS = f"""
set -e
mount -t sysfs sysfs /sys
ip link add veth0 type veth peer name veth1
ip link add veth2 type veth peer name veth3
ip link set veth0 up; ip link set veth1 up
ip address add 10.9.9.1/24 dev veth0; ip route add default via 10.9.9.2
{_LOOK}
{_LOOK}
ip link set veth1 down; ip link set veth1 up
{_LOOK}
"""


def test_a_link_that_flaps_is_named_and_a_quiet_one_is_not() -> None:
    alone = ["unshare", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a network namespace")
    done = subprocess.run(
        [*alone, "sh", "-c", _STEPS],
        cwd=content.root() / "plugins" / "module_utils",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, third = (Hardware.model_validate(json.loads(line)) for line in done.stdout.splitlines())
    assert {one.device for one in first.counters} == {"veth0"}  # the one with the default route

    def told(now: Hardware, before: Hardware) -> list[tuple[tuple[str, ...], str]]:
        view = View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(now, first=before)})
        return [(one.hosts, one.cause.partition(" in ")[0]) for one in registry.diagnose(view)]

    assert told(second, first) == []
    assert told(third, second) == [(("node1",), "changes of its carrier grew (carrier_changes): veth0 by 2")]


# --- what the look at the hardware says of links where files, tools and counters are bad: nothing, and why ---


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


def test_each_array_is_read_by_its_own_lines(tmp_path: Path) -> None:
    """A raid0 before a degraded array is healthy; an inactive array is told, and the firmware's container is none."""
    (tmp_path / "proc").mkdir()
    shutil.copy(DATA / "hardware" / "mdstat", tmp_path / "proc" / "mdstat")
    found = Hardware.model_validate(record.collect({"root": str(tmp_path), "sections": ["disks"]}))
    counts = found.numbers("array", "members working"), found.numbers("array", "members")
    lacking = {array: counts[0][array] for array in counts[1] if counts[0][array] != counts[1][array]}
    assert lacking == {"md6": 1, "md7": 3, "md42": 2}
    assert counts[1].keys().isdisjoint({"md10", "md12", "md126", "md00", "md120", "md101", "md4", "md219"})
    assert found.texts("array", "state") == {"md4": "inactive"}
    causes = [one.cause for one in beyond("node1", found, ARRAYS)]
    assert "the array md7 has 3 of 4 members" in causes
    assert causes[-1] == "the array md4 is inactive"
