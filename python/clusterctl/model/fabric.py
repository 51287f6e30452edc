"""Which network carries the cluster's jobs, and what its RDMA ports offer: facts in, decision out; no I/O.

The rules themselves are ``plugins/module_utils/fabric_rules``, which the role ``fabric`` uses as well; here they get
types. How a candidate is proven is :mod:`clusterctl.remote.network_probe`'s.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.facts import NodeFacts

PairKind: TypeAlias = Literal["ok", "refused", "timeout", "wrong_source", "wrong_node", "error"]

_READ = {"interfaces", "routes", "rdma"}


@dataclass(frozen=True)
class Network:
    """A network in which every node has an address of its own.

    ``interfaces`` and ``addresses`` are by host; ``speed_mbps`` is the slowest and ``mtu`` the smallest of them, None
    where no node tells. More than one CIDR: subnets joined by routing.
    """

    cidrs: tuple[str, ...]
    interfaces: Mapping[str, str]
    addresses: Mapping[str, str]
    speed_mbps: int | None = None
    mtu: int | None = None

    @property
    def key(self) -> str:
        """What :attr:`PairResult.network` calls it."""
        return ",".join(self.cidrs)


@dataclass(frozen=True)
class Rejection:
    """A network or interface ("docker0 172.17.0.0/16") that is not taken, the hosts that have it, and why."""

    network: str
    hosts: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Candidates:
    """Networks worth a probe, best first, and what was rejected before; ``pinned``: the user chose."""

    networks: tuple[Network, ...]
    rejected: tuple[Rejection, ...]
    pinned: bool = False


@dataclass(frozen=True)
class PairResult:
    """How one connection from a source host to a target host went, in the network of that key."""

    network: str
    source: str
    target: str
    problem: str = ""
    kind: PairKind = "ok"


@dataclass(frozen=True)
class Decision:
    """The network to use, or None and why; ``failures`` are the connections that did not come through."""

    network: Network | None
    rejected: tuple[Rejection, ...]
    failures: tuple[PairResult, ...]
    pinned: bool
    reason: str


@dataclass(frozen=True)
class RdmaChoice:
    """What a port of an RDMA device offers.

    ``gid_index`` is the entry that is RoCE v2 and maps an IPv4 address; None on InfiniBand, on a port that is down, and
    where there is no such entry. ``reason`` says which.
    """

    device: str
    port: int
    link_layer: str
    state: str
    rate_gbps: float | None
    gid_index: int | None
    gid: str
    reason: str
    usable: bool = field(default=False)


@cache
def _rules() -> Any:
    path = content.root() / "plugins" / "module_utils" / "fabric_rules" / "__init__.py"
    spec = importlib.util.spec_from_file_location("clusterctl_fabric_rules", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be read; reinstall clusterctl.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its own modules are imported relative to it
    spec.loader.exec_module(module)
    return module


def candidates(
    nodes: Mapping[str, NodeFacts], *, cidrs: Sequence[str] = (), interfaces: Sequence[str] = ()
) -> Candidates:
    """Return the networks in which every node has a distinct address that is up, best first.

    Args:
        nodes: facts by host.
        cidrs: take these networks (the variable ``fabric_cidr``).
        interfaces: take, on each node, the first of these interfaces that it has (``fabric_interfaces``).

    Raises:
        ConfigError: what was pinned is malformed, or some node does not have it; the message names the node.
    """
    rules = _rules()
    try:
        found = rules.candidates(_plain(nodes), list(cidrs), list(interfaces))
    except rules.FabricError as error:
        raise ConfigError(str(error)) from None
    return Candidates(
        tuple(_network(one) for one in found.networks),
        tuple(Rejection(*one) for one in found.rejected),
        found.pinned,
    )


def pairs(hosts: Sequence[str], seed: int = 0) -> tuple[tuple[str, str], ...]:
    """Return who connects to whom: all ordered pairs up to 32 hosts, else a connected sample of O(N log N)."""
    found: tuple[tuple[str, str], ...] = _rules().pairs(list(hosts), seed)
    return found


def decide(candidates: Candidates, results: Sequence[PairResult]) -> Decision:
    """Take the best candidate in which every connection came through; without results the candidates are believed."""
    made = _rules().decide(_untyped(candidates), [_untyped_result(one) for one in results])
    return Decision(
        _network(made.network) if made.network else None,
        tuple(Rejection(*one) for one in made.rejected),
        tuple(PairResult(*one) for one in made.failures),
        made.pinned,
        made.reason,
    )


def matrix(candidates: Candidates, results: Sequence[PairResult] = ()) -> tuple[str, ...]:
    """Return, for a human, a line for each network and interface: who has it and why it will not do."""
    lines: tuple[str, ...] = _rules().matrix(_untyped(candidates), [_untyped_result(one) for one in results])
    return lines


def rdma(node: NodeFacts) -> tuple[RdmaChoice, ...]:
    """Return what each port of each RDMA device of a node offers."""
    return tuple(RdmaChoice(*one) for one in _rules().rdma(node.model_dump(include=_READ)))


def _plain(nodes: Mapping[str, NodeFacts]) -> dict[str, dict[str, Any]]:
    return {host: node.model_dump(include=_READ) for host, node in nodes.items()}


def _network(made: Any) -> Network:
    return Network(made.cidrs, made.interfaces, made.addresses, made.speed_mbps, made.mtu)


def _untyped(found: Candidates) -> Any:
    rules = _rules()
    networks = tuple(
        rules.Network(one.cidrs, dict(one.interfaces), dict(one.addresses), one.speed_mbps, one.mtu)
        for one in found.networks
    )
    rejected = tuple(rules.Rejection(one.network, one.hosts, one.reason) for one in found.rejected)
    return rules.Candidates(networks, rejected, found.pinned)


def _untyped_result(one: PairResult) -> Any:
    return _rules().PairResult(one.network, one.source, one.target, one.problem, one.kind)
