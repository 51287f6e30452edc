# SPDX-License-Identifier: Apache-2.0
"""Find the network interfaces and the RDMA ports of a node that are worth a look.

Interfaces are those of /sys/class/net (Documentation/ABI/testing/sysfs-class-net of Linux), RDMA ports those of
/sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tree import Tree

NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")  # phys_port_name of a virtual function's other end
_ANYWHERE = "00000000"
_FIRST_GIDS = 4


class RdmaPort(NamedTuple):
    """A port of an RDMA device, and the device's folder in /sys."""

    device: str
    number: str

    @property
    def name(self) -> str:
        """The name in the record, such as mlx5_0/1."""
        return f"{self.device}/{self.number}"

    @property
    def path(self) -> str:
        """The port's folder."""
        return f"{RDMA}/{self.device}/ports/{self.number}"


def interfaces(tree: Tree) -> list[str]:
    """Return the interfaces with a device behind them, and those that a default route leads over.

    A container's own interface is of the second kind. Bridges, tunnels and ends of other containers are left out, since
    programs take them up and down at will.
    """
    by_route = _with_default_route(tree)
    return [name for name in tree.names(NET) if name in by_route or physical(tree, name)]


def physical(tree: Tree, name: str) -> bool:
    """Whether a device is behind an interface, which does not stand for a virtual function."""
    path = f"{NET}/{name}"
    return tree.exists(f"{path}/device") and not _REPRESENTOR.fullmatch(tree.text(f"{path}/phys_port_name") or "")


def _with_default_route(tree: Tree) -> set[str]:
    rows = [line.split() for line in (tree.text("/proc/net/route") or "").splitlines()[1:]]
    return {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == _ANYWHERE}  # noqa: PLR2004 - Mask is the 8th


def members(tree: Tree, name: str) -> list[str]:
    """Return the interfaces of a bond, and the interface itself if it is none."""
    return (tree.text(f"{NET}/{name}/bonding/slaves") or name).split()


def rdma_devices(tree: Tree) -> list[str]:
    """Return the RDMA devices that are a card's own: virtual functions come and go with their guests."""
    return [name for name in tree.names(RDMA) if not tree.exists(f"{RDMA}/{name}/device/physfn")]


def rdma_ports(tree: Tree) -> Iterator[RdmaPort]:
    """Yield the ports of those devices."""
    for device in rdma_devices(tree):
        for number in tree.names(f"{RDMA}/{device}/ports"):
            yield RdmaPort(device, number)


def link_layer(tree: Tree, port: RdmaPort) -> str:
    """Return InfiniBand, Ethernet or ''."""
    return tree.text(f"{port.path}/link_layer") or ""


def interface_of(tree: Tree, port: RdmaPort) -> str:
    """Return the interface of a port of RoCE, '' if there is none."""
    for index in range(_FIRST_GIDS):
        name = tree.text(f"{port.path}/gid_attrs/ndevs/{index}")
        if name:
            return name
    found = tree.names(f"{RDMA}/{port.device}/device/net")
    return found[0] if len(found) == 1 else ""
