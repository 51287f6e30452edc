"""Claim nodes for a run: refuse nodes of other clusters, lock them, mark them, and release them at the end."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import platform
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from clusterctl.model.base import Fact, Text
from clusterctl.model.nodeset import folded
from clusterctl.model.probe import ProbeFailure
from clusterctl.model.run_record import Problem, ProcessIdentity
from clusterctl.provisioning import playbook
from clusterctl.remote import one_trip, reach
from clusterctl.remote.reach import by_hand, where
from clusterctl.state import clusters, processes, snapshots
from clusterctl.support import node_json
from clusterctl.support.words import and_more, escaped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host
    from clusterctl.model.run_record import RunRecord
    from clusterctl.remote import python


_TIMEOUT_S = 30.0
_RELEASE_S = 8.0  # a node that died during the run does not hold up its end for long


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a run wants of its nodes."""

    listed: tuple[Host, ...]  # all hosts of the inventory
    # the members that the nodes know after the run, addresses by name; None leaves the marks as they are
    members: Mapping[str, str] | None
    inventory: str  # as it can be pasted
    adopt: bool = False  # take over nodes of another cluster
    take_lock: bool = False  # take the lock of a run that the user knows to be dead
    look_only: bool = False  # neither lock nor mark


@dataclasses.dataclass(frozen=True)
class Claimed:
    """How a claim ended: what stands in the way, or which nodes were taken over from which cluster."""

    problems: tuple[Problem, ...] = ()
    unreached: frozenset[str] = frozenset()
    adopted: Mapping[str, str] = dataclasses.field(default_factory=dict)
    told: tuple[str, ...] = ()


class NodeClaims:
    """The nodes that one run has claimed."""

    def __init__(self, record: RunRecord, owner: Owner, sudo_password: str | None) -> None:
        self._record = record
        self._owner = owner
        self._sudo_password = sudo_password
        self._locked: dict[str, Host] = {}
        self.claimed: tuple[str, ...] = ()  # the nodes that were looked at
        self.connections: Path | None = None  # the folder of shared connections

    def take(self, hosts: Sequence[Host], wanted: Wanted) -> Claimed:
        """Look at the marks of nodes, and lock and mark them where nothing stands in the way.

        Nodes that only Ansible reaches are left to the role preflight.
        """
        by_name = {host.name: host.with_sudo_password(self._sudo_password) for host in hosts if host.by_ssh}
        own = snapshots.read_identity(self._record.cluster_id)
        look: dict[str, Any] = {
            "names": [host.name for host in wanted.listed],
            "addresses": [address_of(host) for host in wanted.listed],
            "cluster": own,
            "adopt": wanted.adopt,
        }
        requests = {
            host: look if wanted.look_only else {**look, "lock": self._lock(name)} for name, host in by_name.items()
        }
        answers, failed = self._ask(requests)
        self._keep(answers, by_name)
        again = self._over(answers, take_lock=wanted.take_lock)
        if again:
            more, lost = self._ask({by_name[n]: {**requests[by_name[n]], **over} for n, over in again.items()})
            answers, failed = {**answers, **more}, {**failed, **lost}
            self._keep(more, by_name)
        problems = [playbook.connection_problem(failure) for failure in failed.values()]
        problems += claim_problems(answers, self._record.run_id, adopt=wanted.adopt)
        if not own and not wanted.adopt:
            problems += past_problems(answers, wanted.inventory)
        if problems:
            return Claimed(tuple(problems), frozenset(failed))
        self.claimed = tuple(answers)
        if not wanted.look_only:
            problems, failed = self._mark(answers, by_name, wanted, own)
        return Claimed(tuple(problems), frozenset(failed), adopted_nodes(answers), id_words(own, answers))

    def _mark(
        self, answers: Mapping[str, ClaimAnswer], hosts: Mapping[str, Host], wanted: Wanted, own: str
    ) -> tuple[list[Problem], dict[str, ProbeFailure]]:
        """Write the marks that differ, for a run that tells nodes about members, or that takes nodes over."""
        adopted = adopted_nodes(answers)
        if wanted.members is None and not adopted:
            return [], {}
        cluster = cluster_id(own, answers.values(), snapshots.fresh_identity())
        if cluster != own:
            snapshots.write_identity(self._record.cluster_id, cluster)
        members = wanted.members
        if members is None:
            members = members_of(wanted.listed, ())
            answers = {name: answers[name] for name in adopted}
        answers = {name: answer for name, answer in answers.items() if name in members}
        since = self._record.started.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # the same on all nodes
        mark = {"cluster": cluster, **dataclasses.asdict(self._owner), "since": since, "members": dict(members)}
        names = to_mark(answers, cluster, self._owner, members)
        requests = {hosts[name]: {"mark": mark, **self._audit(taken_from(answers[name], cluster))} for name in names}
        done, failed = self._ask(requests) if requests else ({}, {})
        problems = [playbook.connection_problem(failure) for failure in failed.values()]
        return [*problems, *claim_problems(done, self._record.run_id, adopt=True)], failed

    def forget(self, hosts: Iterable[Host]) -> None:
        """Take the mark from nodes that left the cluster; one that does not answer keeps it."""
        own = snapshots.read_identity(self._record.cluster_id)
        leaving = {host.with_sudo_password(self._sudo_password): {"forget": own} for host in hosts if host.by_ssh}
        if leaving and own:
            self._ask(leaving)

    def release(self) -> None:
        """Release the nodes. One that does not answer keeps its lock, which the next run here takes over."""
        locked, self._locked = self._locked, {}
        if locked:
            self._ask({host: {"release": self._record.run_id} for host in locked.values()}, _RELEASE_S)

    def _ask(
        self, requests: Mapping[Host, Mapping[str, Any]], timeout_s: float = _TIMEOUT_S
    ) -> tuple[dict[str, ClaimAnswer], dict[str, ProbeFailure]]:
        lasting = {reach.lasting(host): request for host, request in requests.items()}
        return ask(lasting, timeout_s, self.connections)

    def _keep(self, answers: Mapping[str, ClaimAnswer], hosts: Mapping[str, Host]) -> None:
        self._locked.update({name: hosts[name] for name, answer in answers.items() if answer.taken})

    def _over(self, answers: Mapping[str, ClaimAnswer], *, take_lock: bool) -> dict[str, dict[str, Any]]:
        """Return by node how the lock of a run is taken over: one that has ended, or that the user says is dead."""
        here = _this_process()
        found: dict[str, dict[str, Any]] = {}
        for name, lock in holders(answers, self._record.run_id).items():
            if _has_ended(lock, here):
                found[name] = {"instead": lock.run}
            elif take_lock:
                found[name] = {"instead": lock.run, **self._audit(lock_taken_from(lock))}
        return found

    def _audit(self, change: str) -> dict[str, Any]:
        """Return the part of a request that makes the node write an audit line; empty without a change."""
        return {"audit": {**who(self._record), "changes": [change]}} if change else {}

    def _lock(self, name: str) -> dict[str, Any]:
        here, record = _this_process(), self._record
        return {
            "run": record.run_id,
            "host": name,
            "user": record.user,
            "controller": here.host,
            "machine": here.machine_id,
            "boot": here.boot_id,
            "namespace": here.pid_namespace,
            "pid": record.pid,
            "ticks": here.started_ticks,
            "command": " ".join(record.argv),
            "since": record.started.astimezone().isoformat(timespec="seconds"),
        }


def who(record: RunRecord) -> dict[str, str]:
    """Return what the audit line of each node says of a run."""
    return {"run": record.run_id, "user": record.user, "controller": platform.node()}


def _has_ended(lock: NodeLock, here: ProcessIdentity) -> bool:
    """Whether the run of a lock is known to have ended; a machine without an id is never taken for this one."""
    if not lock.machine:
        return False
    return processes.has_ended(identity_of(lock), here, processes.started_ticks(lock.pid))


def _this_process() -> ProcessIdentity:
    """Return the identity of this process with a digest for the machine's id, which machine-id(5) asks to keep."""
    here = processes.this_process()
    digest = hashlib.sha256(f"clusterctl:{here.machine_id}".encode()).hexdigest()[:32] if here.machine_id else ""
    return here.model_copy(update={"machine_id": digest})


# --- Look at the mark of a cluster on nodes, write it, and take and release the lock of a run: one ssh per node -------

NODE_OWNERSHIP = "node_ownership.mark_and_lock"
_ANSWER = "node_ownership"


def ask(
    requests: Mapping[Host, Mapping[str, Any]], timeout_s: float = _TIMEOUT_S, control_dir: Path | None = None
) -> tuple[dict[str, ClaimAnswer], dict[str, ProbeFailure]]:
    """Send each host its request, see ``plugins/module_utils/node_ownership``.

    Returns:
        The answers and the failures by the host's name; nothing is raised for a host.
    """
    lines = {host: json.dumps(request).encode() for host, request in requests.items()}
    return asyncio.run(one_trip.ask(lines, NODE_OWNERSHIP, _read, timeout_s=timeout_s, control_dir=control_dir))


def _read(host: Host, ending: python.Ending) -> ClaimAnswer | ProbeFailure:
    """Return the answer in the output, which may have lines of a login script around it."""
    for line in reversed(ending.output.splitlines()):
        if line.startswith(f'{{"{_ANSWER}"'.encode()):
            try:
                return ClaimAnswer.model_validate(node_json.loads(line)[_ANSWER])
            except (ValidationError, ValueError):
                break
    words = f"{where(host)} gave no readable answer about its cluster; see what a login prints: {by_hand(host)}."
    return ProbeFailure(host.name, "error", words)


# --- Whose a node is: the mark of its cluster, the lock of the run that works on it, and what a node says of both -----


class ClusterMark(Fact):
    """What a node keeps of its cluster; ``members`` are addresses by name."""

    cluster: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    name: Text = ""
    controller: Text = ""
    inventory: Text = ""
    since: Text = ""
    members: dict[Text, Text] = Field(default_factory=dict)


class NodeLock(Fact):
    """The run that works on a node."""

    run: Text
    host: Text = ""  # the inventory's name of the node
    user: Text = ""  # who started it
    controller: Text = ""  # the machine on which it runs
    machine: Text = ""  # a digest of that machine's id; '' where it has none
    boot: Text = ""  # the boot of that machine
    namespace: Text = ""  # the namespace of its process number
    pid: int = 0  # its process there
    ticks: int = 0  # when the process started, in clock ticks since the boot
    command: Annotated[str, Field(max_length=1 << 17), AfterValidator(escaped)] = ""  # as it may be shown
    since: Text = ""  # when the lock was taken


class ClaimAnswer(Fact):
    """What a node says to a claim."""

    mark: ClusterMark | None = None  # of its cluster, before the claim
    lost: tuple[Text, ...] = ()  # the members that this cluster would lose
    holder: NodeLock | None = None  # the lock of another run
    taken: bool = False  # whether this run has the lock now
    problem: Text = ""  # why the node could not do it, a clause


# --- Decide whether a run may have its nodes: the members of other clusters, and the locks of other runs --------------

OTHER_CLUSTER, LOCK, SAME_MACHINE, PAST = "other cluster", "lock", "same machine", "earlier runs"
_MOST_NAMED = 8
_SSH_PORT = 22
_ADOPT = "take the node out of this inventory, or take it over with --adopt"
_WAIT = "wait for that run to end, or stop it; give --take-lock only where it is known to be dead"


@dataclass(frozen=True)
class Owner:
    """The cluster for which a run claims nodes, as their marks tell it."""

    name: str
    controller: str
    inventory: str


def address_of(host: Host) -> str:
    """Return where a host's sshd listens, as the mark of a cluster names it."""
    return host.address if host.port == _SSH_PORT else host.place


def identity_of(lock: NodeLock) -> ProcessIdentity:
    """Return the process of a lock in the form in which processes are compared."""
    return ProcessIdentity(
        host=lock.controller,
        machine_id=lock.machine,
        boot_id=lock.boot,
        pid_namespace=lock.namespace,
        started_ticks=lock.ticks,
    )


def holders(answers: Mapping[str, ClaimAnswer], run_id: str) -> dict[str, NodeLock]:
    return {
        name: answer.holder
        for name, answer in answers.items()
        if answer.holder is not None and answer.holder.run != run_id
    }


def claim_problems(answers: Mapping[str, ClaimAnswer], run_id: str, *, adopt: bool) -> list[Problem]:
    """Return what stands in the way of a run, a sentence for each set of nodes."""
    found: list[Problem] = []
    for name, answer in answers.items():
        if answer.problem:
            cure = "make it writable for root, or restart the node"
            found.append(Problem(host=name, subject=LOCK, problem=answer.problem, cure=cure))
        elif answer.lost and answer.mark is not None and not adopt:
            words = _belongs(answer.mark, answer.lost)
            found.append(Problem(host=name, subject=OTHER_CLUSTER, problem=words, cure=_ADOPT, kind="configuration"))
        elif answer.holder is not None and answer.holder.run == run_id:
            words = f"{answer.holder.host} and {name} are one machine"
            cure = f"delete one of the two from the inventory; {answer.holder.host} and {name} would change it at once"
            found.append(Problem(host=name, subject=SAME_MACHINE, problem=words, cure=cure, kind="configuration"))
        elif answer.holder is not None:
            words = f"held by {_holder(answer.holder)}"
            found.append(Problem(host=name, subject=LOCK, problem=words, cure=_WAIT, kind="configuration"))
    return found


def past_problems(answers: Mapping[str, ClaimAnswer], inventory: str) -> list[Problem]:
    """Return the question whether an inventory without a past goes on with the one whose id its nodes bear."""
    bearers: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if answer.mark is not None:
            bearers.setdefault(answer.mark.cluster, []).append(name)
    found = []
    for identity, nodes in bearers.items():
        if pasts := clusters.left_behind(identity):
            words = f"{folded(nodes)} had runs under another inventory, which is gone: {and_more(pasts, _MOST_NAMED)}"
            cure = f"go on with them by 'clusterctl history --past {pasts[0]} {inventory}', or without by '--past new'"
            found.append(Problem(host=nodes[0], subject=PAST, problem=words, cure=cure, kind="configuration"))
    return found


def _belongs(mark: ClusterMark, lost: Sequence[str]) -> str:
    return (
        f"belongs to the cluster of {mark.inventory} (set up by {mark.controller}, since {mark.since}), which would "
        f"lose {and_more(lost, _MOST_NAMED)}"
    )


def _holder(lock: NodeLock) -> str:
    return f"{lock.user}'s '{lock.command}' (process {lock.pid} on {lock.controller}, since {lock.since})"


def cluster_id(own: str, answers: Iterable[ClaimAnswer], fresh: str) -> str:
    """Return the id that the nodes get: our own, or that of the foreign nodes that we adopt, or a fresh one.

    Where marked nodes bear different ids, none of them counts.
    """
    marks = {answer.mark.cluster: bool(answer.lost) for answer in answers if answer.mark is not None}
    return own or (next(iter(marks)) if len(marks) == 1 and any(marks.values()) else fresh)


def id_words(own: str, answers: Mapping[str, ClaimAnswer]) -> tuple[str, ...]:
    """Return a sentence on whose word a controller without an id takes one, or takes none, from adopted nodes."""
    marked = [name for name, answer in answers.items() if answer.mark is not None]
    ids = {answer.mark.cluster: name for name, answer in answers.items() if answer.mark is not None}
    if own or not any(answer.lost for answer in answers.values()):
        return ()
    if len(ids) > 1:
        borne = and_more([f"{name} has {identity}" for identity, name in ids.items()], _MOST_NAMED, ", ")
        return (f"This cluster gets an id of its own, since the marks of its nodes disagree: {borne}.",)
    return (f"This cluster gets the id {next(iter(ids))}, which the mark on {folded(marked)} names.",)


def adopted_nodes(answers: Mapping[str, ClaimAnswer]) -> dict[str, str]:
    """Return by node from which cluster it was taken over."""
    return {
        name: f"the cluster of {answer.mark.inventory}, set up by {answer.mark.controller}"
        for name, answer in answers.items()
        if answer.lost and answer.mark is not None
    }


def taken_from(answer: ClaimAnswer, cluster: str) -> str:
    """Return what the audit line of a node says of its former cluster; '' where it had none or stays in its own."""
    mark = answer.mark
    if mark is None or (mark.cluster == cluster and not answer.lost):
        return ""
    lost = f", which loses {and_more(answer.lost, _MOST_NAMED)}" if answer.lost else ""
    return f"taken over from the cluster {mark.cluster} of {mark.inventory}, set up by {mark.controller}{lost}"


def lock_taken_from(lock: NodeLock) -> str:
    """Return what the audit line of a node says of a lock that the user took from a run."""
    return f"took the lock of {_holder(lock)} by --take-lock"


def unlocked(hosts: Iterable[Host]) -> tuple[str, ...]:
    """Return a sentence for each set of hosts that only Ansible reaches: they get neither lock nor mark."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        if not host.by_ssh:
            found.setdefault(host.not_by_ssh, []).append(host.name)
    return tuple(
        f"Another run is not kept away from {folded(names)}: {why}, so only Ansible reaches it, and it gets neither a "
        "lock nor the mark of this cluster."
        for why, names in found.items()
    )


def to_mark(answers: Mapping[str, ClaimAnswer], cluster: str, owner: Owner, members: Mapping[str, str]) -> list[str]:
    """Return the nodes whose mark says something else than it should."""
    wanted = (cluster, owner.name, owner.controller, owner.inventory, dict(members))
    return [
        name
        for name, answer in answers.items()
        if answer.mark is None
        or wanted
        != (
            answer.mark.cluster,
            answer.mark.name,
            answer.mark.controller,
            answer.mark.inventory,
            answer.mark.members,
        )
    ]


def members_of(hosts: Iterable[Host], outside: Collection[str]) -> dict[str, str]:
    """Return the members of a cluster with their addresses; ``outside`` names hosts that are not among them."""
    return {host.name: address_of(host) for host in hosts if host.name not in outside}


def messages(taken_over: Mapping[str, str]) -> tuple[str, ...]:
    """Return what the user has to know about nodes that were taken over, a sentence for each cluster."""
    nodes: dict[str, list[str]] = {}
    for name, cluster in taken_over.items():
        nodes.setdefault(cluster, []).append(name)
    return tuple(f"Taken over from {cluster}: {folded(names)}." for cluster, names in nodes.items())
