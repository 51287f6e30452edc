"""The verb provision: bare hosts in, one cluster out, and a record of how it went.

The story: read the inventory, take the lock, look at every node over one ssh each. Stop with one table if a node cannot
be used. Decide whether there is anything to do, run Ansible if so, and keep a snapshot of the hosts left in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model.nodeset import folded
from clusterctl.model.run_record import AskingObserver
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import batches_and_losses, controllers, node_ownership, plan, playbook
from clusterctl.provisioning import software as switching
from clusterctl.provisioning.controllers import Controllers
from clusterctl.provisioning.host_run import PREFLIGHT, HostRun, now, started
from clusterctl.provisioning.look import EVERY_SLICE, ProvisionRequest, plain, session_warnings, state_of
from clusterctl.provisioning.members import still_removed
from clusterctl.provisioning.preview import Preview, preview
from clusterctl.provisioning.software import SoftwareHold
from clusterctl.provisioning.task_results import TaskResults, TimedObserver
from clusterctl.state import runs, snapshots
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from clusterctl.model import run_record
    from clusterctl.model.hosts import Inventory
    from clusterctl.model.probe import Probe
    from clusterctl.model.snapshot import HostSnapshot, NodeState
    from clusterctl.provisioning.controllers import Shares

__all__ = ["ProvisionRequest", "provision"]


def provision(request: ProvisionRequest, observer: AskingObserver[Preview]) -> run_record.RunRecord:
    """Make one cluster of the inventory's hosts.

    Returns:
        The record of the run; its ``exit_code`` says how it ended.

    Raises:
        ConfigError: the inventory or an option is wrong, or another run holds a host; nothing was changed.
    """
    observer = observer if request.stopwatch is None else TimedObserver(observer, request.stopwatch)
    observer.phase("reading the inventory")
    extra_vars = plan.digest_of([playbook.extra_vars_content(value) for value in request.options.extra_vars])
    whole = Cluster.of(request.inventory, request.options)
    reading, cluster = whole.reading, whole.inventory
    playbook.check_files(cluster, request.options)
    playbook.check_tags((*request.tags, *request.skip_tags))
    others = Controllers.of(request.workers, cluster, reading, request.options)
    with started("provision", cluster, request, cluster.selected_hosts) as run:
        before = snapshots.read(run.record.cluster_id)
        new = {host.name for host in cluster.hosts} - before.hosts.keys()
        smaller = reading.inventory(without=new).digest if new else ""
        with _Provision(request, observer, cluster, run, before, extra_vars, smaller, others) as it:
            record = it.go()
            whole.seen = it.seen
        return record if request.stopwatch is None else run.update(timing=request.stopwatch.timing())


class _Provision(HostRun[ProvisionRequest, AskingObserver[Preview]]):
    """One run, from the lock to the record."""

    def __init__(
        self,
        request: ProvisionRequest,
        observer: AskingObserver[Preview],
        cluster: Inventory,
        run: runs.Run,
        before: Snapshot,
        extra_vars: str,
        smaller: str,
        others: Controllers,
    ) -> None:
        super().__init__(request, observer, cluster, run)
        self._others = others
        self._before = before
        self._extra_vars = extra_vars  # their digest
        self._smaller = smaller  # see plan.ClusterDigests
        self._join_only: frozenset[str] = frozenset()  # the hosts that only meet the others
        self._roles: tuple[str, ...] = ()  # the tags of the roles that all hosts play; empty for all roles
        self._shared = request.cache.of(cluster.hosts)
        self._held = SoftwareHold(snapshots.hold(run.record.cluster_id), cluster.sources)
        self.messages = self._held.messages
        self.seen: Probe | None = None  # by the look after the run

    def go(self) -> run_record.RunRecord:
        cluster, request, before = self.cluster, self.request, self._before
        self._held.refuse(request.tags)
        self.certificates.refuse()
        reading = ", and reading every watched file" if request.verify else ""
        self.observer.phase(f"looking at {len(cluster.hosts)} hosts{reading}")
        watch = {name: list(host.watch) for name, host in before.hosts.items()}
        probe = self.look(watch, content=request.content, busy=bool(self._held), shared=True)
        self.run.facts({name: plain(node) for name, node in probe.facts.items()})
        states = {name: state_of(node) for name, node in probe.facts.items()}
        before = self._remember_damage(before, states)
        refused = [
            playbook.connection_problem(failure)
            for name, failure in probe.failures.items()
            if name in set(cluster.selected)
        ]
        if refused and not self.can_leave_out(refused):
            return self._stop_before_anything(refused)
        self.leave_out(refused)
        if stop := batches_and_losses.too_many(len(self.left_out), self._allowed):
            return self.refuse(refused, unreached=self.left_out, message=f"{stop} ")
        return self._provision(probe, states, before)

    def _provision(self, probe: Probe, states: Mapping[str, NodeState], before: Snapshot) -> run_record.RunRecord:
        """Decide, ask the user, and change the hosts."""
        selected, request = self.cluster.selected, self.request
        lacking = self._held.problems(selected, probe.facts, before)
        lacking += [] if request.while_busy else self._held.jobs(selected, probe.facts)
        if lacking:
            return self.refuse(lacking)
        self.certificates.refuse_lost(probe.facts)
        reasons, drifted = self._decide(states, before)
        if not reasons:
            return self.nothing_to_do(others="Nothing to do on the other hosts: they are as the last run left them.")
        if not request.check:
            self.certificates.refuse_unready(selected)
        self._others.get_ready(self.observer)
        ahead = preview(self.cluster.sources, selected, probe.facts, reasons, self._shared.at_hand(self.observer))
        if stop := self._begin(self._held.preview(ahead)):
            return stop
        self.run.update(reasons=reasons, drifted=drifted)
        links = self._held.links(selected, probe.facts)
        if request.batch is not None and not request.check:
            record, reached = self._roll(links, before, probe)
        else:
            if not request.check:
                self.forget(selected)
            limit = ",".join(reasons) if request.check and request.trust_snapshots else self.cluster.limit
            shared = self._others and not links  # a run that only holds links has nothing heavy to share
            at_once = (links, limit, before, probe)
            record, reached = self._shared_among(before, probe) if shared else self._at_once(*at_once)
        if reached and request.is_full:
            if record.exit_code == ExitCode.OK:
                self._write_set(probe)
            self._write_snapshot(self._inputs(), states, before, links, reached)
            after = self.seen.facts if self.seen is not None else {}
            warnings = session_warnings({name: node for name, node in after.items() if name in reached})
            if warnings:
                record = self.run.update(warnings=(*record.warnings, *warnings))
        return record

    def _begin(self, ahead: Preview) -> run_record.RunRecord | None:
        """Ask the user, and claim the nodes; returns the record of a run that cannot go on."""
        if not self.observer.confirm(ahead):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        return self.claim(self._members_to_be())

    def _members_to_be(self) -> dict[str, str]:
        """Return the members after the run: all hosts but those removed before, or left out and not known to a node."""
        known = {str(member.get("name")) for member in self._before.members}
        strangers = [name for name in self.left_out if name not in known]
        return node_ownership.members_of(self.cluster.hosts, {*strangers, *still_removed(self._before, self.cluster)})

    def _decide(self, states: Mapping[str, NodeState], before: Snapshot) -> tuple[dict[str, str], dict[str, str]]:
        """Return why hosts have to be changed, and what drifted on them."""
        selected, request = self.cluster.selected, self.request
        cluster = self._cluster_of(states, selected, before.hosts)
        decision = plan.decide(selected, states, before.hosts, self._inputs(), cluster, every_role=request.every_role)
        due = self.certificates.due(selected, now())
        reasons = {**due, **decision.reasons}
        in_parts = request.batch or request.max_fail or request.workers
        if reasons and request.is_full and not (request.verify or request.every_role or in_parts):
            self._join_only = batches_and_losses.join_only(decision.as_left, before.hosts, snapshots.cached_trees())
            self._roles = () if self._held or due else decision.roles
        self.messages = (*self.messages, *self.certificates.told(selected, now()))
        if not reasons and not request.is_full and not request.trust_snapshots:
            reasons = dict.fromkeys(selected, plan.ASKED_FOR)
        return reasons, dict(decision.drifted)

    @property
    def _allowed(self) -> int | None:
        """How many hosts may be lost, None where any number may."""
        return self.request.max_fail.of(len(self.all_selected)) if self.request.max_fail else None

    def _at_once(
        self, links: Mapping[str, Mapping[str, str]], limit: str | None, before: Snapshot, probe: Probe
    ) -> tuple[run_record.RunRecord, Sequence[str]]:
        """Play the roles on all hosts; returns the record and the hosts that are as the roles leave them."""
        end = self._play_under(links, limit, before, probe.facts)
        while (gone := self.task_results.problems()) and self.can_leave_out(gone):  # only Ansible can reach these hosts
            self.leave_out(gone)
            if batches_and_losses.too_many(len(self.left_out), self._allowed):
                break
            self.task_results = TaskResults()
            end = self._play_under(links, self.cluster.limit, before, probe.facts)
        stop = batches_and_losses.too_many(
            len(self.left_out) + len(batches_and_losses.lost_hosts([end])), self._allowed
        )
        if self.cluster.limit is not None:
            self.messages = (*self.messages, *switching.mixed(self.links_left(probe, self._watch)))
        record = self.judge(end, message=stop)
        is_whole = not (stop or record.problems) and record.outcome in {"done", "failed", "unreachable"}
        if not is_whole:
            return record, ()
        return record, batches_and_losses.finished(
            self.cluster.selected, self.task_results.results, batches_and_losses.lost_hosts([end]), self._last_stages
        )

    @property
    def _last_stages(self) -> dict[str, str]:
        """The last role of each host that does not play the playbook to its end."""
        if self._roles:
            return dict.fromkeys(self.cluster.selected, self._roles[-1])
        return dict.fromkeys(self._join_only, batches_and_losses.JOINT_TAGS[-1])

    def _shared_among(self, before: Snapshot, probe: Probe) -> tuple[run_record.RunRecord, Sequence[str]]:
        """Play the roles on several controllers; returns the record and the hosts that are as the roles leave them."""
        selected = self.cluster.selected

        def meet() -> playbook.End:
            self.observer.phase(f"{folded(selected)} meet each other")
            return self._play(self.cluster.limit, batches_and_losses.JOINT_TAGS, before.members)

        def parts(found: Shares) -> Sequence[playbook.End]:
            variables = self._own_variables(self._knowing(before).members)
            variables["preflight_distrusted"] = self._distrusted(before)
            trees = switching.trees_of(entry for result in self.task_results.results for entry in result.watch)
            return self.play_shared(found, self._others.workers, trees, batches_and_losses.JOINT_TAGS, variables)

        done = controllers.share(self._others.shares, self._builders(probe), meet, parts)
        self.run.update(controllers={worker: its for worker, its in done.shares.items() if worker and its})
        record = self.judge(done.end, message=done.message)
        return record, batches_and_losses.finished(
            selected, self.task_results.results, batches_and_losses.lost_hosts([done.end])
        )

    def _roll(
        self, links: Mapping[str, Mapping[str, str]], before: Snapshot, probe: Probe
    ) -> tuple[run_record.RunRecord, Sequence[str]]:
        """Play the roles batch by batch, after a look at all hosts for what stands in the way of any of them."""
        size, selected = self.request.batch, self.cluster.selected
        batches = batches_and_losses.batches(
            selected, max(1, size.of(len(selected)) if size else 0), self._builders(probe)
        )
        self.run.update(batches=batches)
        self.observer.phase("looking for problems of all hosts before the first batch")
        end = self._play(limit=self.cluster.limit, tags=(PREFLIGHT,), known_members=before.members)
        if end.status != "successful" or self.task_results.problems():
            return self.judge(end), ()

        def begin(number: int, names: Sequence[str]) -> None:
            self.observer.phase(f"batch {number} of {len(batches)}: {folded(names)}")
            self.forget(names)

        def play(names: Sequence[str]) -> playbook.End:
            return self._play_under(links, ",".join(names), self._knowing(before), probe.facts)

        def join(names: Sequence[str]) -> playbook.End:
            if not self.request.is_full:
                return playbook.End("successful", 0)
            self.observer.phase(f"{folded(names)} meet each other")
            return self._play(",".join(names), batches_and_losses.JOINT_TAGS, self._knowing(before).members)

        def reached(names: Sequence[str]) -> Sequence[str]:
            return batches_and_losses.finished(names, self.task_results.results, ()) if self.request.is_full else names

        rolled = batches_and_losses.roll(
            batches, batches_and_losses.Steps(begin, play, join, reached), self._still_allowed or 0
        )
        if rolled.stopped is None:
            return self.judge(rolled.end), rolled.done
        how = "was interrupted" if rolled.end.status == "canceled" else "failed"
        words = rolled.stopped.words(how)
        record = self.judge(rolled.end, message=words, untouched=rolled.stopped.untouched)
        return self.run.update(message=words), rolled.done if record.outcome != "interrupted" else ()

    def _builders(self, probe: Probe) -> tuple[str, ...]:
        platforms = {name: node.platform for name, node in probe.facts.items()}
        return batches_and_losses.builders(self.cluster.selected_hosts, platforms)

    @property
    def _still_allowed(self) -> int | None:
        """How many more hosts may be lost."""
        return None if self._allowed is None else self._allowed - len(self.left_out)

    def _knowing(self, before: Snapshot) -> Snapshot:
        """Return a snapshot with the members that this run has seen."""
        return before.model_copy(update={"members": self.task_results.members() or before.members})

    def _play_under(
        self,
        held: Mapping[str, Mapping[str, str]],
        limit: str | None,
        before: Snapshot,
        seen: Container[str],
    ) -> playbook.End:
        """Play the roles; under a hold, first make sure that the links lead where they are held."""
        if held and not self.request.tags:
            end = self._play(limit=limit, variables=switching.variables(held, seen), name="switch_links")
            if end.status != "successful":
                return end
        own: dict[str, Any] = {"preflight_distrusted": self._distrusted(before)}
        own |= (
            batches_and_losses.join_variables(self.cluster.selected, self._join_only, before) if self._join_only else {}
        )
        tags = self.request.tags or self._roles
        return self._play(limit=limit, tags=tags, known_members=before.members, variables=own)

    def _write_set(self, probe: Probe) -> None:
        """Keep the links that this run left, so that a rollback can go back to them; a held run chose none."""
        if not self._held:
            snapshots.write_set(self.run.folder, self.links_left(probe, self._watch))

    @property
    def _watch(self) -> dict[str, tuple[dict[str, Any], ...]]:
        joined = self.cluster.selected if self._roles else self._join_only
        return batches_and_losses.joined_watch(self.task_results.results, joined, self._before.hosts, self._roles)

    def _remember_damage(self, before: Snapshot, states: Mapping[str, NodeState]) -> Snapshot:
        content = self.request.content
        if not content:
            return before
        after = plan.with_damage(before, states, everything=set(content) == set(EVERY_SLICE))
        if after != before:
            snapshots.write(self.run.record.cluster_id, after)
        self.run.update(slices=content)
        return after

    def _inputs(self) -> plan.Inputs:
        return plan.inputs_of(
            self.cluster, self.request.options, self._extra_vars, self._held.run_id, self.certificates
        )

    def _distrusted(self, before: Snapshot) -> list[str]:
        """Return the hosts whose artifacts are compared byte by byte: a crash may have cut off what was written."""
        known = before.hosts
        return [
            name for name in self.cluster.selected if self.request.verify or name not in known or known[name].damaged
        ]

    def _play(
        self,
        limit: str | None,
        tags: tuple[str, ...] = (),
        known_members: tuple[dict[str, Any], ...] = (),
        variables: Mapping[str, Any] | None = None,
        name: str = "provision",
    ) -> playbook.End:
        skip_tags = (*self.request.skip_tags, *self._held.skip_tags)
        known = known_members if limit is not None else ()
        variables = {**self._own_variables(known), **(variables or {})}
        return self.play(name, limit=limit, tags=tags, skip_tags=skip_tags, variables=variables)

    def _own_variables(self, known_members: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        """Return the variables of each play; ``known_members`` are told to a play that leaves hosts out."""
        known: dict[str, Any] = {"preflight_known_members": known_members} if known_members else {}
        if left_out := still_removed(self._before, self.cluster):
            known["preflight_left_out"] = left_out
        allowed = {} if self._still_allowed is None else {"provision_max_failed": self._still_allowed}
        return {**known, **allowed, "software_while_busy": self.request.while_busy, **self._shared.variables}

    def _stop_before_anything(self, problems: list[run_record.Problem]) -> run_record.RunRecord:
        """Let preflight speak about the hosts that can be reached, so that all problems stand in one table."""
        end = None
        failing = {problem.host for problem in problems}
        reachable = [name for name in self.cluster.selected if name not in failing]
        if reachable:
            self.observer.phase("looking for further problems; nothing will be changed")
            end = self._play(limit=",".join(reachable), tags=(PREFLIGHT,), known_members=())
            problems += self.task_results.problems()
        if end is not None and end.status == "canceled":
            return self.finish("interrupted", ExitCode.INTERRUPTED)
        return self.refuse(problems, unreached=set(self.cluster.selected) - set(reachable))

    def _write_snapshot(
        self,
        inputs: plan.Inputs,
        states: Mapping[str, NodeState],
        before: Snapshot,
        links: Mapping[str, Mapping[str, str]],
        reached: Sequence[str],
    ) -> None:
        """Write the snapshots of the hosts that the run brought to its end; it has removed those of the others.

        Hosts outside of this run keep theirs while the inventory names them. The hosts are looked at once more: the
        run may have changed what decides. A host that this run lost counts as unknown to the others, so that a run
        that brings it in visits all of them.
        """
        also = self.request.asked_after(self.cluster.selected_hosts) if self.request.asked_after else None
        self.seen = self.look({}, also=also)
        states = {**states, **{name: state_of(node) for name, node in self.seen.facts.items()}}
        members = self.task_results.members() or before.members
        names = {host.name for host in self.cluster.hosts}
        after = snapshots.read(self.run.record.cluster_id).hosts  # without those of hosts that the run worked on
        kept = {name: host for name, host in after.items() if name in names and name not in reached}
        fresh = plan.snapshots_after(
            self.run.record.run_id,
            reached,
            states,
            self._held.watch(self._watch, before, links),
            inputs,
            self._cluster_of(states, reached, kept),
            {str(member.get("name")): str(member.get("address")) for member in members},
        )
        if self._held:  # the roles that would have repaired it were left out
            fresh = plan.with_damage_of(before.hosts, fresh)
        snapshots.write(
            self.run.record.cluster_id,
            Snapshot(members=members, removed=still_removed(before, self.cluster), hosts={**kept, **fresh}),
        )

    def _cluster_of(
        self, states: Mapping[str, NodeState], chosen: Container[str], known: Mapping[str, HostSnapshot]
    ) -> plan.ClusterDigests:
        """Return what matters of the cluster; a host that is neither chosen nor known is not one of its members yet."""
        its = {name: state for name, state in states.items() if name in chosen or name in known}
        return plan.cluster_of(its, known, [host.name for host in self.cluster.hosts], self._smaller)
