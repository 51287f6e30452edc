# SPDX-License-Identifier: Apache-2.0
"""Types of the choice of a network: networks, rejections, results of the probe, and the decision."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Literal, Mapping, NamedTuple, Optional, Tuple

Facts = Mapping[str, Any]
PairKind = Literal["ok", "refused", "timeout", "wrong_source", "wrong_node", "error"]

KIND_WORDS = {
    "refused": "connection refused",
    "timeout": "timed out",
    "wrong_source": "arrived from another address",
    "wrong_node": "another node answered",
    "error": "failed",
}


class FabricError(Exception):
    """The user's pin does not fit the nodes; the message names the cause and the cure.

    ``hosts`` lack what was pinned. It is empty if the pin itself is malformed.
    """

    def __init__(self, message: str, hosts: Iterable[str] = ()) -> None:
        """Keep the hosts beside the message."""
        super().__init__(message)
        self.hosts = tuple(hosts)


class Network(NamedTuple):
    """A network that every node has an address in.

    ``interfaces`` and ``addresses`` are by host. ``speed_mbps`` is their slowest speed and ``mtu`` their smallest MTU,
    None if it is unknown. Several CIDRs are subnets joined by routing.
    """

    cidrs: Tuple[str, ...]
    interfaces: Dict[str, str]
    addresses: Dict[str, str]
    speed_mbps: Optional[int] = None
    mtu: Optional[int] = None

    @property
    def key(self) -> str:
        """The name of the network in results of the probe."""
        return ",".join(self.cidrs)


class Rejection(NamedTuple):
    """A network or interface ("docker0 172.17.0.0/16") that is not taken, its hosts, and why."""

    network: str
    hosts: Tuple[str, ...]
    reason: str


class Candidates(NamedTuple):
    """Networks to probe, the best one first, and those that were rejected before; ``pinned``: the user chose."""

    networks: Tuple[Network, ...]
    rejected: Tuple[Rejection, ...]
    pinned: bool = False


class PairResult(NamedTuple):
    """The result of one connection between two hosts, in the network of that key."""

    network: str
    source: str
    target: str
    problem: str = ""
    kind: PairKind = "ok"


class Decision(NamedTuple):
    """The network to use, or None and why; ``failures`` are the connections that did not come through."""

    network: Optional[Network]
    rejected: Tuple[Rejection, ...]
    failures: Tuple[PairResult, ...]
    pinned: bool
    reason: str


class RdmaChoice(NamedTuple):
    """What a port of an RDMA device offers.

    ``gid_index`` is the entry that is RoCE v2 and maps an IPv4 address. It is None on InfiniBand, on a port that is
    down, and without such an entry. ``reason`` says which.
    """

    device: str
    port: int
    link_layer: str
    state: str
    rate_gbps: Optional[float]
    gid_index: Optional[int]
    gid: str
    reason: str
    usable: bool = False
