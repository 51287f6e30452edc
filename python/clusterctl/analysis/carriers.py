"""What a node's counters say of traffic: interfaces and RDMA ports, with every byte counted once.

``clusterctl launch`` imports this module, so it needs the standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FabricPath:
    """The interfaces of a node that reach the cluster's networks, the chosen one first, and these networks.

    ``rails`` are those of its interfaces that share MPI's messages. ``cables`` carry them in place of the chosen one.
    """

    interfaces: tuple[str, ...]
    cidrs: tuple[str, ...] = ()
    rails: tuple[str, ...] = ()
    cables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Carrier:
    """An interface or an RDMA port of a node, and by how much its counters rose.

    ``below`` are the interfaces that count an interface's bytes as well (a bond's members); of an RDMA port they are
    its network interfaces.
    """

    name: str
    rx_bytes: float
    tx_bytes: float
    below: tuple[str, ...] = ()
    link_layer: str = ""

    @property
    def is_rdma(self) -> bool:
        return bool(self.link_layer)


def without_doubles(counted: Sequence[Carrier]) -> tuple[Carrier, ...]:
    """Return carriers whose bytes are counted once: on a bond, and not on its members as well."""
    return tuple(_own(one, counted) for one in counted)


def carrier(name: str, rx_bytes: float, tx_bytes: float, words: str) -> Carrier:
    """Return a carrier; ``words`` are those of ``port_counters.relations`` on the node."""
    first, _, below = words.partition(" ")
    return Carrier(name, rx_bytes, tx_bytes, tuple(below.split()), "" if first in {"", "over"} else first)


def _own(carrier: Carrier, counted: Sequence[Carrier]) -> Carrier:
    """Return the carrier without the bytes of carriers above it."""
    above = [other for other in counted if _lies_on(other, carrier)]
    rx = carrier.rx_bytes - sum(other.rx_bytes for other in above)
    tx = carrier.tx_bytes - sum(other.tx_bytes for other in above)
    return Carrier(carrier.name, max(0.0, rx), max(0.0, tx), carrier.below, carrier.link_layer)


def _lies_on(upper: Carrier, lower: Carrier) -> bool:
    """Whether the lower carrier counts the bytes of the upper one as well.

    IP over InfiniBand goes through the port. RDMA over Ethernet bypasses the interface, or is counted there, too.
    """
    if lower.link_layer == "InfiniBand":
        return upper.name in lower.below
    return lower.name in upper.below and upper.link_layer != "InfiniBand"


def of_fabric(fabric: FabricPath, carriers: Sequence[Carrier]) -> tuple[Carrier, ...]:
    """Return the carriers of the fabric: its interfaces, and the RDMA ports behind them."""
    behind = set(fabric.interfaces)
    for _ in carriers:  # a VLAN on a bond on two ports: as deep as there are carriers, at most
        behind |= {name for carrier in carriers if carrier.name in behind for name in carrier.below}
    return tuple(
        carrier
        for carrier in carriers
        if carrier.name in fabric.interfaces or (carrier.is_rdma and behind & set(carrier.below))
    )
