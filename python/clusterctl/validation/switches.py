"""The switches that the links of nodes for jobs hang on, from the facts of the nodes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from clusterctl.validation.checks import network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.facts import NodeFacts, SwitchPort

_SUBNET = "subnet"


def of_nodes(nodes: Mapping[str, NodeFacts], rdma: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the names of the switches of each node, sorted; a node of which none is known is left out.

    A neighbour that is itself a node is not a switch. Where two switches of the cluster have one name, the id of each
    is part of its name.

    Args:
        nodes: the facts of each node.
        rdma: the RDMA ports of each node that jobs can use, ``mlx5_0:1``.
    """
    hosts = {*nodes, *(facts.hostname for facts in nodes.values()), *(facts.fqdn for facts in nodes.values())}
    own = {
        name: [port for port in _of_jobs(facts, rdma.get(name, ())) if port.switch not in hosts]
        for name, facts in nodes.items()
    }
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for ports in own.values():
        for port in ports:
            ids[port.switch].add(port.id)
    return {
        name: tuple(sorted({_name(port, ids[port.switch]) for port in ports})) for name, ports in own.items() if ports
    }


def _of_jobs(node: NodeFacts, rdma: tuple[str, ...]) -> list[SwitchPort]:
    """Return the ports of InfiniBand where jobs can use it, else those below the interfaces of the fabric and RoCE.

    Where jobs can use InfiniBand and the subnet told nothing, the switches of Ethernet say nothing about it.
    """
    used = [port for device in node.rdma for port in device.ports if f"{device.name}:{port.number}" in rdma]
    if any(port.link_layer == "InfiniBand" for port in used):
        return [port for port in node.switch_ports if port.source == _SUBNET and port.interface in rdma]
    path = network.path(node)
    wanted = {*(port.netdev for port in used), *(path.interfaces if path is not None else ())}
    return [
        port
        for port in node.switch_ports
        if port.source != _SUBNET and not wanted.isdisjoint((port.interface, *port.above))
    ]


def _name(port: SwitchPort, ids: set[str]) -> str:
    return port.switch if len(ids) == 1 or port.switch == port.id else f"{port.switch} ({port.id})"
