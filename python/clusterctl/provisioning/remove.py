"""The verb remove: nodes leave the cluster, and no other node lets them in or knows them any more.

The story: read the inventory and the snapshot, take the lock, look at every node over one ssh each. Stop with one table
if a node that remains does not answer, or if jobs run on a node that leaves. Then play the roles that tell the nodes
about each other, on the nodes that remain, and keep the snapshot true. The nodes that leave are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.model import nodeset, run_record
from clusterctl.provisioning import members, plan, refusals, software
from clusterctl.provisioning.host_run import AskingObserver, HostRequest, HostRun, recorded
from clusterctl.provisioning.look import look, plain, state_of
from clusterctl.provisioning.preview import MembersPreview
from clusterctl.state import locks, paths, runs, snapshots
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from clusterctl.inventory.ansible_inventory import ReadInventory
    from clusterctl.model.facts import NodeFacts, Probe
    from clusterctl.model.snapshot import Snapshot
    from clusterctl.provisioning.members import Removal

PLAYBOOK = "update_members"


@dataclass(frozen=True, kw_only=True)
class RemoveRequest(HostRequest):
    """What the user asked for."""

    nodes: tuple[str, ...]
    launch_node_too: bool = False
    while_busy: bool = False


def remove(request: RemoveRequest, observer: AskingObserver[MembersPreview]) -> run_record.RunRecord:
    """Take nodes out of the cluster.

    Raises:
        ConfigError: the inventory or a node is wrong, or another run holds a host; nothing was changed.
    """
    observer.phase("reading the inventory")
    reading = ansible_inventory.read(request.inventory, request.options)
    whole = reading.inventory()
    before = snapshots.read(paths.cluster_id(whole.sources))
    names = [host.name for host in whole.hosts]
    removed = members.removal(request.nodes, names, before, whole.sources, launch_node_too=request.launch_node_too)
    cluster = reading.inventory(without=removed.outsiders)
    refusals.check_files(cluster, request.options)
    with locks.HostLock(cluster.hosts, " ".join(request.argv)):
        run = runs.start("remove", cluster.sources, request.argv, runs.versions())
        with recorded(run):
            return _Remove(request, observer, reading, removed, run).go()


class _Remove(HostRun[RemoveRequest, AskingObserver[MembersPreview]]):
    """One removal, from the lock to the record."""

    def __init__(
        self,
        request: RemoveRequest,
        observer: AskingObserver[MembersPreview],
        reading: ReadInventory,
        removed: Removal,
        run: runs.Run,
    ) -> None:
        self._removed = removed
        self._reading = reading
        self._with_them = reading.inventory(without=removed.outsiders)
        super().__init__(request, observer, reading.inventory(without=(*removed.outsiders, *removed.names)), run)

    def go(self) -> run_record.RunRecord:
        before = snapshots.read(self.run.record.cluster_id)
        self.observer.phase(f"looking at {len(self._with_them.hosts)} hosts")
        probe = look(self._with_them, {}, busy=True, sudo_password=self.request.become_password)
        self.run.facts({name: plain(node) for name, node in probe.facts.items()})
        refused = [
            refusals.connection_problem(failure)
            for name, failure in probe.failures.items()
            if name in self._removed.remaining
        ]
        if refused:
            return self.refuse(refused, unreached=probe.failures)
        if not before.members and not any(_has_mesh(probe.facts.get(name)) for name in self._removed.remaining):
            names = nodeset.folded(self._removed.names)
            raise ConfigError(
                f"The cluster of {self.cluster.sources} is not provisioned, so no node knows {names}; "
                f"delete {names} from the inventory."
            )
        if not self.request.while_busy and (at_work := self._at_work(probe)):
            return self.refuse(at_work)
        if not self.observer.confirm(self._preview(probe)):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        return self._play(before, probe)

    def _play(self, before: Snapshot, probe: Probe) -> run_record.RunRecord:
        listed = [host.name for host in self._reading.hosts]
        snapshots.forget_hosts(self.run.record.cluster_id, self.cluster.selected)
        why = f"{nodeset.folded(self._removed.names)} leaves the cluster"
        self.run.update(reasons=dict.fromkeys(self.cluster.selected, why))
        left_out = [name for name in listed if name not in self._removed.remaining]
        end = self.play(PLAYBOOK, limit=self.cluster.limit, variables={"preflight_left_out": left_out})
        dead = [name for name in self._removed.names if name in probe.failures]
        self.told = members.told(self._removed, listed, dead, self.cluster.sources)
        record = self.judge(end)
        if record.exit_code == ExitCode.OK:
            self._keep(before, probe)
        return record

    def _keep(self, before: Snapshot, probe: Probe) -> None:
        """Keep the snapshot of the cluster without the hosts that left."""
        removed, read = self._removed, self._reading.inventory
        alike = {read(without=others): read(without=(*others, *removed.names)) for others in self._outsiders(before)}
        left = members.Left(
            run_id=self.run.record.run_id,
            members=self.tally.members(),
            states={name: state_of(node) for name, node in probe.facts.items()},
            watch=plan.watch_of(self.tally.results),
            digests={with_them.digest: without.digest for with_them, without in alike.items()},
        )
        snapshots.write(self.run.record.cluster_id, members.snapshot_after(before, removed, left))

    def _outsiders(self, before: Snapshot) -> tuple[tuple[str, ...], ...]:
        """Return which hosts an earlier run may have taken for outsiders."""
        return (), before.removed, self._removed.outsiders

    def _at_work(self, probe: Probe) -> list[run_record.Problem]:
        leaving = {name: probe.facts[name] for name in self._removed.names if name in probe.facts}
        links = {name: [found.link for found in node.artifacts if found.link] for name, node in leaving.items()}
        return software.at_work(links, leaving)

    def _preview(self, probe: Probe) -> MembersPreview:
        removed, sources = self._removed, self.cluster.sources
        dead = [name for name in removed.names if name in probe.failures]
        lines = [
            f"{sources}: {nodeset.folded(removed.names)} leaves the cluster.",
            f"  forget    {nodeset.folded(removed.remaining)}: its key, its host key, its name and its addresses",
        ]
        if dead:
            lines.append(f"  dead      {nodeset.folded(dead)}: it does not answer")
        if removed.remaining[0] != next(host.name for host in self._with_them.hosts):
            lines.append(f"  launch    {removed.remaining[0]}: it becomes the launch node")
        return MembersPreview(tuple(lines))


def _has_mesh(node: NodeFacts | None) -> bool:
    return bool(node and node.known_hosts and node.known_hosts.has_mesh)
