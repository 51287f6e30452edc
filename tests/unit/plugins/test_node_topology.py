"""Where cores, GPUs and RDMA devices lie, read from composed trees of /sys and from this machine.

The formats are in Documentation/ABI/stable/sysfs-devices-node and Documentation/ABI/testing/sysfs-bus-pci of Linux.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import gpu_trees
import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import gpu, machine, network

if TYPE_CHECKING:
    from pathlib import Path


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
