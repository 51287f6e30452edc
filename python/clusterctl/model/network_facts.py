"""The networks of a node as its probe reads them: interfaces, routes, RDMA ports, and the fabric that was chosen."""

from __future__ import annotations

from typing import Literal

from clusterctl.model.base import NodeFact


class Gid(NodeFact):
    """One entry of a port's GID table; ``type`` is ``IB/RoCE v1`` or ``RoCE v2``, as the kernel writes it."""

    index: int
    gid: str
    type: str = ""
    netdev: str = ""


class RdmaPort(NodeFact):
    """A port of an RDMA device.

    ``state`` and ``physical_state`` are the kernel's words without their number (ACTIVE, DOWN, INIT; LinkUp,
    Disabled, Polling), ``link_layer`` is InfiniBand or Ethernet. Entries of the GID table that are all zero are left
    out. ``rx_bytes`` and ``tx_bytes`` count RDMA's own traffic.
    """

    number: int
    state: str = ""
    physical_state: str = ""
    link_layer: str = ""
    rate_gbps: float | None = None
    netdev: str = ""
    gids: tuple[Gid, ...] = ()
    rx_bytes: int | None = None
    tx_bytes: int | None = None


class RdmaDevice(NodeFact):
    """An RDMA device of /sys/class/infiniband; ``numa`` and ``pci_path`` as a GPU has them."""

    name: str
    driver: str = ""
    node_guid: str = ""
    numa: int = -1
    pci_path: tuple[str, ...] = ()
    ports: tuple[RdmaPort, ...] = ()


class Address(NodeFact):
    """One address of an interface; scope is global, site, link or host. A temporary one is another one tomorrow."""

    family: Literal[4, 6]
    address: str
    prefix: int
    scope: str
    temporary: bool = False


class Interface(NodeFact):
    """A network interface; ``kind`` is physical, bridge, bond, vlan, veth, infiniband, loopback and so on."""

    name: str
    kind: str
    mac: str = ""
    mtu: int | None = None
    up: bool = False
    carrier: bool = False
    speed_mbps: int | None = None
    driver: str = ""
    master: str = ""
    is_function: bool = False  # a virtual function of a card, whose wire it shares
    has_both_ends: bool = False  # of a veth pair whose other end is on this node too
    addresses: tuple[Address, ...] = ()
    rx_bytes: int | None = None  # since the interface came up
    tx_bytes: int | None = None


class Route(NodeFact):
    """A route of the main table; ``gateway`` is None for a network on the link."""

    family: Literal[4, 6]
    destination: str
    gateway: str | None
    interface: str
    metric: int


class FabricCarrier(NodeFact):
    """A network of a node that carries MPI's messages: a rail beside the cluster's network, or a cable."""

    cidr: str
    interface: str
    address: str


class Fabric(NodeFact):
    """What the role ``fabric`` decided for this node and wrote to /etc/clusterctl/fabric.json.

    ``cidrs`` are the cluster's networks for MPI and NCCL, ``interface`` and ``address`` this node's own in them.
    ``proven`` names the nodes with which its connections came through. ``carriers`` carry MPI's messages; without them,
    the cluster's network does.
    """

    cidrs: tuple[str, ...] = ()
    interface: str = ""
    address: str = ""
    proven: tuple[str, ...] = ()
    opened: bool = False  # in the node's firewall
    carriers: tuple[FabricCarrier, ...] = ()


class SwitchPort(NodeFact):
    """The switch, and its port, that an interface (``eth0``) or an InfiniBand port (``mlx5_0:1``) hangs on.

    ``above`` are the interfaces that lie on it, such as a bond. ``id`` is the switch's own: of its chassis, or a GUID.
    """

    interface: str
    above: tuple[str, ...] = ()
    switch: str
    id: str
    port: str = ""
    source: Literal["systemd-networkd", "lldpd", "lldpad", "subnet"]
