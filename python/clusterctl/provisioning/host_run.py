"""A run that changes hosts: looks at them by ssh, plays playbooks on them, and keeps a record of both."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clusterctl.model.nodeset import folded
from clusterctl.model.run_record import HostSummary, RunObserver
from clusterctl.provisioning import batches_and_losses, node_ownership, playbook, software, worker_part
from clusterctl.provisioning.controllers import OWN, Shares, Worker, words
from clusterctl.provisioning.look import HostRequest, look
from clusterctl.provisioning.node_ownership import NodeClaims, Wanted
from clusterctl.provisioning.task_results import TaskResults, verdict_of
from clusterctl.remote import reach
from clusterctl.state import clusters, locks, paths, runs, snapshots
from clusterctl.state.certificate_status import Certificates
from clusterctl.support import content
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from clusterctl.model import run_record
    from clusterctl.model.hosts import Host, Inventory
    from clusterctl.model.probe import Probe
    from clusterctl.model.run_record import Event
    from clusterctl.model.snapshot import HostSnapshot, SoftwareSet


_RETRIES = 5  # through a bastion: its sshd refuses logins at random while ten or more are on their way
_NAME = "provision"  # the playbook that controllers share
PREFLIGHT, CONNECTION = "preflight", "connection"  # where a run stopped that changed nothing


@contextlib.contextmanager
def started(verb: str, cluster: Inventory, request: HostRequest, locked: Sequence[Host] = ()) -> Iterator[runs.Run]:
    """Lock hosts, and yield a run, whose record says how it ended that raised an error.

    Raises:
        LockedError: another run holds a host.
    """
    lock = locks.HostLock(locked, " ".join(request.argv)) if locked else contextlib.nullcontext()
    with lock, runs.recorded(verb, cluster.sources, request.argv) as run:
        yield run


RequestT = TypeVar("RequestT", bound=HostRequest)
ObserverT = TypeVar("ObserverT", bound=RunObserver)


class HostRun(Generic[RequestT, ObserverT]):
    """One run, from the lock to the record."""

    def __init__(self, request: RequestT, observer: ObserverT, cluster: Inventory, run: runs.Run) -> None:
        """Begin; nothing happened yet."""
        self.observer = observer
        self.cluster = cluster
        self.run = run
        self.task_results = TaskResults()
        self.messages: tuple[str, ...] = ()  # sentences for the record, before those of the roles
        self.left_out: dict[str, run_record.Problem] = {}
        self.request = request
        self.certificates = Certificates(cluster, request.ca_passphrase)
        self.all_selected = cluster.selected  # with those that are left out later
        self._unfinished = _unfinished(run, cluster)
        self._forgotten: dict[str, HostSnapshot] = {}
        owner = node_ownership.Owner(
            paths.stem(cluster.sources), f"{run.record.user}@{platform.node()}", str(paths.resolved(cluster.sources))
        )
        self.claims = NodeClaims(run.record, owner, request.become_password)
        self._kept = contextlib.ExitStack()
        self._connections: Path | None = None  # the folder of those that the steps of the run share
        self.listed = cluster.hosts  # all hosts of the inventory

    def __enter__(self) -> Self:
        """Begin; nothing happened yet."""
        self._connections = self.claims.connections = self._kept.enter_context(reach.control_folder())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._kept:
            self.claims.release()

    def claim(self, members: Mapping[str, str] | None, also: Sequence[Host] = ()) -> run_record.RunRecord | None:
        """Lock and mark the selected nodes before anything is changed; the lock holds until this object's exit.

        ``members`` are those that the nodes know after the run; None leaves their marks as they are.

        Returns:
            The record of a run that another cluster or another run stands in the way of, else None.
        """
        request = self.request
        wanted = Wanted(
            self.listed,
            members,
            self.cluster.sources.shown,
            adopt=request.adopt,
            take_lock=request.take_lock,
            look_only=request.check,
        )
        claimed = self.claims.take((*self.cluster.selected_hosts, *also), wanted)
        if claimed.problems:
            return self.refuse(claimed.problems, unreached=claimed.unreached)
        if not request.check:
            self.messages = (*self.messages, *node_ownership.unlocked((*self.cluster.selected_hosts, *also)))
        if claimed.adopted:
            self.run.update(adopted=claimed.adopted)
            self.messages = (*self.messages, *node_ownership.messages(claimed.adopted), *claimed.told)
        return None

    def look(
        self,
        watch: Mapping[str, list[dict[str, Any]]],
        *,
        content: Sequence[int] = (),
        busy: bool = False,
        also: Mapping[str, Any] | None = None,
        shared: bool = False,
    ) -> Probe:
        """Look at all hosts that a plain ssh can reach, also those outside the limit: the others refer to them.

        ``shared`` opens the connections that the next steps of the run go on with. What new sessions have after a run
        is seen by connections of their own alone.
        """
        password, connections = self.request.become_password, self._connections if shared else None
        return look(
            self.cluster,
            watch,
            content=content,
            busy=busy,
            sudo_password=password,
            also=also,
            connections=connections,
        )

    def play(
        self,
        name: str,
        *,
        limit: str | None,
        tags: tuple[str, ...] = (),
        skip_tags: tuple[str, ...] = (),
        variables: Mapping[str, Any] | None = None,
        check: bool | None = None,
    ) -> playbook.End:
        """Play a playbook of the collection on the hosts; ``check`` stands above what the user asked for."""
        with self.certificates.variables() as trust:
            play = self._play_of({**trust, **(variables or {})}, name, limit, tags, skip_tags, check)
            cancel = playbook.Cancel()
            with cancel.on_signals(self.observer.stopping):
                return self._play_here(play, self._hear, cancel)

    def play_shared(
        self,
        shares: Shares,
        crew: Mapping[str, Worker],
        trees: Collection[str],
        skip_tags: tuple[str, ...],
        variables: Mapping[str, Any],
    ) -> list[playbook.End]:
        """Play ``provision`` on several controllers at the same time, on the hosts that each has by ``shares``.

        ``trees`` are the folders of the artifacts that the hosts get. The rest is as for :meth:`play`.
        """
        self.observer.phase(words(shares))
        are_others = any(hosts for worker, hosts in shares.items() if worker != OWN)
        text = worker_part.inventory_text(self.cluster.sources, self.request.options) if are_others else ""
        with self.certificates.variables() as trust:
            own = self._play_of({**trust, **variables}, _NAME, ",".join(shares[OWN]), (), skip_tags, None)
            parts = []
            for worker, hosts in shares.items():
                if worker != OWN and hosts:
                    its = {**variables, **worker_part.OWN_CACHE}
                    part = self._play_of(its, _NAME, ",".join(hosts), (), skip_tags, None)
                    parts.append(worker_part.WorkerPart(crew[worker], part, hosts, text, trees))
            cancel = playbook.Cancel()
            with cancel.on_signals(self.observer.stopping):
                here = partial(self._play_here, own) if shares[OWN] else None
                return worker_part.play_all(here, parts, self.run.log, self._hear, cancel)

    def _play_here(self, play: playbook.Play, hear: Callable[[Event], None], cancel: playbook.Cancel) -> playbook.End:
        private = paths.private_folder(paths.ansible_dir(self.run.folder))
        shared = self._connections if play.playbook.stem == _NAME else None  # the others may change what a login needs
        return playbook.run(play, private, self.run.log, hear, cancel, shared)

    def _play_of(
        self,
        variables: Mapping[str, Any],
        name: str,
        limit: str | None,
        tags: tuple[str, ...],
        skip_tags: tuple[str, ...],
        check: bool | None,
    ) -> playbook.Play:
        request = self.request
        return playbook.Play(
            playbook=content.playbook(name),
            inventory=self.cluster.sources,
            limit=limit,
            tags=tags,
            skip_tags=skip_tags,
            options=request.options,
            check=request.check if check is None else check,
            diff=request.diff,
            verbosity=request.verbosity,
            forks=request.forks,
            retries=_RETRIES if reach.through_one(self.cluster.hosts) else 0,
            variables={**self._run_variables(), **self._unfinished, **variables},
            become_password=request.become_password,
        )

    def _run_variables(self) -> dict[str, Any]:
        """Return what audit lines say of the run, and what preflight needs for nodes that only Ansible reaches."""
        return {
            "clusterctl_run": node_ownership.who(self.run.record),
            "preflight_claimed": self.claims.claimed,
            "preflight_cluster": snapshots.read_identity(self.run.record.cluster_id),
            "preflight_adopt": self.request.adopt,
        }

    def _hear(self, event: Event) -> None:
        self.task_results.add(event)
        self.run.event(event)
        self.observer.event(event)

    def links_left(self, probe: Probe, watch: Mapping[str, Iterable[Mapping[str, Any]]]) -> SoftwareSet:
        """Return the links on all hosts after this run: those of the facts before it, and what the tasks said."""
        record = self.run.record
        return software.left_by(record.run_id, record.verb, now(), probe.facts, watch)

    def can_leave_out(self, problems: Sequence[run_record.Problem]) -> bool:
        """Whether the run goes on without the hosts of these problems: the user asked for it, and others are left."""
        return self.request.skip_unreachable and batches_and_losses.can_be_left_out(problems, self.cluster.selected)

    def leave_out(self, problems: Sequence[run_record.Problem]) -> None:
        if not problems:
            return
        for problem in problems:
            self.left_out.setdefault(problem.host, problem)
        others = tuple(name for name in self.cluster.selected if name not in self.left_out)
        self.cluster = dataclasses.replace(self.cluster, selected=others, limit=",".join(others))
        self.run.update(left_out=tuple(self.left_out))
        self.observer.phase(f"leaving out {folded(self.left_out)}, which cannot be reached")

    def nothing_to_do(self, message: str = "", others: str = "") -> run_record.RunRecord:
        """End a run with nothing to do; ``others`` is the message of a run that leaves hosts out."""
        hosts = [
            self.summary_of_left_out(name) if name in self.left_out else HostSummary(host=name, outcome="ok")
            for name in self.all_selected
        ]
        if self.left_out:
            return self.finish("unreachable", ExitCode.UNREACHABLE, hosts=hosts, message=others)
        return self.finish("nothing to do", ExitCode.OK, hosts=hosts, message=message)

    def forget(self, names: Sequence[str]) -> None:
        """Remove the snapshots of hosts that are about to be changed; :meth:`judge` brings them back where none was."""
        self._forgotten |= snapshots.forget_hosts(self.run.record.cluster_id, names)

    def judge(self, end: playbook.End, *, message: str = "", untouched: Container[str] = ()) -> run_record.RunRecord:
        """Make the verdict from what happened on each host; Ansible's own code says 4 for a parse error too."""
        fields: dict[str, Any] = {"hosts": self._summaries(end, untouched), "message": message}
        problems = self.task_results.problems()
        if end.status == "canceled":
            return self.finish("interrupted", ExitCode.INTERRUPTED, **fields)
        if problems:
            if self._forgotten and self.task_results.has_only_refused:
                snapshots.keep_hosts(self.run.record.cluster_id, self._forgotten)
            return self.finish(*verdict_of(problems), **{**fields, "problems": problems})
        if end.unreachable or (self.left_out and (end.rc == 0 or end.failed)):
            return self.finish("unreachable", ExitCode.UNREACHABLE, **fields)
        if end.failed:
            return self.finish("failed", ExitCode.HOST_FAILED, **fields)
        if end.rc != 0 or not self.task_results.hosts:
            words = "; ".join(end.complaints) or f"Ansible ended with {end.rc} before it reached a host."
            return self.finish("bad configuration", ExitCode.BAD_CONFIG, **{**fields, "message": words})
        return self.finish("done", ExitCode.OK, **fields)

    def _summaries(self, end: playbook.End, untouched: Container[str]) -> list[HostSummary]:
        """Return one summary per host, in the inventory's order."""
        found = {summary.host: summary for summary in self.task_results.summaries(self.cluster.selected, end)}
        found = {
            name: HostSummary(host=name, outcome="not run") if name in untouched else summary
            for name, summary in found.items()
        }
        return [self.summary_of_left_out(name) if name in self.left_out else found[name] for name in self.all_selected]

    def summary_of_left_out(self, name: str) -> HostSummary:
        words = f"left out: {self.left_out[name].problem}"
        return HostSummary(host=name, outcome="unreachable", failed_stage=CONNECTION, message=words)

    def refuse(
        self, problems: Sequence[run_record.Problem], unreached: Container[str] = (), message: str = ""
    ) -> run_record.RunRecord:
        """End the run with the problems that stand in its way; plain ssh did not get through to ``unreached``."""
        outcome, code = verdict_of(problems)
        first = {problem.host: problem for problem in reversed(problems)}
        hosts = [
            HostSummary(host=name, outcome="not run")
            if name not in first
            else HostSummary(
                host=name,
                outcome="unreachable" if first[name].kind == "unreachable" else "failed",
                failed_stage=CONNECTION if name in unreached else PREFLIGHT,
                message=first[name].problem,
            )
            for name in self.all_selected
        ]
        return self.finish(
            outcome, code, hosts=hosts, problems=list(problems), message=f"{message}Nothing was changed."
        )

    def finish(self, outcome: run_record.RunOutcome, code: ExitCode, **fields: Any) -> run_record.RunRecord:
        told = (*clusters.begins_anew(self.cluster.sources), *self.messages, *self.task_results.messages())
        return self.run.update(
            outcome=outcome,
            exit_code=int(code),
            finished=now(),
            warnings=(*playbook.overridden(), *self.task_results.warnings()),
            told=told if code == ExitCode.OK else (),
            **fields,
        )


def _unfinished(run: runs.Run, cluster: Inventory) -> dict[str, Any]:
    """Return for the playbooks which runs did not end well, and the hosts on which they may have left something.

    A killed run leaves something, and so does a run that lost a host. Each run forgets the snapshots of its hosts
    before it changes them, and a later success keeps them anew.
    """
    if not run.unfinished:
        return {}
    known = snapshots.read(run.record.cluster_id).hosts
    hosts = [name for name in cluster.selected if name not in known]
    unfinished = {"runs": run.unfinished, "hosts": hosts, "cache_dir": str(paths.cache_dir().value)}
    return {"clusterctl_unfinished": unfinished, "provision_unfinished": ",".join(hosts)} if hosts else {}


def now() -> datetime:
    """Return the present time, with its zone."""
    return datetime.now(timezone.utc)
