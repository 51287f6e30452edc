"""The verb remove: nodes leave the cluster, and no other node lets them in or knows them any more.

The story: read the inventory and the snapshot, take the lock, look at every node over one ssh each. Stop with one table
if a node that remains does not answer, or if jobs run on a node that leaves. Then play the roles that tell the nodes
about each other, on the nodes that remain, and keep the snapshot true. With ``--clean``, the nodes that leave are put
back to what they were, last: a run that is killed before that leaves a whole cluster, and a repeated one goes on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model import nodeset, run_record
from clusterctl.model.events import AskingObserver
from clusterctl.provisioning import claims, members, plan, refusals, software, uninstall
from clusterctl.provisioning.host_run import HostRun, recorded
from clusterctl.provisioning.look import look, plain, state_of
from clusterctl.provisioning.preview import MembersPreview
from clusterctl.provisioning.request import HostRequest
from clusterctl.provisioning.task_results import TaskResults
from clusterctl.state import locks, paths, runs, snapshots
from clusterctl.support.errors import ConfigError, ExitCode
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from clusterctl.inventory.ansible_inventory import ReadInventory
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.probe import Probe
    from clusterctl.model.snapshot import Snapshot
    from clusterctl.provisioning import playbook
    from clusterctl.provisioning.members import Removal

PLAYBOOK = "update_members"
_MOST_PHRASES = 6


@dataclass(frozen=True, kw_only=True)
class RemoveRequest(HostRequest):
    """What the user asked for."""

    nodes: tuple[str, ...]
    launch_node_too: bool = False
    while_busy: bool = False
    clean: bool = False  # put the hosts that leave back to what they were before the first provision
    remove_user: bool = False  # with the account that was made for jobs


def remove(request: RemoveRequest, observer: AskingObserver[MembersPreview]) -> run_record.RunRecord:
    """Take nodes out of the cluster.

    Raises:
        ConfigError: the inventory or a node is wrong, or another run holds a host; nothing was changed.
    """
    observer.phase("reading the inventory")
    reading = Cluster.of(request.inventory, request.options).reading
    whole = reading.inventory()
    before = snapshots.read(paths.cluster_id(whole.sources))
    names = [host.name for host in whole.hosts]
    removed = members.removal(request.nodes, names, before, whole.sources, launch_node_too=request.launch_node_too)
    cluster = reading.inventory(without=removed.outsiders)
    unlisted = [name for name in removed.names if name not in names]
    if request.clean and unlisted:
        raise ConfigError(
            f"{nodeset.folded(unlisted)} cannot be cleaned, because {whole.sources} does not name it; add its line "
            "for the removal, or leave out --clean."
        )
    refusals.check_files(cluster, request.options)
    with locks.HostLock(cluster.hosts, " ".join(request.argv)):
        run = runs.start("remove", cluster.sources, request.argv, runs.versions())
        with recorded(run), _Remove(request, observer, reading, removed, run) as it:
            return it.go()


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
        self._dead: dict[str, run_record.Problem] = {}  # hosts that leave and do not answer
        self._going: dict[str, tuple[str, ...]] = {}  # what a cleaning removes or puts back
        self._reading = reading
        self._with_them = reading.inventory(without=removed.outsiders)
        super().__init__(request, observer, reading.inventory(without=(*removed.outsiders, *removed.names)), run)
        self.listed = reading.inventory().hosts

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
        self._dead = {
            name: refusals.connection_problem(probe.failures[name])
            for name in self._removed.names
            if name in probe.failures
        }
        if self.request.clean and (stop := self._find_what_goes(before)):
            return stop
        if not self.observer.confirm(self._preview()):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        cleaned = [host for host in self._with_them.hosts if self.request.clean and host.name in self._to_clean]
        if stop := self.claim(claims.members_of(self.cluster.hosts, ()), also=cleaned):
            return stop
        return self._play(before, probe)

    def _play(self, before: Snapshot, probe: Probe) -> run_record.RunRecord:
        listed = [host.name for host in self._reading.hosts]
        snapshots.forget_hosts(self.run.record.cluster_id, self.cluster.selected)
        why = f"{nodeset.folded(self._removed.names)} leaves the cluster"
        self.run.update(reasons=dict.fromkeys(self.cluster.selected, why))
        left_out = [name for name in listed if name not in self._removed.remaining]
        end = self.play(PLAYBOOK, limit=self.cluster.limit, variables={"preflight_left_out": left_out})
        clean = self.request.clean
        self.messages = members.messages(self._removed, listed, list(self._dead), self.cluster.sources, cleaned=clean)
        if clean and end.status == "successful" and end.rc == 0:
            self._keep(before, probe)
            return self._clean(before, end)
        record = self.judge(end)
        if record.exit_code == ExitCode.OK:
            self._keep(before, probe)
            leaving = {*self._removed.names} & {*probe.facts}
            self.claims.forget(host for host in self._with_them.hosts if host.name in leaving)
        return record

    @property
    def _to_clean(self) -> list[str]:
        return [name for name in self._removed.names if name not in self._dead]

    def _play_cleaning(self, before: Snapshot, *, check: bool) -> playbook.End:
        names = self._to_clean
        given = uninstall.variables(before, names, remove_user=self.request.remove_user)
        return self.play(uninstall.PLAYBOOK, limit=",".join(names), variables=given, check=check)

    def _find_what_goes(self, before: Snapshot) -> run_record.RunRecord | None:
        """Find what a cleaning removes; returns the record of a run that cannot go on."""
        if not self._to_clean:
            return None
        self.observer.phase(f"finding what clusterctl brought to {nodeset.folded(self._to_clean)}")
        end = self._play_cleaning(before, check=True)
        if end.failed:
            return self.refuse(self.task_results.failures(end))
        if end.status == "canceled" or (end.rc != 0 and not end.unreachable):
            record = self.judge(end)
            return self.run.update(message=f"{record.message} Nothing was changed.".strip())
        # Only Ansible can reach some hosts.
        self._dead |= {problem.host: problem for problem in self.task_results.unreached(end)}
        self._going, self.task_results = uninstall.changes(self.task_results), TaskResults()
        return None

    def _clean(self, before: Snapshot, end: playbook.End) -> run_record.RunRecord:
        """Put the hosts that left back to what they were; ``end`` is that of the run on the others."""
        removed = self._removed
        self.cluster = dataclasses.replace(self.cluster, selected=(*removed.remaining, *removed.names))
        self.all_selected = self.cluster.selected
        message = ""
        if self._dead:
            self.leave_out(list(self._dead.values()))
            names, was = nodeset.folded(self._dead), "were" if len(self._dead) > 1 else "was"
            message = f"{nodeset.folded(removed.remaining)} forgot {names}, which {was} not cleaned."
        if self._to_clean:
            self.observer.phase(f"cleaning {nodeset.folded(self._to_clean)}")
            end = self._play_cleaning(before, check=False)
        record = self.judge(end, message=message)
        done = {host.host for host in record.hosts if host.outcome in {"ok", "changed"}}
        uninstall.forget(self.run.record.cluster_id, [name for name in self._to_clean if name in done])
        return record

    def _keep(self, before: Snapshot, probe: Probe) -> None:
        """Keep the snapshot of the cluster without the hosts that left."""
        removed, read = self._removed, self._reading.inventory
        alike = {read(without=others): read(without=(*others, *removed.names)) for others in self._outsiders(before)}
        left = members.Left(
            run_id=self.run.record.run_id,
            members=self.task_results.members(),
            states={name: state_of(node) for name, node in probe.facts.items()},
            watch=plan.watch_of(self.task_results.results),
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

    def _preview(self) -> MembersPreview:
        removed, sources = self._removed, self.cluster.sources
        dead = list(self._dead)
        lines = [
            f"{sources}: {nodeset.folded(removed.names)} leaves the cluster.",
            f"  forget    {nodeset.folded(removed.remaining)}: its key, its host key, its name and its addresses",
        ]
        if dead:
            lines.append(f"  dead      {nodeset.folded(dead)}: it does not answer")
        for name in self._to_clean if self.request.clean else ():
            phrases = self._going.get(name, ())
            lines.append(f"  clean     {name}: {and_more(phrases, _MOST_PHRASES) or 'nothing of clusterctl is there'}")
        if removed.remaining[0] != next(host.name for host in self._with_them.hosts):
            lines.append(f"  launch    {removed.remaining[0]}: it becomes the launch node")
        return MembersPreview(tuple(lines))


def _has_mesh(node: NodeFacts | None) -> bool:
    return bool(node and node.known_hosts and node.known_hosts.has_mesh)
