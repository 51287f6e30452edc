"""The verb rotate: new mesh keys or new host keys on all nodes, without a moment in which a node is shut out.

The story: read the inventory, take the lock, look at every node over one ssh each. All nodes learn the new keys beside
the old ones, then each node switches, then all nodes forget the old keys. With host keys, the controller does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model import host_keys, nodeset, run_record
from clusterctl.model.events import AskingObserver
from clusterctl.provisioning import claims, members, plan, playbook, refusals
from clusterctl.provisioning.host_run import HostRun, recorded
from clusterctl.provisioning.look import plain, state_of
from clusterctl.provisioning.preview import MembersPreview
from clusterctl.provisioning.request import HostRequest
from clusterctl.remote import host_key
from clusterctl.state import locks, paths, runs, snapshots
from clusterctl.state.certificates import Certificates
from clusterctl.support.errors import ConfigError, ExitCode, HostFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.drift import NodeState
    from clusterctl.model.snapshot import Snapshot

MESH_KEYS, STAGE_HOST_KEYS, SWITCH_HOST_KEYS = "rotate_keys", "stage_host_keys", "switch_host_keys"
_NEXT = "next_host_key"  # what the module host_key returns


@dataclass(frozen=True, kw_only=True)
class RotateRequest(HostRequest):
    """What the user asked for: new host keys, or else new mesh keys."""

    host_keys: bool = False


def rotate(request: RotateRequest, observer: AskingObserver[MembersPreview]) -> run_record.RunRecord:
    """Give all nodes new keys.

    Raises:
        ConfigError: the inventory is wrong or was not provisioned, or another run holds a host; nothing was changed.
    """
    observer.phase("reading the inventory")
    reading = Cluster.of(request.inventory, request.options).reading
    whole = reading.inventory()
    before = snapshots.read(paths.cluster_id(whole.sources))
    known = {str(member.get("name")) for member in before.members}
    left_out = [host.name for host in whole.hosts if host.name not in known]
    if len(left_out) == len(whole.hosts):
        raise ConfigError(f"No run has provisioned {whole.sources}, so no node has such keys; provision it first.")
    cluster = reading.inventory(without=left_out)
    refusals.check_files(cluster, request.options)
    Certificates(cluster).refuse_missing()
    with locks.HostLock(cluster.hosts, " ".join(request.argv)):
        run = runs.start("rotate", cluster.sources, request.argv, runs.versions())
        with recorded(run), _Rotate(request, observer, cluster, run) as it:
            it.listed = whole.hosts
            return it.go(before, left_out)


class _Rotate(HostRun[RotateRequest, AskingObserver[MembersPreview]]):
    """One rotation, from the lock to the record."""

    def go(self, before: Snapshot, left_out: Sequence[str]) -> run_record.RunRecord:
        self.certificates.refuse_unready(self.cluster.selected, anew=True)
        self.observer.phase(f"looking at {len(self.cluster.hosts)} hosts")
        probe = self.look({})
        self.run.facts({name: plain(node) for name, node in probe.facts.items()})
        if probe.failures:
            refused = [refusals.connection_problem(failure) for failure in probe.failures.values()]
            return self.refuse(refused, unreached=probe.failures)
        self.certificates.refuse_lost(probe.facts)
        what = "host keys" if self.request.host_keys else "mesh keys"
        line = f"{self.cluster.sources}: {nodeset.folded(self.cluster.selected)} get new {what}."
        if not self.observer.confirm(MembersPreview((line,))):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        if stop := self.claim(claims.members_of(self.cluster.hosts, ())):
            return stop
        snapshots.forget_hosts(self.run.record.cluster_id, self.cluster.selected)
        self.run.update(reasons=dict.fromkeys(self.cluster.selected, f"a rotation of {what}"))
        variables = {"preflight_left_out": list(left_out)}
        record = self.judge(self._host_keys(variables) if self.request.host_keys else self._mesh_keys(variables))
        if record.exit_code == ExitCode.OK:
            self._keep(before, {name: state_of(node) for name, node in probe.facts.items()})
        return record

    def _mesh_keys(self, variables: Mapping[str, Any]) -> playbook.End:
        return self.play(MESH_KEYS, limit=self.cluster.limit, variables=variables)

    def _host_keys(self, variables: Mapping[str, Any]) -> playbook.End:
        """Stage the new keys, let the controller know them, switch, and let the controller forget the old ones."""
        end = self.play(STAGE_HOST_KEYS, limit=self.cluster.limit, variables=variables)
        if end.status != "successful" or end.rc != 0:
            return end
        fresh = {
            result.host: key
            for result in self.task_results.results
            if (key := host_keys.found_in(str(result.data.get(_NEXT, ""))))
        }
        mute = [name for name in self.cluster.selected if name not in fresh]
        if mute:
            raise HostFailedError(f"{nodeset.folded(mute)} returned no new host key; no node was switched.")
        found = {
            host.name: host_key.known_place(host) for host in self.cluster.hosts if host.by_ssh or host.login_password
        }
        places = {name: place for name, place in found.items() if place is not None}
        for name, place in places.items():
            host_key.keep(place, [*host_key.keys_in(place), fresh[name]])
        end = self.play(SWITCH_HOST_KEYS, limit=self.cluster.limit, variables=variables)
        if end.status == "successful" and end.rc == 0:
            for name, place in places.items():
                others = [key for key in host_key.keys_in(place) if key.type != fresh[name].type]
                host_key.keep(place, [*others, fresh[name]])
            files = sorted({str(place.path) for place in places.values()})
            self.messages = (f"The new host keys are in {', '.join(files)}.",) if files else ()
        return end

    def _keep(self, before: Snapshot, old: Mapping[str, NodeState]) -> None:
        """Keep the snapshots of the hosts with their new keys."""
        now = {name: state_of(node) for name, node in self.look({}).facts.items()}
        watch = plan.watch_of(self.task_results.results)
        left = members.Left(self.run.record.run_id, self.task_results.members(), {**old, **now}, watch, digests={})
        snapshots.write(
            self.run.record.cluster_id, members.snapshot_after_rotation(before, self.cluster.selected, old, left)
        )
