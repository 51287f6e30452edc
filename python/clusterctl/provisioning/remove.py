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

from clusterctl.inventory import ansible_inventory
from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model import nodeset, run_record
from clusterctl.model.run_record import AskingObserver
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import members, node_ownership, plan, playbook, software
from clusterctl.provisioning.host_run import HostRun, started
from clusterctl.provisioning.look import HostRequest, look, plain, state_of
from clusterctl.provisioning.preview import MembersPreview, UninstallPreview
from clusterctl.provisioning.task_results import TaskResults
from clusterctl.state import paths, runs, snapshots
from clusterctl.support.errors import ConfigError, ExitCode
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from clusterctl.inventory.ansible_inventory import ReadInventory
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.probe import Probe
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
    playbook.check_files(cluster, request.options)
    with (
        started("remove", cluster, request, cluster.hosts) as run,
        _Remove(request, observer, reading, removed, run) as it,
    ):
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
            playbook.connection_problem(failure)
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
            name: playbook.connection_problem(probe.failures[name])
            for name in self._removed.names
            if name in probe.failures
        }
        if self.request.clean and (stop := self._find_what_goes(before)):
            return stop
        if not self.observer.confirm(self._preview()):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        cleaned = [host for host in self._with_them.hosts if self.request.clean and host.name in self._to_clean]
        if stop := self.claim(node_ownership.members_of(self.cluster.hosts, ()), also=cleaned):
            return stop
        return self._play(before, probe)

    def _play(self, before: Snapshot, probe: Probe) -> run_record.RunRecord:
        listed = [host.name for host in self._reading.hosts]
        self.forget(self.cluster.selected)
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
        given = variables(before, names, remove_user=self.request.remove_user)
        return self.play(UNINSTALL_PLAYBOOK, limit=",".join(names), variables=given, check=check)

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
        self._going, self.task_results = changes(self.task_results), TaskResults()
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
        forget(self.run.record.cluster_id, [name for name in self._to_clean if name in done])
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


# --- The verb uninstall: every node back to what it was before the first provision ------------------------------------
#
# The story: take the lock, look at every node over one ssh each, and stop where jobs run. Play the playbook in check
# mode to learn what goes, show it and ask, then play it for good. Last, the controller forgets the nodes.

UNINSTALL_PLAYBOOK = "uninstall"
_NOT_PATHS = frozenset({"artifact", "library", "loader"})  # kinds of watch entries that the module finds by itself


def watched_paths(watch: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths that the last run left, for a node whose own record begins later."""
    return sorted({str(entry["path"]) for entry in watch if entry.get("kind") not in _NOT_PATHS})


def variables(before: Snapshot, hosts: Sequence[str], *, remove_user: bool) -> dict[str, Any]:
    """Return the variables of the playbook.

    ``remove_user`` says whether the account goes that was made for jobs.
    """
    places = {name: watched_paths(before.hosts[name].watch) for name in hosts if name in before.hosts}
    return {"uninstall_paths": places, "uninstall_remove_user": remove_user}


def changes(results: TaskResults) -> dict[str, tuple[str, ...]]:
    """Return by host a phrase for each thing that goes or is put back; hosts without any are left out."""
    found = {name: tuple(p for one in its for p in one.changes) for name, its in results.hosts.items()}
    return {name: phrases for name, phrases in found.items() if phrases}


def forget(cluster: str, hosts: Sequence[str]) -> None:
    """Forget what earlier runs left on these hosts; the records of the runs stay."""
    snapshots.forget_software(cluster, hosts)
    snapshots.forget_hosts(cluster, hosts)


@dataclass(frozen=True, kw_only=True)
class UninstallRequest(HostRequest):
    """What the user asked for; ``remove_user`` is about the account that was made for jobs."""

    remove_user: bool = False
    while_busy: bool = False


def uninstall(request: UninstallRequest, observer: AskingObserver[UninstallPreview]) -> run_record.RunRecord:
    """Put the nodes back to what they were before the first provision.

    Raises:
        ConfigError: the inventory is wrong, the cluster was never provisioned, or another run holds a host; nothing
            was changed.
    """
    observer.phase("reading the inventory")
    cluster = ansible_inventory.load(request.inventory, request.options)
    playbook.check_files(cluster, request.options)
    chosen = cluster.selected_hosts
    with started("uninstall", cluster, request, chosen) as run, _Uninstall(request, observer, cluster, run) as it:
        return it.go(was_provisioned=has_left_traces(run.record.cluster_id))


def has_left_traces(cluster: str) -> bool:
    """Whether a run of this controller changed the nodes of a cluster, also one that was uninstalled since."""
    if snapshots.read(cluster).hosts or snapshots.sets(cluster):
        return True
    for path in paths.runs_dir(cluster).glob(f"*/{paths.run_record(paths.runs_dir(cluster)).name}"):
        try:
            record = run_record.RunRecord.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            continue
        if record.verb in {"provision", "uninstall"} and any(host.changed for host in record.hosts):
            return True
    return False


class _Uninstall(HostRun[UninstallRequest, AskingObserver[UninstallPreview]]):
    """One uninstall, from the lock to the record."""

    def go(self, *, was_provisioned: bool) -> run_record.RunRecord:
        chosen = self.all_selected
        self.observer.phase(f"looking at {len(self.cluster.hosts)} hosts")
        probe = self.look({}, busy=True)
        self.run.facts({name: plain(node) for name, node in probe.facts.items()})
        refused = [playbook.connection_problem(probe.failures[name]) for name in chosen if name in probe.failures]
        if self.can_leave_out(refused):
            self.leave_out(refused)
            chosen, refused = self.cluster.selected, []
        if not refused and not self.request.while_busy:
            links = {name: host.links for name, host in software.present(probe.facts).items() if name in chosen}
            refused = software.at_work(links, probe.facts)
        if refused:
            return self.refuse(refused, unreached=probe.failures)
        variables = self._variables()
        self.observer.phase("finding what clusterctl brought")
        end = self.play(UNINSTALL_PLAYBOOK, limit=self.cluster.limit, variables=variables, check=True)
        if end.status != "successful" or end.rc != 0:
            if end.status == "canceled" or end.failed or not self.can_leave_out(self.task_results.unreached(end)):
                record = self.judge(end)
                return self.run.update(message=f"{record.message} Nothing was changed.".strip())
            self.leave_out(self.task_results.unreached(end))  # only Ansible can reach these hosts
        ahead = changes(self.task_results)
        if not ahead:
            return self._nothing(was_provisioned=was_provisioned)
        if self.request.check:
            return self.judge(end)
        if not self.observer.confirm(UninstallPreview(self.cluster.sources, ahead, self.task_results.messages())):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        return self._remove(variables)

    def _variables(self) -> dict[str, Any]:
        before = snapshots.read(self.run.record.cluster_id)
        return variables(before, self.cluster.selected, remove_user=self.request.remove_user)

    def _nothing(self, *, was_provisioned: bool) -> run_record.RunRecord:
        if not was_provisioned:
            raise ConfigError(
                f"{self.cluster.sources.shown} was never provisioned, so there is nothing to uninstall; check the "
                "name of the inventory."
            )
        told = self.task_results.messages()
        if not self.request.check:
            self._forget(self.cluster.selected)
        words = ("Nothing to do: the nodes are as they were before clusterctl.", *told)
        others = ("Nothing to do on the other hosts: they are as they were before clusterctl.", *told)
        return self.nothing_to_do(" ".join(words), " ".join(others))

    def _remove(self, variables: Mapping[str, Any]) -> run_record.RunRecord:
        if stop := self.claim(None):
            return stop
        chosen = self.cluster.selected
        snapshots.forget_hosts(self.run.record.cluster_id, chosen)
        self.run.update(reasons=dict.fromkeys(chosen, "an uninstall"))
        self.task_results = TaskResults()
        end = self.play(UNINSTALL_PLAYBOOK, limit=self.cluster.limit, variables=variables)
        others = [host.name for host in self.cluster.hosts if host.name not in self.all_selected]
        if others:
            remove = f"'clusterctl remove {self.cluster.sources.shown} {' '.join(chosen)}'"
            words = f"The other nodes still know {', '.join(chosen)}: {remove} takes the names and keys from them."
            self.messages = (words,)
        record = self.judge(end)
        self._forget([host.host for host in record.hosts if host.outcome in {"ok", "changed"}])
        return record

    def _forget(self, hosts: Sequence[str]) -> None:
        cluster = self.run.record.cluster_id
        forget(cluster, hosts)
        known = snapshots.read(cluster)
        if known.members and not known.hosts:
            snapshots.write(cluster, Snapshot())
