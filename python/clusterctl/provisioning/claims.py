"""Decide whether a run may have its nodes: the members of other clusters, and the locks of other runs; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.nodeset import folded
from clusterctl.model.run_record import Problem, ProcessIdentity
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clusterctl.model.hosts import Host
    from clusterctl.model.node_claim import ClaimAnswer, ClusterMark, NodeLock

OTHER_CLUSTER, LOCK, SAME_MACHINE = "other cluster", "lock", "same machine"
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
    """Return the locks of other runs, by node."""
    return {
        name: answer.holder
        for name, answer in answers.items()
        if answer.holder is not None and answer.holder.run != run_id
    }


def problems(answers: Mapping[str, ClaimAnswer], run_id: str, *, adopt: bool) -> list[Problem]:
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


def adopted(answers: Mapping[str, ClaimAnswer]) -> dict[str, str]:
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
