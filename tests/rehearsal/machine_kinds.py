"""Six kinds of healthy machines, composed of captured and documented parts (tests/data/hardware/README.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_parts import add_gpus
from machine_parts import add_mainboard
from network_parts import add_bond, add_ethernet, add_rdma
from recorded_machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable


def _h100_sxm(node: int) -> Machine:
    """Return a machine with eight H100 and NVSwitch, and eight ports of InfiniBand."""
    machine = Machine()
    add_mainboard(machine, node, sockets=2)
    add_ethernet(machine, node, "eth0", 25_000)
    add_rdma(machine, node, "InfiniBand", 8, 400)
    add_gpus(machine, node, "h100-sxm", 8)
    return machine


def _a100_sxm(node: int) -> Machine:
    """Return a machine with eight A100 and NVSwitch, and four ports of InfiniBand."""
    machine = Machine()
    add_mainboard(machine, node, sockets=2)
    add_ethernet(machine, node, "eth0", 25_000)
    add_rdma(machine, node, "InfiniBand", 4, 200)
    add_gpus(machine, node, "a100-sxm", 8)
    return machine


def _l40s_pcie(node: int) -> Machine:
    """Return a machine with four L40S on PCIe, and one port of RoCE."""
    machine = Machine()
    add_mainboard(machine, node, sockets=2)
    add_ethernet(machine, node, "eth0", 25_000)
    add_rdma(machine, node, "Ethernet", 1, 100)
    add_gpus(machine, node, "l40s-pcie", 4)
    return machine


def _dual_rail_roce(node: int) -> Machine:
    """Return a machine without GPUs, with two ports of RoCE, and two ports of Ethernet in a bond."""
    machine = Machine()
    add_mainboard(machine, node, sockets=2)
    add_ethernet(machine, node, "eth0", 10_000)
    add_ethernet(machine, node, "eth1", 10_000)
    add_bond(machine, "bond0", ("eth0", "eth1"))
    add_rdma(machine, node, "Ethernet", 2, 100)
    return machine


def _plain_ethernet(node: int) -> Machine:
    """Return a machine with one socket and one Ethernet port."""
    machine = Machine()
    add_mainboard(machine, node, sockets=1)
    add_ethernet(machine, node, "eth0", 1_000)
    return machine


def _cloud_vm(node: int) -> Machine:
    """Return a virtual machine with one paravirtual port and next to no sensors."""
    machine = Machine()
    add_mainboard(machine, node, sockets=1, virtual=True)
    add_ethernet(machine, node, "ens5", 0)
    return machine


MACHINES: dict[str, Callable[[int], Machine]] = {
    "h100-sxm": _h100_sxm,
    "a100-sxm": _a100_sxm,
    "l40s-pcie": _l40s_pcie,
    "dual-rail-roce": _dual_rail_roce,
    "plain-ethernet": _plain_ethernet,
    "cloud-vm": _cloud_vm,
}
