"""Claim nodes for a run: refuse nodes of other clusters, lock them, mark them, and release them at the end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from datetime import timezone
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from clusterctl.model.node_claim import ClaimAnswer
from clusterctl.model.probe import ProbeFailure
from clusterctl.provisioning import claims, refusals
from clusterctl.remote import one_trip
from clusterctl.remote.reach import by_hand, where
from clusterctl.state import identity, processes
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.hosts import Host
    from clusterctl.model.node_claim import NodeLock
    from clusterctl.model.run_record import Problem, ProcessIdentity, RunRecord
    from clusterctl.remote import python


_RELEASE_S = 8.0  # a node that died during the run does not hold up its end for long


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a run wants of its nodes.

    Attributes:
        listed: all hosts of the inventory.
        members: the members that the nodes know after the run, addresses by name; None leaves the marks as they are.
        adopt: take over nodes of another cluster.
        take_lock: take the lock of a run that the user knows to be dead.
        look_only: neither lock nor mark.
    """

    listed: tuple[Host, ...]
    members: Mapping[str, str] | None
    adopt: bool = False
    take_lock: bool = False
    look_only: bool = False


@dataclasses.dataclass(frozen=True)
class Claimed:
    """How a claim ended: what stands in the way, or which nodes were taken over from which cluster."""

    problems: tuple[Problem, ...] = ()
    unreached: frozenset[str] = frozenset()
    adopted: Mapping[str, str] = dataclasses.field(default_factory=dict)
    told: tuple[str, ...] = ()


class NodeClaims:
    """The nodes that one run has claimed."""

    def __init__(self, record: RunRecord, owner: claims.Owner, sudo_password: str | None) -> None:
        """Begin without a node."""
        self._record = record
        self._owner = owner
        self._sudo_password = sudo_password
        self._locked: dict[str, Host] = {}
        self.claimed: tuple[str, ...] = ()  # the nodes that were looked at

    def take(self, hosts: Sequence[Host], wanted: Wanted) -> Claimed:
        """Look at the marks of nodes, and lock and mark them where nothing stands in the way.

        Args:
            hosts: the nodes; those that only Ansible reaches are left to the role preflight.
            wanted: what is wanted of them.
        """
        by_name = {host.name: host.with_sudo_password(self._sudo_password) for host in hosts if host.by_ssh}
        own = identity.read(self._record.cluster_id)
        look: dict[str, Any] = {
            "names": [host.name for host in wanted.listed],
            "addresses": [claims.address_of(host) for host in wanted.listed],
            "cluster": own,
            "adopt": wanted.adopt,
        }
        requests = {
            host: look if wanted.look_only else {**look, "lock": self._lock(name)} for name, host in by_name.items()
        }
        answers, failed = ask(requests)
        self._keep(answers, by_name)
        again = self._over(answers, take_lock=wanted.take_lock)
        if again:
            more, lost = ask({by_name[n]: {**requests[by_name[n]], **over} for n, over in again.items()})
            answers, failed = {**answers, **more}, {**failed, **lost}
            self._keep(more, by_name)
        problems = [refusals.connection_problem(failure) for failure in failed.values()]
        problems += claims.problems(answers, self._record.run_id, adopt=wanted.adopt)
        if problems:
            return Claimed(tuple(problems), frozenset(failed))
        self.claimed = tuple(answers)
        if not wanted.look_only:
            problems, failed = self._mark(answers, by_name, wanted, own)
        return Claimed(tuple(problems), frozenset(failed), claims.adopted(answers), claims.id_words(own, answers))

    def _mark(
        self, answers: Mapping[str, ClaimAnswer], hosts: Mapping[str, Host], wanted: Wanted, own: str
    ) -> tuple[list[Problem], dict[str, ProbeFailure]]:
        """Write the marks that differ, for a run that tells nodes about members, or that takes nodes over."""
        adopted = claims.adopted(answers)
        if wanted.members is None and not adopted:
            return [], {}
        cluster = claims.cluster_id(own, answers.values(), identity.fresh())
        if cluster != own:
            identity.write(self._record.cluster_id, cluster)
        members = wanted.members
        if members is None:
            members = claims.members_of(wanted.listed, ())
            answers = {name: answers[name] for name in adopted}
        answers = {name: answer for name, answer in answers.items() if name in members}
        since = self._record.started.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # the same on all nodes
        mark = {"cluster": cluster, **dataclasses.asdict(self._owner), "since": since, "members": dict(members)}
        names = claims.to_mark(answers, cluster, self._owner, members)
        requests = {
            hosts[name]: {"mark": mark, **self._audit(claims.taken_from(answers[name], cluster))} for name in names
        }
        done, failed = ask(requests) if requests else ({}, {})
        problems = [refusals.connection_problem(failure) for failure in failed.values()]
        return [*problems, *claims.problems(done, self._record.run_id, adopt=True)], failed

    def forget(self, hosts: Iterable[Host]) -> None:
        """Take the mark from nodes that left the cluster; one that does not answer keeps it."""
        own = identity.read(self._record.cluster_id)
        leaving = {host.with_sudo_password(self._sudo_password): {"forget": own} for host in hosts if host.by_ssh}
        if leaving and own:
            ask(leaving)

    def release(self) -> None:
        """Release the nodes. One that does not answer keeps its lock, which the next run here takes over."""
        locked, self._locked = self._locked, {}
        if locked:
            ask({host: {"release": self._record.run_id} for host in locked.values()}, _RELEASE_S)

    def _keep(self, answers: Mapping[str, ClaimAnswer], hosts: Mapping[str, Host]) -> None:
        self._locked.update({name: hosts[name] for name, answer in answers.items() if answer.taken})

    def _over(self, answers: Mapping[str, ClaimAnswer], *, take_lock: bool) -> dict[str, dict[str, Any]]:
        """Return by node how the lock of a run is taken over: one that has ended, or that the user says is dead."""
        here = _this_process()
        found: dict[str, dict[str, Any]] = {}
        for name, lock in claims.holders(answers, self._record.run_id).items():
            if _has_ended(lock, here):
                found[name] = {"instead": lock.run}
            elif take_lock:
                found[name] = {"instead": lock.run, **self._audit(claims.lock_taken_from(lock))}
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
    return processes.has_ended(claims.identity_of(lock), here, processes.started_ticks(lock.pid))


def _this_process() -> ProcessIdentity:
    """Return the identity of this process with a digest for the machine's id, which machine-id(5) asks to keep."""
    here = processes.this_process()
    digest = hashlib.sha256(f"clusterctl:{here.machine_id}".encode()).hexdigest()[:32] if here.machine_id else ""
    return here.model_copy(update={"machine_id": digest})


# Look at the mark of a cluster on nodes, write it, and take and release the lock of a run: one ssh per node.

NODE_CLAIM = "node_claim.__main__"
_ANSWER = "node_claim"
_TIMEOUT_S = 30.0


def ask(
    requests: Mapping[Host, Mapping[str, Any]], timeout_s: float = _TIMEOUT_S
) -> tuple[dict[str, ClaimAnswer], dict[str, ProbeFailure]]:
    """Send each host its request, see ``plugins/module_utils/node_claim``.

    Returns:
        The answers and the failures by the host's name; nothing is raised for a host.
    """
    lines = {host: json.dumps(request).encode() for host, request in requests.items()}
    return one_trip.ask(lines, NODE_CLAIM, _read, timeout_s=timeout_s)


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
