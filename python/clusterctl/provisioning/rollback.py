"""The verb rollback: every link of the software back to the folder to which it led after an earlier run.

The story: find the run, take the lock, look at every node over one ssh each. Stop with one table if a folder is gone or
damaged, or if jobs run. Write down the hold, switch all links on all nodes, and keep the snapshots true.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.model import run_record
from clusterctl.model.hosts import InventorySources
from clusterctl.model.run_record import AskingObserver
from clusterctl.model.snapshot import Hold
from clusterctl.provisioning import plan, playbook, software
from clusterctl.provisioning.host_run import HostRun, now, started
from clusterctl.provisioning.look import HostRequest, plain
from clusterctl.provisioning.preview import SwitchPreview
from clusterctl.state import locks, paths, snapshots
from clusterctl.state.history import rows
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.hosts import AnyInventory, InventoryOptions
    from clusterctl.model.snapshot import HostSoftware, Links, Snapshot, SoftwareSet

PLAYBOOK = "switch_links"


@dataclass(frozen=True, kw_only=True)
class RollbackRequest(HostRequest):
    """What the user asked for; ``run`` is the name of the run to go back to, None for the one before."""

    run: str | None = None
    while_busy: bool = False


def rollback(request: RollbackRequest, observer: AskingObserver[SwitchPreview]) -> run_record.RunRecord:
    """Go back to the links that an earlier run left, on all hosts or on none.

    Raises:
        ConfigError: the inventory or the run is wrong, there is nothing to go back to, or another run holds a host;
            nothing was changed.
    """
    observer.phase("reading the inventory")
    cluster = ansible_inventory.load(request.inventory, request.options)
    playbook.check_files(cluster, request.options)
    name = paths.cluster_id(cluster.sources)
    wanted = None if request.run is None else named(request.run, name, cluster.sources)
    with locks.HostLock(cluster.selected_hosts, " ".join(request.argv)):
        sets = snapshots.sets(name)
        if not sets:
            raise ConfigError(_nothing(cluster.sources, "no run of it has left a set of links yet"))
        with started("rollback", cluster, request) as run, _Rollback(request, observer, cluster, run) as it:
            return it.go(sets, wanted)


def release(inventory: AnyInventory, options: InventoryOptions | None = None) -> bool:
    """End the hold of a cluster, so that the next ``provision`` installs what the inventory asks for.

    Returns:
        Whether there was one.

    Raises:
        ConfigError: the inventory is missing, or has to be read and cannot be.
    """
    sources = InventorySources.of(inventory)
    ansible_inventory.refuse_missing(sources)
    cluster = ansible_inventory.Cluster(sources, options).id
    held = paths.hold_file(cluster).exists()
    snapshots.write_hold(cluster, None)
    return held


def named(name: str, cluster: str, inventory: InventorySources) -> SoftwareSet:
    """Return the set of links that a run left which the user names as everywhere.

    Raises:
        ConfigError: the run is unknown, belongs to another inventory, or left no set of links.
    """
    sets = snapshots.sets(cluster)
    run_id = _id_of_path(name, cluster, inventory) or name
    ids = [found.run_id for found in sets]
    if ids and (rows.is_last(run_id) or any(known.startswith(run_id) for known in ids if run_id)):
        return sets[rows.choose(run_id, ids, f"the runs of {inventory.shown} that left a set of links")]
    others = sorted(place.name for place in paths.clusters_dir().glob("*/runs/*") if place.is_dir())
    if run_id and not rows.is_last(run_id) and any(other.startswith(run_id) for other in others):
        own = sorted(place.name for place in paths.runs_dir(cluster).glob(f"{glob.escape(run_id)}*"))
        if not own:
            raise ConfigError(f"The run '{name}' is of another inventory than {inventory.shown}; name one of its own.")
        before = [found for found in sets if found.run_id < own[0]]
        if before and len(own) == 1 and _found_all_well(paths.runs_dir(cluster) / own[0]):
            return before[0]
        raise ConfigError(
            f"The run '{name}' left no set of links: it was partial, did not end well, or is of an older clusterctl. "
            f"{_known(ids)}"
        )
    if not ids:
        raise ConfigError(_nothing(inventory, "no run of it has left a set of links yet"))
    raise ConfigError(f"The run '{name}' is unknown. {_known(ids)}")


def _found_all_well(folder: Path) -> bool:
    """Whether a run was a provision with nothing to do: then the set of the run before it was in force."""
    try:
        record = run_record.RunRecord.model_validate_json(paths.run_record(folder).read_bytes())
    except (OSError, ValueError):
        return False
    return record.verb == "provision" and record.outcome == "nothing to do"


def _known(ids: Sequence[str]) -> str:
    return f"Runs to go back to: {', '.join(ids[:4]) or 'none yet'}."


def _id_of_path(name: str, cluster: str, inventory: InventorySources) -> str:
    """Return the id of a run that is named by its folder or by a file in it; '' where it is named otherwise."""
    if "/" not in name and not name.endswith(".json"):
        return ""
    place = Path(name).resolve()
    folder = place if place.is_dir() else place.parent
    if not paths.run_record(folder).is_file():
        raise ConfigError(f"{name} is not the folder of a run, nor a record in it; give the id of a run.")
    if folder.parent != paths.runs_dir(cluster).resolve():
        raise ConfigError(f"The run {name} is of another inventory than {inventory.shown}; name one of its own.")
    return folder.name


def _nothing(inventory: InventorySources, why: str) -> str:
    return f"There is nothing to go back to for {inventory.shown}: {why}. 'clusterctl provision' installs any version."


class _Rollback(HostRun[RollbackRequest, AskingObserver[SwitchPreview]]):
    """One rollback, from the lock to the record."""

    def go(self, sets: Sequence[SoftwareSet], asked: SoftwareSet | None) -> run_record.RunRecord:
        self.observer.phase(f"looking at {len(self.cluster.hosts)} hosts")
        probe = self.look({}, busy=True)
        self.run.facts({name: plain(node) for name, node in probe.facts.items()})
        refused = [playbook.connection_problem(failure) for failure in probe.failures.values()]
        if refused:
            return self.refuse(refused, unreached=probe.failures)
        hold = snapshots.hold(self.run.record.cluster_id)
        hosts = software.present(probe.facts)
        target = asked or software.earlier(sets, hosts, hold)
        if target is None:
            raise ConfigError(_nothing(self.cluster.sources, "no earlier run left other links"))
        wanted = software.wanted_links(target, self.cluster.selected, hosts)
        cure = f"'clusterctl provision' with {{tree}} installs it{', once the hold is released' if hold else ''}"
        problems = software.missing(target, wanted, probe.facts, cure, snapshots.collected(self.run.record.cluster_id))
        if problems:
            return self.refuse(problems)
        links = {name: of_host for name, of_host in wanted.items() if of_host is not None}
        changed = software.differing(links, hosts)
        if not changed and not (hold and hold.software.run_id == target.run_id and not hold.finished):
            words = f"Nothing to do: the links already are those of {target.run_id}."
            return self.finish("nothing to do", ExitCode.OK, hosts=self._all("ok"), message=words)
        if not self.request.while_busy and (at_work := software.at_work(changed, probe.facts)):
            return self.refuse(at_work)
        ahead = SwitchPreview(self.cluster.sources, target.run_id, target.left, _phrases(links, changed))
        if not self.observer.confirm(ahead):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        return self._switch(target, links, hosts, hold)

    def _switch(
        self,
        target: SoftwareSet,
        links: Mapping[str, Links],
        hosts: Mapping[str, HostSoftware],
        hold: Hold | None,
    ) -> run_record.RunRecord:
        """Switch the links. The hold comes first: a run that dies half-way is finished by the next one."""
        if stop := self.claim(None):
            return stop
        before = _with_forgotten(snapshots.read(self.run.record.cluster_id), hold)
        fresh = Hold(software=_whole(target, links, hosts), since=now(), before=before)
        snapshots.write_hold(self.run.record.cluster_id, fresh)
        snapshots.forget_hosts(self.run.record.cluster_id, self.cluster.selected)
        self.run.update(reasons=dict.fromkeys(self.cluster.selected, f"a rollback to {target.run_id}"))
        end = self.play(PLAYBOOK, limit=None, variables=software.variables(links, hosts))
        if end.status == "successful" and end.rc == 0:
            release = f"'clusterctl rollback --release {self.cluster.sources.shown}'"
            self.messages = (
                f"Back at the links of {target.run_id}.",
                f"Held: 'clusterctl provision' leaves the software as it is until {release}.",
            )
            record = self.judge(end)
            self._keep(fresh, before, hosts)
            return record
        record = self.judge(end)
        return self._explain(record, links, hosts, hold)

    def _keep(self, hold: Hold, before: Snapshot, hosts: Mapping[str, HostSoftware]) -> None:
        """Keep the set that this run left, and the snapshots of the hosts with their new links."""
        run_id = self.run.record.run_id
        left = hold.software.model_copy(update={"run_id": run_id, "verb": "rollback", "left": now()})
        snapshots.write_set(self.run.folder, left)
        watch = plan.watch_of(self.task_results.results)
        inputs = plan.held_inputs(hold.software.run_id)
        fresh = {}
        for name, snapshot in before.hosts.items():
            links: tuple[str, ...] = ()
            if name in left.hosts:
                now_there = hosts[name].links if name in hosts else ()
                links = (*left.hosts[name].links, *now_there, *software.links_in(snapshot.watch))
            holds = software.watch_after(snapshot.watch, watch.get(name, ()), links)
            fresh[name] = snapshot.model_copy(
                update={
                    "run_id": run_id,
                    "inputs": {**snapshot.inputs, **inputs},
                    "watch": holds,
                    "damaged": plan.still_watched(snapshot.damaged, holds),
                }
            )
        snapshots.write(self.run.record.cluster_id, before.model_copy(update={"hosts": fresh}))
        snapshots.write_hold(self.run.record.cluster_id, hold.model_copy(update={"finished": True, "before": None}))

    def _explain(
        self,
        record: run_record.RunRecord,
        links: Mapping[str, Links],
        hosts: Mapping[str, HostSoftware],
        hold: Hold | None,
    ) -> run_record.RunRecord:
        """Say where each node is after a switch that failed; without a trace of it, the hold is as before."""
        probe = self.look({})
        present = software.present(probe.facts)
        back = [name for name in hosts if name in present and present[name].links == hosts[name].links]
        there = [name for name in links if name in present and not software.differing({name: links[name]}, present)]
        unknown = [name for name in self.cluster.selected if name not in {*back, *there}]
        again = "'clusterctl rollback' without a run goes on to the same links"
        if len(back) == len(self.cluster.selected):
            snapshots.write_hold(self.run.record.cluster_id, hold)
            words = "The links of all nodes lead where they led before."
        else:
            words = "; ".join(
                f"{text}: {', '.join(names)}"
                for text, names in (("switched", there), ("as before", back), ("not known", unknown))
                if names
            )
            words = f"The links are not the same on all nodes ({words}); {again}."
        return self.run.update(message=f"{record.message} {words}".strip())

    def _all(self, outcome: run_record.HostOutcome) -> list[run_record.HostSummary]:
        return [run_record.HostSummary(host=name, outcome=outcome) for name in self.cluster.selected]


def _with_forgotten(known: Snapshot, hold: Hold | None) -> Snapshot:
    """Return the snapshots, with those that a rollback forgot before it was killed."""
    if hold is None or hold.finished or hold.before is None:
        return known
    return known.model_copy(
        update={"hosts": {**hold.before.hosts, **known.hosts}, "members": known.members or hold.before.members}
    )


def _whole(target: SoftwareSet, links: Mapping[str, Links], hosts: Mapping[str, HostSoftware]) -> SoftwareSet:
    """Return a set with the hosts that the cluster has now."""
    found = dict(target.hosts)
    for name, of_host in links.items():
        known = target.hosts.get(name) or hosts.get(name)
        kept_links = {link: tree for link, tree in of_host.items() if tree}
        if known is not None:
            found[name] = known.model_copy(update={"links": kept_links})
    return target.model_copy(update={"hosts": found})


def _phrases(links: Mapping[str, Links], changed: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return by host what is switched, for a user who may still say no."""
    return {
        name: tuple(f"{link} -> {links[name][link].rpartition('/')[2] or 'nothing'}" for link in of_host)
        for name, of_host in changed.items()
    }
