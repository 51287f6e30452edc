"""Types of the RDMA devices of a node, with their ports and GID tables."""

from __future__ import annotations

from clusterctl.model.base import Fact


class Gid(Fact):
    """One entry of a port's GID table; ``type`` is ``IB/RoCE v1`` or ``RoCE v2``, as the kernel writes it."""

    index: int
    gid: str
    type: str = ""
    netdev: str = ""


class RdmaPort(Fact):
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


class RdmaDevice(Fact):
    """An RDMA device of /sys/class/infiniband; ``numa`` and ``pci_path`` as a GPU has them."""

    name: str
    driver: str = ""
    node_guid: str = ""
    numa: int = -1
    pci_path: tuple[str, ...] = ()
    ports: tuple[RdmaPort, ...] = ()
