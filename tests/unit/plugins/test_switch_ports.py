"""Which switch and port an interface hangs on: captured outputs and hostile ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gpu_trees
import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import gpu, machine, network
from clusterctl.model.network_facts import SwitchPort

DATA = Path(__file__).resolve().parents[2] / "data" / "switch_ports"
BRIDGE_AND_ROUTER = 0x14


def captured(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def interface(root: Path, name: str, number: int, *, carrier: str = "1", above: str = "", below: str = "") -> None:
    base = root / "sys/class/net" / name
    gpu_trees.written(base / "carrier", f"{carrier}\n")
    gpu_trees.written(base / "ifindex", f"{number}\n")
    for kind, other in (("upper", above), ("lower", below)):
        if other:
            (base / f"{kind}_{other}").mkdir()


def test_networkctl_names_the_switch_with_what_lies_on_the_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface(tmp_path, "eth0", 2, above="bond0")
    interface(tmp_path, "bond0", 3, above="bond0.7", below="eth0")
    interface(tmp_path, "bond0.7", 4, below="bond0")
    interface(tmp_path, "eth1", 5, carrier="0")
    gpu_trees.written(tmp_path / "run/systemd/netif/io.systemd.Network", "")
    gpu_trees.written(tmp_path / "networkctl", f"#!/bin/sh\ncat {DATA}/networkctl-eth0.json\n")
    (tmp_path / "networkctl").chmod(0o755)
    monkeypatch.setattr(network, "find_program", lambda name: str(tmp_path / name))
    (found,) = network.switch_ports(str(tmp_path))["switch_ports"]
    assert SwitchPort.model_validate(found) == SwitchPort(
        interface="eth0",
        above=("bond0", "bond0.7"),
        switch="leaf1",
        id="ce:57:15:ba:56:71",
        port="swp2",
        source="systemd-networkd",
    )


def test_a_machine_without_any_of_the_programs_tells_nothing(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", 2)
    assert network.switch_ports(str(tmp_path)) == {"switch_ports": []}


def test_lldpctl_names_the_switch_of_each_interface() -> None:
    found = network.read_lldpctl(captured("lldpctl-two-switches.json"))
    told = {name: [(one["switch"], one["port"], one["able"]) for one in each] for name, each in found.items()}
    assert told == {
        "eth0": [("leaf1", "swp1", BRIDGE_AND_ROUTER)],
        "eth1": [("leaf2", "Ethernet7", BRIDGE_AND_ROUTER)],
    }
    ((name, (one,)),) = network.read_lldpctl(captured("lldpctl-one-switch.json")).items()
    assert (name, one["switch"], one["port"]) == ("eth0", "leaf1", "swp2")
    assert network.read_lldpctl(captured("lldpctl-nothing.json")) == {}


def test_a_host_that_is_heard_through_the_switch_is_not_the_switch() -> None:
    neighbours = network.read_lldpctl(captured("lldpctl-switch-and-host.json"))["eth0"]
    assert {one["switch"] for one in neighbours} == {"leaf1", "n1"}
    chosen = network.chosen_switch(neighbours, "lldpd")
    assert (chosen["switch"], chosen["source"]) == ("leaf1", "lldpd")


def test_two_switches_on_one_interface_are_none_and_so_is_a_telephone() -> None:
    both = [each[0] for each in network.read_lldpctl(captured("lldpctl-two-switches.json")).values()]
    assert network.chosen_switch(both, "lldpd") is None
    assert network.chosen_switch([{**both[0], "able": 0x80}], "lldpd") is None
    assert network.chosen_switch([{**both[0], "able": None}], "lldpd") is not None
    assert network.chosen_switch([], "lldpd") is None


def test_a_chassis_without_a_name_is_named_by_its_id() -> None:
    data = json.loads(captured("lldpctl-one-switch.json"))
    entry = data["lldp"]["interface"]["eth0"]
    entry["chassis"] = entry["chassis"]["leaf1"]
    ((one,),) = network.read_lldpctl(json.dumps(data)).values()
    assert one["switch"] == one["id"] == entry["chassis"]["id"]["value"]


def test_a_port_that_is_named_by_its_interface_keeps_that_name() -> None:
    data = json.loads(captured("lldpctl-one-switch.json"))
    data["lldp"]["interface"]["eth0"]["port"].update(id={"type": "ifname", "value": "Ethernet1/7"}, descr="to node5")
    ((one,),) = network.read_lldpctl(json.dumps(data)).values()
    assert one["port"] == "Ethernet1/7"
    text = captured("networkctl-eth0.json").replace("[3,", "[5,").replace("0e:c2:4e:cd:03:73", "swp2.1")
    ((by_name, *_others),) = network.read_networkctl(text).values()
    assert by_name["port"] == "swp2.1"


def test_lldptool_names_the_switch() -> None:
    one = network.read_lldptool(captured("lldptool-one-switch.txt"))
    expected = {"switch": "leaf1", "id": "ce:57:15:ba:56:71", "port": "swp2", "able": BRIDGE_AND_ROUTER}
    assert one == expected
    assert network.read_lldptool("Device not found or inactive \n") is None


def test_only_a_switch_counts_at_the_other_end_of_an_infiniband_port() -> None:
    text = captured("smpquery-nodeinfo.txt")
    assert network.read_node_info(text) == ("0x0000000000200000", "2")
    assert network.read_node_info(text.replace("Switch", "Channel Adapter")) is None
    assert network.read_node_info("") is None


def test_the_two_fastest_active_ports_of_infiniband_are_asked(tmp_path: Path) -> None:
    for name, rate, state, layer in (
        ("mlx5_0", "100 Gb/sec (4X EDR)", "4: ACTIVE", "InfiniBand"),
        ("mlx5_1", "400 Gb/sec (4X NDR)", "4: ACTIVE", "InfiniBand"),
        ("mlx5_2", "400 Gb/sec (4X NDR)", "1: DOWN", "InfiniBand"),
        ("mlx5_3", "400 Gb/sec (4X NDR)", "4: ACTIVE", "Ethernet"),
    ):
        base = tmp_path / "sys/class/infiniband" / name / "ports/1"
        for file, text in (("rate", rate), ("state", state), ("link_layer", layer)):
            gpu_trees.written(base / file, f"{text}\n")
    assert [device for _, device, _ in network.fastest_ports(str(tmp_path))] == ["mlx5_1", "mlx5_0"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"lldp": 5}', '{"lldp": {"interface": [5]}}', '{"lldp": {"interface": {"a": {}}}}']
)
def test_odd_output_names_no_switch(text: str) -> None:
    assert network.read_lldpctl(text) == {}


def test_damaged_output_of_networkctl_ends_without_an_exception() -> None:
    whole = captured("networkctl-eth0.json")
    assert [network.read_networkctl(whole[:size]) for size in range(len(whole) - 3)] == [{}] * (len(whole) - 3)
    for text in ("null", "[]", '{"Neighbors": 5}', '{"Neighbors": [{"InterfaceName": "eth0", "Neighbors": [{}]}]}'):
        assert network.read_networkctl(text) == {}
    many = json.loads(whole)
    many["Neighbors"][0]["Neighbors"] *= 100
    assert len(network.read_networkctl(json.dumps(many))["eth0"]) == 64


def test_a_name_of_control_characters_loses_them() -> None:
    one = {"switch": "leaf\x1b[31m1\n", "id": "a" * 999, "port": "1", "able": BRIDGE_AND_ROUTER}
    chosen = network.chosen_switch([one], "lldpd")
    assert (chosen["switch"], len(chosen["id"])) == ("leaf[31m1", 255)


# --- where cores, GPUs and RDMA devices lie, read from composed trees of /sys and from this machine ---


def test_this_machine_names_each_usable_thread_once() -> None:
    found = machine.numa()["numa"]
    threads = [cpu for node in found for core in node["cores"] for cpu in machine.cpu_list(core)]
    assert sorted(threads) == sorted(os.sched_getaffinity(0))


def test_cores_are_told_by_numa_node_with_their_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 6, 7})
    for number, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7"), (2, "")):
        gpu_trees.written(tmp_path / f"sys/devices/system/node/node{number}/cpulist", f"{cpus}\n")
    for cpu in range(8):
        place = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        gpu_trees.written(place, f"{cpu % 4},{cpu % 4 + 4}\n")
    assert machine.numa(str(tmp_path)) == {
        "numa": [{"number": 0, "cores": ["0,4", "1,5"]}, {"number": 1, "cores": ["2,6", "7"]}]
    }


def test_a_machine_without_numa_nodes_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert machine.numa(str(tmp_path)) == {"numa": [{"number": 0, "cores": ["3", "5"]}]}


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,7\n", [0, 1, 2, 7]), ("", []), ("a", []), ("1-", []), ("0-99999999", []), ("9-3", [])]
)
def test_lists_of_the_kernel(text: str, cpus: list[int]) -> None:
    assert machine.cpu_list(text) == cpus


def test_a_gpu_and_a_port_tell_the_bridges_above_them(tmp_path: Path) -> None:
    root = gpu_trees.with_modules(tmp_path, 1)
    bridges = root / "sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0"
    bus = gpu_trees.bus_of(0)
    bridges.mkdir(parents=True)
    flat = root / "sys/bus/pci/devices" / bus
    flat.rename(bridges / bus)
    flat.symlink_to(bridges / bus)
    gpu_trees.written(bridges / bus / "numa_node", "1\n")
    (found,) = gpu.gpus("", str(root))["gpus"]
    assert (found["numa"], found["pci_path"]) == (1, ["0000:00:01.0", "0000:02:00.0", bus])
    gpu_trees.written(bridges / "0000:03:00.1" / "numa_node", "-1\n")
    device = root / "sys/class/infiniband/mlx5_0"
    device.mkdir(parents=True)
    (device / "device").symlink_to(bridges / "0000:03:00.1")
    (port,) = network.read_rdma(str(root / "sys/class/infiniband"))
    assert (port["numa"], port["pci_path"]) == (-1, ["0000:00:01.0", "0000:02:00.0", "0000:03:00.1"])
