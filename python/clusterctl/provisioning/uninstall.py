"""The verb uninstall: every node back to what it was before the first provision.

The story: take the lock, look at every node over one ssh each, and stop where jobs run. Play the playbook in check mode
to learn what goes, show it and ask, then play it for good. Last, the controller forgets the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.model import run_record
from clusterctl.model.events import AskingObserver
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import refusals, software
from clusterctl.provisioning.host_run import HostRun, recorded
from clusterctl.provisioning.look import plain
from clusterctl.provisioning.preview import UninstallPreview
from clusterctl.provisioning.request import HostRequest
from clusterctl.provisioning.task_results import TaskResults
from clusterctl.state import locks, paths, runs, snapshots
from clusterctl.state import software as kept
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


PLAYBOOK = "uninstall"
_NOT_PATHS = frozenset({"artifact", "library", "loader"})  # kinds of watch entries that the module finds by itself


def watched_paths(watch: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths that the last run left, for a node whose own record begins later."""
    return sorted({str(entry["path"]) for entry in watch if entry.get("kind") not in _NOT_PATHS})


def variables(before: Snapshot, hosts: Sequence[str], *, remove_user: bool) -> dict[str, Any]:
    """Return the variables of the playbook.

    Args:
        before: what the last runs left.
        hosts: those to clean.
        remove_user: whether the account goes that was made for jobs.
    """
    places = {name: watched_paths(before.hosts[name].watch) for name in hosts if name in before.hosts}
    return {"uninstall_paths": places, "uninstall_remove_user": remove_user}


def changes(results: TaskResults) -> dict[str, tuple[str, ...]]:
    """Return by host a phrase for each thing that goes or is put back; hosts without any are left out."""
    found = {name: tuple(p for one in its for p in one.changes) for name, its in results.hosts.items()}
    return {name: phrases for name, phrases in found.items() if phrases}


def forget(cluster: str, hosts: Sequence[str]) -> None:
    """Forget what earlier runs left on these hosts; the records of the runs stay."""
    kept.forget_hosts(cluster, hosts)
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
    refusals.check_files(cluster, request.options)
    with locks.HostLock(cluster.selected_hosts, " ".join(request.argv)):
        was_provisioned = has_left_traces(paths.cluster_id(cluster.sources))
        run = runs.start("uninstall", cluster.sources, request.argv, runs.versions())
        with recorded(run), _Uninstall(request, observer, cluster, run) as it:
            return it.go(was_provisioned=was_provisioned)


def has_left_traces(cluster: str) -> bool:
    """Whether a run of this controller changed the nodes of a cluster, also one that was uninstalled since."""
    if snapshots.read(cluster).hosts or kept.sets(cluster):
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
        refused = [refusals.connection_problem(probe.failures[name]) for name in chosen if name in probe.failures]
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
        end = self.play(PLAYBOOK, limit=self.cluster.limit, variables=variables, check=True)
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
        end = self.play(PLAYBOOK, limit=self.cluster.limit, variables=variables)
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
