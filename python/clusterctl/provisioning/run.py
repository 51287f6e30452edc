"""The verb provision: bare hosts in, one cluster out, and a record of how it went.

The story: read the inventory, take the lock, look at every node over one ssh each. Stop with one table if a node cannot
be used. Decide whether there is anything to do, run Ansible if so, and keep a snapshot of the hosts left in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from clusterctl import __version__
from clusterctl.inventory import ansible_inventory
from clusterctl.model import run_record
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import drift, plan, playbook, refusals, software
from clusterctl.provisioning.held import Held
from clusterctl.provisioning.host_run import PREFLIGHT, HostRun, RunObserver, now, recorded
from clusterctl.provisioning.look import EVERY_SLICE, plain, state_of
from clusterctl.provisioning.members import still_removed
from clusterctl.provisioning.preview import preview
from clusterctl.state import artifacts, locks, runs, snapshots
from clusterctl.state import software as kept
from clusterctl.support import content
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from clusterctl.model.facts import Probe
    from clusterctl.model.hosts import AnyInventory, Inventory
    from clusterctl.provisioning.preview import Preview


@dataclass(frozen=True)
class ProvisionRequest:
    """What the user asked for."""

    inventory: AnyInventory
    options: InventoryOptions = field(default_factory=InventoryOptions)
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    check: bool = False
    trust_snapshots: bool = False  # in check mode, ask Ansible only where a host is not as its last run left it
    diff: bool = False
    verify: bool = False  # compare the content of every watched file
    slices: tuple[int, ...] = ()  # compare the content of these slices only
    verbosity: int = 0
    forks: int = playbook.DEFAULT_FORKS
    become_password: str | None = field(default=None, repr=False)
    argv: tuple[str, ...] = ()  # as it may be shown and kept: no value of an extra variable

    @property
    def content(self) -> tuple[int, ...]:
        """The slices of the artifacts' files whose content is compared."""
        return EVERY_SLICE if self.verify else self.slices

    @property
    def is_full(self) -> bool:
        """Whether a success leaves the hosts in the state that the inventory asks for."""
        return not (self.tags or self.skip_tags or self.check)


class Observer(RunObserver, Protocol):
    """Shows the run while it goes on, and asks the user."""

    def confirm(self, preview: Preview) -> bool:
        """Let the user decide, where there is one; False ends the run with nothing changed."""


def provision(request: ProvisionRequest, observer: Observer) -> run_record.RunRecord:
    """Make one cluster of the inventory's hosts.

    Returns:
        The record of the run; its ``exit_code`` says how it ended.

    Raises:
        ConfigError: the inventory or an option is wrong, or another run holds a host; nothing was changed.
    """
    observer.phase("reading the inventory")
    extra_vars = [refusals.extra_vars_content(value) for value in request.options.extra_vars]
    cluster = ansible_inventory.load(request.inventory, request.options)
    refusals.check_files(cluster, request.options)
    refusals.check_tags((*request.tags, *request.skip_tags))
    with locks.HostLock(cluster.selected_hosts, " ".join(request.argv)):
        run = runs.start("provision", cluster.sources, request.argv, runs.versions())
        with recorded(run):
            return _Provision(request, observer, cluster, run, plan.digest_of(extra_vars)).go()


class _Provision(HostRun):
    """One run, from the lock to the record."""

    def __init__(
        self, request: ProvisionRequest, observer: Observer, cluster: Inventory, run: runs.Run, extra_vars: str
    ) -> None:
        super().__init__(request, observer, cluster, run)
        self._request = request
        self._asking = observer
        self._extra_vars = extra_vars  # their digest
        self._before = snapshots.read(run.record.cluster_id)
        self._held = Held(kept.hold(run.record.cluster_id), cluster.sources)
        self.told = self._held.told

    def go(self) -> run_record.RunRecord:
        cluster, request = self.cluster, self._request
        before = self._before
        self._held.refuse(request.tags)
        reading = ", and reading every watched file" if request.verify else ""
        self.observer.phase(f"looking at {len(cluster.hosts)} hosts{reading}")
        probe = self.look({name: list(host.watch) for name, host in before.hosts.items()}, content=request.content)
        self.run.facts({name: plain(node) for name, node in probe.facts.items()})
        states = {name: state_of(node) for name, node in probe.facts.items()}
        before = self._remember_damage(before, states)
        refused = [
            refusals.connection_problem(failure)
            for name, failure in probe.failures.items()
            if name in set(cluster.selected)
        ]
        if refused:
            return self._stop_before_anything(
                refused, reachable=[n for n in cluster.selected if n not in probe.failures]
            )

        lacking = self._held.problems(cluster.selected, probe.facts, before)
        if lacking:
            return self.refuse(lacking)
        inputs = self._inputs()
        names = [host.name for host in cluster.hosts]
        members = plan.members_digest(states, before.hosts, names)
        decision = plan.decide(cluster.selected, states, before.hosts, inputs, members)
        reasons = dict(decision.reasons)
        if not reasons and not request.is_full and not request.trust_snapshots:
            reasons = dict.fromkeys(cluster.selected, "asked for by an option")
        if not reasons:
            hosts = [run_record.HostSummary(host=name, outcome="ok") for name in cluster.selected]
            return self.finish("nothing to do", ExitCode.OK, hosts=hosts)
        ahead = preview(cluster.sources, cluster.selected, probe.facts, reasons, artifacts.cached())
        if not self._asking.confirm(self._held.preview(ahead)):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")

        if not request.check:
            snapshots.forget_hosts(self.run.record.cluster_id, cluster.selected)
        self.run.update(reasons=reasons, drifted=dict(decision.drifted))
        limit = ",".join(reasons) if request.check and request.trust_snapshots else cluster.limit
        links = self._held.links(cluster.selected, probe.facts)
        record = self.judge(self._play_under(links, limit, before, probe.facts))
        if record.exit_code == ExitCode.OK and request.is_full:
            self._write_set(record, probe)
            self._write_snapshot(inputs, states, before, links)
        return record

    def _play_under(
        self, held: Mapping[str, Mapping[str, str]], limit: str | None, before: Snapshot, seen: Container[str]
    ) -> playbook.End:
        """Play the roles; under a hold, first make sure that the links lead where they are held."""
        if held and not self._request.tags:
            end = self._play(limit=limit, variables=software.variables(held, seen), name="switch_links")
            if end.status != "successful":
                return end
        distrusted = {"preflight_distrusted": self._distrusted(before)}
        return self._play(limit=limit, tags=self._request.tags, known_members=before.members, variables=distrusted)

    def _write_set(self, record: run_record.RunRecord, probe: Probe) -> None:
        """Keep the links that this run left, so that a rollback can go back to them; a held run chose none."""
        if not self._held:
            watch = plan.watch_of(self.tally.results)
            left = software.left_by(record.run_id, record.verb, now(), probe.facts, watch)
            kept.write_set(self.run.folder, left)

    def _remember_damage(self, before: Snapshot, states: Mapping[str, plan.NodeState]) -> Snapshot:
        content = self._request.content
        if not content:
            return before
        after = drift.with_damage(before, states, everything=set(content) == set(EVERY_SLICE))
        if after != before:
            snapshots.write(self.run.record.cluster_id, after)
        self.run.update(slices=content)
        return after

    def _inputs(self) -> plan.Inputs:
        options = self._request.options
        return plan.Inputs(
            inventory=self.cluster.digest,
            content=content.digest(),
            version=__version__,
            options={
                "extra_vars": self._extra_vars,
                "become": str(options.become),
                "user": options.user or "",
            },
            held=self._held.run_id,
        )

    def _distrusted(self, before: Snapshot) -> list[str]:
        """Return the hosts whose artifacts are compared byte by byte: a crash may have cut off what was written."""
        known = before.hosts
        return [
            name for name in self.cluster.selected if self._request.verify or name not in known or known[name].damaged
        ]

    def _play(
        self,
        limit: str | None,
        tags: tuple[str, ...] = (),
        known_members: tuple[dict[str, Any], ...] = (),
        variables: Mapping[str, Any] | None = None,
        name: str = "provision",
    ) -> playbook.End:
        known: dict[str, Any] = {}
        if limit is not None and known_members:
            known = {"preflight_known_members": known_members}
        if left_out := still_removed(self._before, self.cluster):
            known["preflight_left_out"] = left_out
        skip_tags = (*self._request.skip_tags, *self._held.skip_tags)
        return self.play(name, limit=limit, tags=tags, skip_tags=skip_tags, variables={**known, **(variables or {})})

    def _stop_before_anything(self, problems: list[run_record.Problem], reachable: list[str]) -> run_record.RunRecord:
        """Let preflight speak about the hosts that can be reached, so that all problems stand in one table."""
        end = None
        if reachable:
            self.observer.phase("looking for further problems; nothing will be changed")
            end = self._play(limit=",".join(reachable), tags=(PREFLIGHT,), known_members=())
            problems += self.tally.problems()
        if end is not None and end.status == "canceled":
            return self.finish("interrupted", ExitCode.INTERRUPTED)
        return self.refuse(problems, unreached=set(self.cluster.selected) - set(reachable))

    def _write_snapshot(
        self,
        inputs: plan.Inputs,
        states: Mapping[str, plan.NodeState],
        before: Snapshot,
        links: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Write the snapshots of the provisioned hosts; the others keep theirs while the inventory names them.

        The hosts are looked at once more: the run may have changed what decides.
        """
        states = {**states, **{name: state_of(node) for name, node in self.look({}).facts.items()}}
        members = self.tally.members() or before.members
        names = [host.name for host in self.cluster.hosts]
        fresh = plan.snapshots_after(
            self.run.record.run_id,
            self.cluster.selected,
            states,
            self._held.watch(plan.watch_of(self.tally.results), before, links),
            inputs,
            plan.members_digest(states, before.hosts, names),
            {str(member.get("name")): str(member.get("address")) for member in members},
        )
        if self._held:  # the roles that would have repaired it were left out
            fresh = drift.with_damage_of(before.hosts, fresh)
        kept = {
            name: host for name, host in before.hosts.items() if name in names and name not in self.cluster.selected
        }
        snapshots.write(
            self.run.record.cluster_id,
            Snapshot(members=members, removed=still_removed(before, self.cluster), hosts={**kept, **fresh}),
        )
