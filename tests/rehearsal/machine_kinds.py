"""Six kinds of healthy machines, composed of captured and documented parts (tests/data/hardware/README.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_parts import add_gpus
from machine_parts import add_mainboard
from network_parts import add_bond, add_ethernet, add_rdma
from recorded_machine import Machine


@dataclass(frozen=True)
class Kind:
    """What a kind of machine is built of; the node's number makes its serial numbers its own."""

    ports: dict[str, int]  # of Ethernet, each with its speed in Mb/s, 0 for a paravirtual one
    rdma: tuple[str, int, int] | None = None  # link layer, number and speed in Gb/s
    gpus: tuple[str, int] | None = None
    sockets: int = 2
    bond: str = ""  # joins all ports of Ethernet
    virtual: bool = False

    def __call__(self, node: int) -> Machine:
        """Return a machine."""
        machine = Machine()
        add_mainboard(machine, node, sockets=self.sockets, virtual=self.virtual)
        for name, speed in self.ports.items():
            add_ethernet(machine, node, name, speed)
        if self.bond:
            add_bond(machine, self.bond, tuple(self.ports))
        if self.rdma:
            add_rdma(machine, node, *self.rdma)
        if self.gpus:
            add_gpus(machine, node, *self.gpus)
        return machine


MACHINES: dict[str, Callable[[int], Machine]] = {
    "h100-sxm": Kind({"eth0": 25_000}, ("InfiniBand", 8, 400), ("h100-sxm", 8)),
    "a100-sxm": Kind({"eth0": 25_000}, ("InfiniBand", 4, 200), ("a100-sxm", 8)),
    "l40s-pcie": Kind({"eth0": 25_000}, ("Ethernet", 1, 100), ("l40s-pcie", 4)),
    "dual-rail-roce": Kind({"eth0": 10_000, "eth1": 10_000}, ("Ethernet", 2, 100), bond="bond0"),
    "plain-ethernet": Kind({"eth0": 1_000}, sockets=1),
    "cloud-vm": Kind({"ens5": 0}, sockets=1, virtual=True),
}
