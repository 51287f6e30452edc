"""The nodes of a job: read from the inventory, looked at, and refused where they would hurt it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.diagnosis import skew
from clusterctl.jobs import first_look
from clusterctl.launch import mpirun_job
from clusterctl.launch.hostfile_formats import HostfileNode
from clusterctl.model import fabric
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.job_login import through_sudo
from clusterctl.model.nodeset import folded
from clusterctl.model.rank_slots import slots_of
from clusterctl.remote import supervised_job, supervisor_files
from clusterctl.support.errors import ClusterctlError, ConfigError, ExitCode, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.jobs.first_look import FirstLook, WantedFiles
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import AnyInventory, Host, Inventory


_OPENMPI = "openmpi"
_MOST_NAMED = 6


class GateError(ClusterctlError):
    """The nodes differ in what a job must not find different (exit 10)."""

    exit_code = ExitCode.VALIDATION_FAILED


@dataclass(frozen=True)
class TeamOptions:
    """Which nodes of the inventory, where the job is launched (None: on the first), and whether they may not differ.

    ``look`` is one at the same nodes that is under way; without it, one begins. ``project`` has the folder of a
    project's environment on each node, and is empty for the cluster's own.
    """

    inventory: InventoryOptions = field(default_factory=InventoryOptions)
    launch_node: str | None = None
    gate: bool = True
    look: FirstLook | None = None
    project: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobTeam:
    """The nodes of the job; the launch node is one of them."""

    cluster: Inventory
    hosts: Mapping[str, Host]
    facts: Mapping[str, NodeFacts]
    users: Mapping[str, str | None]
    launch_node: str
    control: Path
    wanted: WantedFiles | None = None  # the files of which the facts tell

    def login(self, name: str) -> supervised_job.JobLogin:
        """Return how the job's user is reached on a node."""
        return supervised_job.JobLogin(self.hosts[name], self.users[name], self.control)

    @property
    def logins(self) -> list[supervised_job.JobLogin]:
        """How the job's user is reached on each node."""
        return [self.login(name) for name in self.hosts]

    @property
    def peers(self) -> list[supervised_job.JobLogin]:
        """How the job's user is reached on each node but the launch node."""
        return [self.login(name) for name in self.hosts if name != self.launch_node]

    @property
    def members(self) -> dict[str, mpirun_job.Member]:
        """The nodes as launch lines take them."""
        return {
            name: mpirun_job.member(
                node, slots_of(host := self.hosts[name], node), self.users[name], host.cluster_address
            )
            for name, node in self.facts.items()
        }


@contextlib.contextmanager
def gathered(inventory: AnyInventory, asked: TeamOptions, tell: Callable[[str], None]) -> Iterator[JobTeam]:
    """Yield the nodes, looked at and found fit, with shared connections that end afterwards.

    Raises:
        ConfigError: a node cannot take part.
        GateError: the nodes differ.
        UnreachableError: a node does not answer.
    """
    with contextlib.nullcontext(asked.look) if asked.look else first_look.begun(inventory, asked.inventory) as look:
        cluster, hosts = look.cluster, look.hosts
        launch_node = asked.launch_node or next(iter(hosts))
        if launch_node not in hosts:
            names = ", ".join(list(hosts)[:_MOST_NAMED]) + (" and more" if len(hosts) > _MOST_NAMED else "")
            raise ConfigError(f"The launch node '{launch_node}' is not among the selected hosts: {names}.")
        nodes = _looked(look)
        users = {name: through_sudo(hosts[name], node) for name, node in nodes.items()}
        _refuse_unprovisioned(cluster, nodes)
        _gate(cluster, nodes, asked, tell)
        _refuse_strangers(nodes)
        if asked.project:
            trees = {name: asked.project[name] for name in nodes}
            nodes = {name: node.with_project(trees[name], *trees.values()) for name, node in nodes.items()}
        yield JobTeam(cluster, hosts, nodes, users, launch_node, look.control, look.wanted)


@dataclass(frozen=True)
class AskedNodes:
    """The nodes that have some programs of this clusterctl, and how the job's user is reached there.

    ``users`` are the names of these users. ``problems`` are nodes that do not answer or lack a program.
    """

    logins: Mapping[str, supervised_job.JobLogin]
    users: frozenset[str]
    problems: tuple[ClusterctlError, ...] = ()


def asked(look: FirstLook, programs: Sequence[str]) -> AskedNodes:
    """Return the nodes that can be asked by some programs; a node that does not answer stops nothing."""
    probe = look.probe()
    problems: list[ClusterctlError] = [UnreachableError(failure.message) for failure in probe.failures.values()]
    logins, other, users = {}, [], set()
    for name, node in probe.facts.items():
        wanted = supervisor_files.digests(programs, node.layout)
        if wanted.items() <= {str(entry.get("path")): entry.get("sha256") for entry in node.watch}.items():
            user = through_sudo(look.hosts[name], node)
            logins[name] = supervised_job.JobLogin(look.hosts[name], user, look.control)
            users.add(user or node.user.name)
        else:
            other.append(name)
    if other:
        shown = look.cluster.sources.shown
        problems.append(
            ConfigError(f"{folded(other)} lacks this clusterctl's programs; run 'clusterctl provision {shown}' first.")
        )
    return AskedNodes(logins, frozenset(users), tuple(problems))


def of_hostfile(team: JobTeam) -> tuple[HostfileNode, ...]:
    """Return the nodes as another launcher is told them, by the names that mpirun gets."""
    members = team.members
    called = mpirun_job.node_names(members, team.launch_node)
    return tuple(
        HostfileNode(called[name], one.facts.fabric.address if one.facts.fabric else "", one.slots)
        for name, one in members.items()
    )


def _looked(look: FirstLook) -> dict[str, NodeFacts]:
    probe = look.probe()
    if probe.failures:
        whys = [failure.message for failure in probe.failures.values()]
        more = f" And {len(whys) - _MOST_NAMED} more nodes." if len(whys) > _MOST_NAMED else ""
        left = "" if len(whys) == len(look.hosts) else " A run without them: --limit."
        raise UnreachableError(" ".join(whys[:_MOST_NAMED]) + more + left)
    return {name: probe.facts[name] for name in look.hosts}


def _refuse_unprovisioned(cluster: Inventory, nodes: Mapping[str, NodeFacts]) -> None:
    layout = next(iter(nodes.values())).layout
    wanted = supervisor_files.digests(supervisor_files.SUPERVISOR_FILES, layout)
    bare, other = [], []
    for name, node in nodes.items():
        if not node.artifact(_OPENMPI).ok:
            bare.append(name)
        elif not wanted.items() <= {str(entry.get("path")): entry.get("sha256") for entry in node.watch}.items():
            other.append(name)
    cure = f"run 'clusterctl provision {cluster.sources.shown}' first."
    if bare:
        why = nodes[bare[0]].artifact(_OPENMPI).problem or f"{layout.openmpi} does not exist"
        raise ConfigError(f"Open MPI of clusterctl is missing on {folded(bare)} ({why}); {cure}")
    if other:
        raise ConfigError(f"{next(iter(wanted))} on {folded(other)} is not this clusterctl's; {cure}")


def _gate(cluster: Inventory, nodes: Mapping[str, NodeFacts], asked: TeamOptions, tell: Callable[[str], None]) -> None:
    if not asked.gate or len(nodes) < 2:  # noqa: PLR2004 - one node cannot differ
        return
    aligned = {host.name: str(host.variables.get("nccl_align", "framework")) for host in cluster.selected_hosts}
    found = skew.skew(nodes, aligned)
    errors = [finding for finding in found if finding.severity == "error"]
    for finding in found:
        if not errors and finding.severity != "error":
            tell(f"Note: {folded(finding.hosts)}: {finding.cause}; {finding.cure}.")
    if errors:
        words = "; ".join(f"{folded(one.hosts)}: {one.cause} ({one.cure})" for one in errors[:_MOST_NAMED])
        raise GateError(f"The nodes differ: {words}. --no-gate runs it nevertheless.")


def _refuse_strangers(nodes: Mapping[str, NodeFacts]) -> None:
    """Refuse nodes that have no network in common; where the role fabric has been, it has proven one."""
    if len(nodes) < 2 or all(node.fabric for node in nodes.values()):  # noqa: PLR2004 - one node needs none
        return
    found = fabric.candidates(nodes)
    if not found.networks:
        seen = "; ".join(line.strip() for line in fabric.matrix(found))
        raise ConfigError(
            "The nodes have no network in common; give each an address of its own in one, or choose nodes by --limit"
            f" ({seen})."
        )
