"""The nodes that take part in a validation, and the node that launches its jobs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.analysis.nccl_path import GidTable
from clusterctl.launch import local_facts, mpirun, mpirun_job
from clusterctl.model import fabric
from clusterctl.model.rank_slots import usable_cores
from clusterctl.remote import supervised_job
from clusterctl.validation.checks import base, network

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Host
    from clusterctl.model.network_facts import SwitchPort


# The switches that the links of nodes for jobs hang on, from the facts of the nodes.

_SUBNET = "subnet"


def of_nodes(nodes: Mapping[str, NodeFacts], rdma: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the names of the switches of each node, sorted; a node of which none is known is left out.

    A neighbour that is itself a node is not a switch. Where two switches of the cluster have one name, the id of each
    is part of its name. ``rdma`` has the RDMA ports of each node that jobs can use, ``mlx5_0:1``.
    """
    names = {*nodes, *(facts.hostname for facts in nodes.values()), *(facts.fqdn for facts in nodes.values())}
    hosts = {name.lower() for name in names}
    own = {
        name: [port for port in _of_jobs(facts, rdma.get(name, ())) if port.switch.lower() not in hosts]
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


def rdma_ports(node: NodeFacts) -> tuple[str, ...]:
    """Return the RDMA ports that jobs can use, ``mlx5_0:1``: those that are up, of the fastest rate and kind."""
    usable = [port for port in fabric.rdma(node) if port.usable and port.state == "ACTIVE"]
    if not usable:
        return ()
    best = max(usable, key=lambda port: (port.rate_gbps or 0.0, port.link_layer == "InfiniBand"))
    kind = (best.rate_gbps, best.link_layer)
    return tuple(f"{port.device}:{port.port}" for port in usable if (port.rate_gbps, port.link_layer) == kind)


def gid_tables(node: NodeFacts) -> dict[str, GidTable]:
    """Return the GIDs of a node's RoCE ports, where one of them is RoCE v2 for IPv4."""
    right = {(one.device, one.port): one for one in fabric.rdma(node) if one.gid_index is not None}
    found = {}
    for device in node.rdma:
        for port in device.ports:
            chosen = right.get((device.name, port.number))
            if chosen is not None and chosen.gid_index is not None:
                unfit = {
                    gid.index: gid.type if gid.type != "RoCE v2" else "link-local"
                    for gid in port.gids
                    if gid.type != "RoCE v2" or gid.gid.startswith("fe80")
                }
                found[f"{device.name}:{port.number}"] = GidTable(chosen.gid_index, chosen.gid, unfit)
    return found


def path_settings(node: NodeFacts) -> dict[str, str]:
    """Return where a node sets variables of NCCL and Gloo, by their names."""
    return {one.name: one.source for one in node.parameters if one.name.startswith(local_facts.PATH_VARIABLES)}


def mpi_networks(node: NodeFacts) -> dict[str, tuple[str, str]]:
    """Return the settings of others by which Open MPI chooses networks, by their names: value and place."""
    wanted = {prefix + name for name in network.CHOOSING for prefix in ("", "OMPI_MCA_")}
    return {one.name: (one.value, one.source) for one in node.parameters if one.name in wanted}


@dataclass(frozen=True)
class ReadyNode:
    """A node on which ranks can run."""

    host: Host
    facts: NodeFacts
    stack: NodeStack
    slots: int
    as_user: str | None

    @property
    def fabric(self) -> str:
        """The interface and the networks that carry its jobs, empty without a fabric record."""
        record = self.facts.fabric
        return " ".join((record.interface, *record.cidrs)) if record is not None else ""


@dataclass(frozen=True)
class Team:
    """Nodes that run a check together.

    ``chosen`` is the launch node of the whole run. ``outside`` is a node that launches without ranks of its own.
    """

    nodes: Mapping[str, ReadyNode]
    chosen: str = ""
    outside: ReadyNode | None = None

    @property
    def launch_node(self) -> str:
        """The chosen node, or the first node where the chosen one does not take part and is not ``outside``."""
        if self.outside is not None:
            return self.outside.host.name
        return self.chosen if self.chosen in self.nodes or not self.nodes else next(iter(self.nodes))

    @property
    def _first(self) -> ReadyNode:
        return self.outside or self.nodes[self.launch_node]

    @property
    def _reached(self) -> dict[str, ReadyNode]:
        """The nodes with ranks, and the one that launches."""
        return {**self.nodes, **({self.outside.host.name: self.outside} if self.outside else {})}

    @property
    def version(self) -> str:
        """The release of Open MPI on the launch node."""
        return self._first.facts.artifact("openmpi").version

    @property
    def slots(self) -> dict[str, int]:
        """The ranks of each node, in the order of the hostfile: the launch node first."""
        return dict(mpirun.ordered({name: node.slots for name, node in self.nodes.items()}, self.launch_node))

    @property
    def site(self) -> base.Site:
        """The nodes as a check sees them."""
        nodes = self.nodes
        return base.Site(
            version=self.version,
            layout=self._first.facts.layout,
            slots=self.slots,
            names=self._names(),
            platforms={name: node.facts.platform for name, node in nodes.items()},
            libraries={name: node.facts.artifact("openmpi").library_folder for name, node in nodes.items()},
            cores={name: usable_cores(node.facts) for name, node in nodes.items()},
            machines={name: node.facts.boot_id for name, node in nodes.items() if node.facts.boot_id},
            stack={name: node.stack for name, node in nodes.items()},
            rdma={name: ports for name, node in nodes.items() if (ports := rdma_ports(node.facts))},
            gids={name: gid_tables(node.facts) for name, node in nodes.items()},
            gpus={name: node.facts.gpus[0].name for name, node in nodes.items() if node.facts.gpus},
            settings={name: path_settings(node.facts) for name, node in nodes.items()},
            mpi_networks={name: mpi_networks(node.facts) for name, node in nodes.items()},
            fabric={name: way for name, node in nodes.items() if (way := network.path(node.facts))},
            switches=of_nodes(
                {name: node.facts for name, node in nodes.items()},
                {name: rdma_ports(node.facts) for name, node in nodes.items()},
            ),
        )

    def _names(self) -> dict[str, str]:
        """Return the inventory's name for each name and address that output may have for a node."""
        found: dict[str, list[str]] = {}
        for name, node in self._reached.items():
            own = [entry.address for link in node.facts.interfaces for entry in link.addresses]
            called = (node.host.step.node,) if node.host.step is not None else ()
            for alias in dict.fromkeys((*called, node.host.address, node.facts.fqdn, *own)):
                found.setdefault(alias, []).append(name)
        unique = {alias: names[0] for alias, names in found.items() if alias and len(names) == 1}  # all have 127.0.0.1
        return {
            **unique,
            **{node.facts.hostname: name for name, node in self._reached.items()},
            **{name: name for name in self._reached},
        }

    @property
    def members(self) -> dict[str, mpirun_job.Member]:
        """The nodes as a launch sees them."""
        return {
            name: mpirun_job.member(
                node.facts,
                node.slots,
                node.as_user,
                node.host.cluster_address,
                node.host.step.node if node.host.step is not None else "",
            )
            for name, node in self.nodes.items()
        }

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that mpirun needs on the launch node, with the allocation's where it is in one."""
        first = self._first
        allocation = dict(first.host.step.variables) if first.host.step is not None else {}
        own = mpirun.environment(self.version, mpirun_job.member(first.facts, 0, first.as_user).job_user)
        return {**allocation, **own}

    def only(self, names: Iterable[str]) -> Team:
        return Team({name: self.nodes[name] for name in names}, self.chosen)

    def launched_by(self, launcher: str, names: Iterable[str]) -> Team:
        """Return the team of these nodes, launched by a node of this team; it has ranks only if it is one of them."""
        nodes = {name: self.nodes[name] for name in names}
        return Team(nodes, launcher, None if launcher in nodes else self.nodes[launcher])

    def without(self, names: Iterable[str]) -> Team:
        """Return the team that is left when these nodes drop out for the rest of the run."""
        gone = set(names)
        left = Team({name: node for name, node in self.nodes.items() if name not in gone}, self.chosen)
        return Team(left.nodes, left.launch_node)

    def logins(self, control: Path) -> dict[str, supervised_job.JobLogin]:
        """Return how to log in to each node; jobs share the connection to the chosen node in the folder ``control``."""
        return {
            name: supervised_job.JobLogin(node.host, node.as_user, control if name == self.chosen else None)
            for name, node in self._reached.items()
        }
