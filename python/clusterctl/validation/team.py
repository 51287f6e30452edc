"""The nodes that take part in a validation, and the node that launches its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launch import hostfile, mpirun_job
from clusterctl.remote import supervised_job
from clusterctl.validation.checks import base, network

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Host


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
    """Nodes that run a check together; ``chosen`` is the launch node of the whole run."""

    nodes: Mapping[str, ReadyNode]
    chosen: str = ""

    @property
    def launch_node(self) -> str:
        """The chosen node, or the first node where the chosen one does not take part."""
        return self.chosen if self.chosen in self.nodes or not self.nodes else next(iter(self.nodes))

    @property
    def version(self) -> str:
        """The release of Open MPI on the launch node."""
        return self.nodes[self.launch_node].facts.artifact("openmpi").version

    @property
    def slots(self) -> dict[str, int]:
        """The ranks of each node, in the order of the hostfile: the launch node first."""
        return dict(hostfile.ordered({name: node.slots for name, node in self.nodes.items()}, self.launch_node))

    @property
    def site(self) -> base.Site:
        """The nodes as a check sees them."""
        nodes = self.nodes
        return base.Site(
            version=self.version,
            slots=self.slots,
            names=self._names(),
            platforms={name: node.facts.platform for name, node in nodes.items()},
            libraries={name: node.facts.artifact("openmpi").target for name, node in nodes.items()},
            cores={name: node.facts.cores for name, node in nodes.items()},
            machines={name: node.facts.boot_id for name, node in nodes.items() if node.facts.boot_id},
            stack={name: node.stack for name, node in nodes.items()},
            fabric={name: way for name, node in nodes.items() if (way := network.path(node.facts))},
        )

    def _names(self) -> dict[str, str]:
        """Return the inventory's name for each name and address that output may have for a node."""
        found: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            own = [entry.address for link in node.facts.interfaces for entry in link.addresses]
            for alias in dict.fromkeys((node.host.address, node.facts.fqdn, *own)):
                found.setdefault(alias, []).append(name)
        unique = {alias: names[0] for alias, names in found.items() if alias and len(names) == 1}  # all have 127.0.0.1
        return {
            **unique,
            **{node.facts.hostname: name for name, node in self.nodes.items()},
            **{name: name for name in self.nodes},
        }

    @property
    def members(self) -> dict[str, mpirun_job.Member]:
        """The nodes as a launch sees them."""
        return {name: mpirun_job.member(node.facts, node.slots, node.as_user) for name, node in self.nodes.items()}

    def only(self, names: Iterable[str]) -> Team:
        """Return the team of these nodes."""
        return Team({name: self.nodes[name] for name in names}, self.chosen)

    def without(self, names: Iterable[str]) -> Team:
        """Return the team that is left when these nodes drop out for the rest of the run."""
        gone = set(names)
        left = Team({name: node for name, node in self.nodes.items() if name not in gone}, self.chosen)
        return Team(left.nodes, left.launch_node)

    def logins(self, control: Path) -> dict[str, supervised_job.JobLogin]:
        """Return how to log in to each node; jobs share the connection to the chosen node in the folder ``control``."""
        return {
            name: supervised_job.JobLogin(node.host, node.as_user, control if name == self.chosen else None)
            for name, node in self.nodes.items()
        }
