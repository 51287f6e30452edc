"""The verb replace: a machine that was installed anew under the same name takes its place in the cluster again.

The story: ask the node for its host key, and have it confirmed. Put it into known_hosts, look at every node over one
ssh each, tell all nodes about the new machine, and install the software on it alone. The other nodes work on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model import host_keys, nodeset, run_record
from clusterctl.model.run_record import AskingObserver, RunObserver
from clusterctl.provisioning import batches_and_losses, members, node_ownership, plan, playbook, software
from clusterctl.provisioning.host_run import HostRun, started
from clusterctl.provisioning.look import HostRequest, plain, state_of
from clusterctl.provisioning.preview import MembersPreview
from clusterctl.provisioning.software import SoftwareHold
from clusterctl.remote import host_key
from clusterctl.state import clusters, locks, paths, runs, snapshots
from clusterctl.state.certificate_status import Certificates
from clusterctl.support.errors import ConfigError, ExitCode, HostFailedError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from clusterctl.model.host_keys import HostKey
    from clusterctl.model.hosts import Host, Inventory
    from clusterctl.model.probe import Probe
    from clusterctl.model.snapshot import NodeState, Snapshot
    from clusterctl.remote.host_key import KnownPlace


_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class ReplaceRequest(HostRequest):
    """What the user asked for.

    ``expected`` are the fingerprints of which the node has to show one; empty lets the user decide.
    """

    node: str
    expected: frozenset[str] = frozenset()


class Observer(RunObserver, Protocol):
    """Shows the run while it goes on, and asks the user."""

    def accepts(self, lines: Sequence[str]) -> bool | None:
        """Let the user compare host keys; None where there is no user to ask."""


def replace(request: ReplaceRequest, observer: Observer) -> run_record.RunRecord:
    """Take a machine that was installed anew into the cluster again.

    Raises:
        ConfigError: the inventory or the node is wrong, its host key is not the expected one or was not confirmed, or
            another run holds a host; nothing was changed.
        UnreachableError: the node does not answer; nothing was changed.
    """
    observer.phase("reading the inventory")
    extra_vars = plan.digest_of([playbook.extra_vars_content(value) for value in request.options.extra_vars])
    reading = Cluster.of(request.inventory, request.options).reading
    whole = reading.inventory()
    before = snapshots.read(paths.cluster_id(whole.sources))
    cluster = reading.inventory(without=outsiders(request.node, whole, before))
    playbook.check_files(cluster, request.options)
    Certificates(cluster).refuse_missing()
    host = cluster.host(request.node)
    with locks.HostLock(cluster.hosts, " ".join(request.argv)):
        observer.phase(f"asking {host.name} for its host key")
        place = host_key.known_place(host)
        if place is None:
            raise ConfigError(
                f"ssh keeps the host key of {host.name} in no file (UserKnownHostsFile none), so there is none to "
                "replace; use 'clusterctl provision'."
            )
        shown = host_key.shown_key(host, request.expected)
        old = host_key.keys_in(place)
        if not _is_accepted(host, old, shown, request.expected, observer):
            raise ConfigError(f"The host key of {host.name} was not accepted; nothing was changed.")
        left_out = [other.name for other in whole.hosts if other not in cluster.hosts]
        with started("replace", cluster, request) as run, _Replace(request, observer, cluster, run, extra_vars) as it:
            it.listed = whole.hosts
            return it.go(before, left_out, place, shown)


def outsiders(node: str, whole: Inventory, before: Snapshot) -> tuple[str, ...]:
    """Return the hosts of the inventory that are no members: removed, or not provisioned yet.

    Raises:
        ConfigError: the node is unknown, or there is no cluster to take its place in.
    """
    names = [host.name for host in whole.hosts]
    if node not in names:
        shown = and_more(names, _MOST_NAMED)
        raise ConfigError(f"{whole.sources} has no host '{node}'; its hosts are: {shown}.")
    known = {str(member.get("name")) for member in before.members}
    if not known - {node}:
        raise ConfigError(
            f"No run has provisioned {whole.sources}, so {node} has no place to take; use 'clusterctl provision'."
        )
    return tuple(name for name in names if name not in known and name != node)


def forgotten(given: Collection[str], now: Collection[str]) -> str:
    """Return a sentence about extra variables of the last provision that this run lacks, empty if there are none."""
    lacking = sorted({name for word in given if (name := _variable(word))} - {_variable(word) for word in now})
    if not lacking:
        return ""
    options = " and ".join(f"-e {name}=…" for name in lacking)
    return f"The last provision had {options}, and this run has not: the software may differ from that of the others."


def _variable(word: str) -> str:
    """Return the name of an extra variable; its value is not kept."""
    return word.removesuffix("=…").removeprefix("-e").removeprefix("--extra-vars=") if word.endswith("=…") else ""


def _is_accepted(
    host: Host, old: Sequence[HostKey], shown: HostKey, expected: Collection[str], observer: Observer
) -> bool:
    """Whether the key that a node shows is the known one, an expected one, or one that the user accepts."""
    was = and_more([key.fingerprint for key in old], _MOST_NAMED) or "unknown"
    if expected:
        if shown.fingerprint in expected:
            return True
        wanted = and_more(sorted(expected), _MOST_NAMED)
        raise ConfigError(
            f"{host.name} shows the host key {shown.fingerprint}, not {wanted} as given; nothing was changed. Find out "
            f"which machine answers at {host.address}."
        )
    if shown in old:
        return True
    answer = observer.accepts(
        (
            f"{host.name} ({host.address} port {host.port}) shows another host key than before:",
            f"  known  {was}",
            f"  shown  {shown.fingerprint} ({shown.type})",
            "Compare it with 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' on the machine's own console.",
        )
    )
    if answer is None:
        raise ConfigError(
            f"{host.name} shows the host key {shown.fingerprint}, and the known one is {was}. Compare it on the "
            f"machine's console, then repeat with --host-key {shown.fingerprint}, or give --console-output."
        )
    return answer


class _Replace(HostRun[ReplaceRequest, Observer]):
    """One replacement, from the confirmed host key to the record."""

    def __init__(
        self, request: ReplaceRequest, observer: Observer, cluster: Inventory, run: runs.Run, extra_vars: str
    ) -> None:
        super().__init__(request, observer, cluster, run)
        self._node = request.node
        self._held = SoftwareHold(snapshots.hold(run.record.cluster_id), cluster.sources)
        self._inputs = plan.inputs_of(cluster, request.options, extra_vars, self._held.run_id, self.certificates)

    def go(self, before: Snapshot, left_out: Sequence[str], place: KnownPlace, key: HostKey) -> run_record.RunRecord:
        self.certificates.refuse_unready((self._node,), anew=True)
        if key not in host_key.keys_in(place):
            host_key.keep(place, [key])
            self.messages = (f"{place.path} has the host key {key.fingerprint} for {self._node}.",)
        last = next((run.argv for run in runs.read_runs(self.cluster.sources) if run.verb == "provision"), ())
        if missing := forgotten(last, self.run.record.argv):
            self.messages = (*self.messages, missing)
            self.observer.phase(missing)
        self.observer.phase(f"looking at {len(self.cluster.hosts)} hosts")
        probe = self.look({})
        self.run.facts({name: plain(node) for name, node in probe.facts.items()})
        if probe.failures:
            refused = [playbook.connection_problem(failure) for failure in probe.failures.values()]
            return self.refuse(refused, unreached=probe.failures)
        self.certificates.refuse_lost(probe.facts)
        if lacking := self._held.problems((self._node,), probe.facts, before):
            return self.refuse(lacking)
        if stop := self.claim(node_ownership.members_of(self.cluster.hosts, ())):
            return stop
        self.messages = (*self.messages, *self._other_offers(before, probe))
        self.forget(self.cluster.selected)
        reasons = dict.fromkeys(self.cluster.selected, f"{self._node} is another machine")
        self.run.update(reasons={**reasons, self._node: "installed anew"})
        end = self._play(left_out, before)
        watch = plan.watch_of(self.task_results.results)
        self.messages = (*self.messages, *software.mixed(self.links_left(probe, watch)))
        record = self.judge(end)
        if record.exit_code == ExitCode.OK:
            self._keep(before, probe)
        return record

    def _other_offers(self, before: Snapshot, probe: Probe) -> tuple[str, ...]:
        """Return what to do where the new machine changes what is built for the others."""
        states = {name: state_of(node) for name, node in probe.facts.items()}
        now = plan.offers_digest(states, {}, list(states))
        then = {host.all_offers for name, host in before.hosts.items() if name in states and name != self._node}
        if then <= {"", now}:
            return ()
        why = f"{self._node} offers other libraries or GPUs than before, which decide what is built"
        return (f"{why}; the next 'clusterctl provision' fits the software of the other nodes.",)

    def _play(self, left_out: Sequence[str], before: Snapshot) -> playbook.End:
        """Tell all nodes about the new machine, then install the software on it alone."""
        others = [name for name in self.cluster.selected if name != self._node]
        return self.play(
            "provision",
            limit=self.cluster.limit,
            skip_tags=self._held.skip_tags,
            variables={
                "preflight_left_out": list(left_out),
                "preflight_distrusted": [self._node],
                **batches_and_losses.join_variables(self.cluster.selected, others, before),
            },
        )

    def _keep(self, before: Snapshot, probe: Probe) -> None:
        """Keep the snapshot: that of the new machine, and those of the others with what they know of it now."""
        states = {name: state_of(node) for name, node in {**probe.facts, **self.look({}).facts}.items()}
        names = [host.name for host in self.cluster.hosts]
        found = self.task_results.members()
        watch = plan.watch_of(self.task_results.results)
        left = members.Left(self.run.record.run_id, found, states, watch, digests={})
        fresh = plan.snapshots_after(
            self.run.record.run_id,
            (self._node,),
            states,
            watch,
            self._inputs,
            plan.cluster_of(states, {}, names),
            {str(member.get("name")): str(member.get("address")) for member in found},
        )
        snapshots.write(
            self.run.record.cluster_id, members.snapshot_after_replacing(before, self._node, names, left, fresh)
        )


# --- The verb rotate: new mesh keys or new host keys on all nodes, without a moment in which a node is shut out -------
#
# The story: read the inventory, take the lock, look at every node over one ssh each. All nodes learn the new keys
# beside the old ones, then each node switches, then all nodes forget the old keys. With host keys, the controller does
# the same.

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
    playbook.check_files(cluster, request.options)
    Certificates(cluster).refuse_missing()
    with started("rotate", cluster, request, cluster.hosts) as run, _Rotate(request, observer, cluster, run) as it:
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
            refused = [playbook.connection_problem(failure) for failure in probe.failures.values()]
            return self.refuse(refused, unreached=probe.failures)
        self.certificates.refuse_lost(probe.facts)
        what = "host keys" if self.request.host_keys else "mesh keys"
        line = f"{self.cluster.sources}: {nodeset.folded(self.cluster.selected)} get new {what}."
        if not self.observer.confirm(MembersPreview((line,))):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        if stop := self.claim(node_ownership.members_of(self.cluster.hosts, ())):
            return stop
        self.forget(self.cluster.selected)
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
        clusters.settle(self.cluster.sources, self.listed)  # the new keys are keys of this cluster's machines
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
