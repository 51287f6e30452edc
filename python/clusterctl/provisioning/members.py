"""Members of a cluster: which hosts leave it, and the snapshot after that; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.model import nodeset
from clusterctl.provisioning import plan
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.hosts import Inventory, InventorySources
    from clusterctl.model.snapshot import HostSnapshot, NodeState, Snapshot

_MOST_NAMED = 8


@dataclass(frozen=True)
class Removal:
    """Which hosts leave a cluster."""

    names: tuple[str, ...]  # the hosts that leave
    # the hosts of the cluster afterwards, in the inventory's order; the first is the launch node
    remaining: tuple[str, ...]
    # the inventory's other hosts, which are no members: removed before, or not provisioned yet
    outsiders: tuple[str, ...]

    def listed(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Return the hosts that leave and that the inventory still names."""
        known = set(hosts)
        return tuple(name for name in self.names if name in known)


def removal(
    asked: Sequence[str], hosts: Sequence[str], before: Snapshot, inventory: InventorySources, *, launch_node_too: bool
) -> Removal:
    """Decide which hosts leave.

    ``asked`` are names, or lists such as node[2-3].

    Raises:
        ConfigError: a host is unknown, no host would remain, or the launch node would leave unasked.
    """
    members = [str(member.get("name")) for member in before.members] or list(hosts)
    known = dict.fromkeys((*hosts, *members, *before.hosts, *before.removed))
    names = tuple(dict.fromkeys(name for word in asked for name in _expanded(word, known)))
    for name in names:
        if name not in known:
            shown = and_more(list(known), _MOST_NAMED)
            raise ConfigError(f"{inventory} has no host '{name}', and no run knows it; known hosts: {shown}.")
    remaining = tuple(name for name in hosts if name in members and name not in names)
    if not remaining:
        raise ConfigError(
            f"{nodeset.folded(names)} cannot be removed: no node would remain, and a cluster has at least one."
        )
    launch_node = next(name for name in hosts if name in members)
    if launch_node in names and not launch_node_too:
        raise ConfigError(
            f"{launch_node} is the launch node, the first of {inventory}, and {remaining[0]} would become it; "
            "--launch-node-too removes it all the same."
        )
    outsiders = tuple(name for name in hosts if name not in remaining and name not in names)
    return Removal(names, remaining, outsiders)


def _expanded(word: str, known: Iterable[str]) -> Sequence[str]:
    return [word] if word in known or "[" not in word else nodeset.expanded(word) or [word]


def still_removed(before: Snapshot, cluster: Inventory) -> tuple[str, ...]:
    """Return the removed hosts that a run on the selected hosts of the inventory does not take in again."""
    names = {host.name for host in cluster.hosts} - set(cluster.selected)
    return tuple(name for name in before.removed if name in names)


@dataclass(frozen=True)
class Left:
    """What a run that told the nodes about the members of the cluster left."""

    run_id: str
    members: tuple[dict[str, Any], ...]  # the members, as preflight describes them
    states: Mapping[str, NodeState]  # the state of each remaining host
    watch: Mapping[str, tuple[dict[str, Any], ...]]  # by host, what the tasks said should hold from now on
    # by the digest of an inventory with the removed hosts, the digest of the same inventory without them
    digests: Mapping[str, str]


def snapshot_after(before: Snapshot, removed: Removal, left: Left) -> Snapshot:
    """Return the snapshot of a cluster that hosts have left.

    A host that was as its last run left it stays so. All other differences stay for the next ``provision``.
    """
    states = _of_known({name: left.states[name] for name in removed.remaining if name in left.states}, before)
    without = plan.members_digest(states, before.hosts, removed.remaining)
    # A host that was never provisioned stood in the inventory of the last run, or was added since.
    known = [name for name in removed.names if name in before.hosts]
    digests = {
        plan.members_digest(states, before.hosts, [*removed.remaining, *names]): without
        for names in (removed.names, known)
    }
    hosts = {
        name: _host_after(host, left, name, digests) for name, host in before.hosts.items() if name in removed.remaining
    }
    gone = tuple(dict.fromkeys((*before.removed, *removed.names)))
    return before.model_copy(update={"members": left.members or before.members, "removed": gone, "hosts": hosts})


def snapshot_after_replacing(
    before: Snapshot, name: str, hosts: Sequence[str], left: Left, fresh: Mapping[str, HostSnapshot]
) -> Snapshot:
    """Return the snapshot of a cluster in which one host is another machine now.

    ``fresh`` is the snapshot of the new machine; empty where nothing of it can be watched.
    """
    others = _of_known({host: state for host, state in left.states.items() if host != name}, before)
    old = plan.members_digest(others, before.hosts, hosts)
    fresh_state = {name: left.states[name]} if name in left.states else {}
    new = plan.members_digest({**others, **fresh_state}, {}, hosts)
    kept = {
        host: _host_after(snapshot, left, host, {old: new})
        for host, snapshot in before.hosts.items()
        if host in hosts and host != name
    }
    gone = tuple(host for host in before.removed if host != name)
    return before.model_copy(
        update={"members": left.members or before.members, "removed": gone, "hosts": {**kept, **fresh}}
    )


def snapshot_after_rotation(
    before: Snapshot, hosts: Sequence[str], old: Mapping[str, NodeState], left: Left
) -> Snapshot:
    """Return the snapshot of a cluster whose hosts have new keys; ``old`` are their states before."""
    then, now = _of_known(old, before), _of_known(left.states, before)
    digests = {plan.members_digest(then, before.hosts, hosts): plan.members_digest(now, before.hosts, hosts)}
    found = {}
    for name, host in before.hosts.items():
        fresh = _host_after(host, left, name, digests) if name in hosts else host
        if name in old and name in left.states and sorted(host.host_keys) == sorted(old[name].host_keys):
            fresh = fresh.model_copy(update={"host_keys": left.states[name].host_keys})
        found[name] = fresh
    return before.model_copy(update={"members": left.members or before.members, "hosts": found})


def _of_known(states: Mapping[str, NodeState], before: Snapshot) -> dict[str, NodeState]:
    """Return the states of the hosts that a run has provisioned; the others are no members yet, as for provision."""
    return {name: state for name, state in states.items() if name in before.hosts}


def _host_after(host: HostSnapshot, left: Left, name: str, members: Mapping[str, str]) -> HostSnapshot:
    inventory = host.inputs.get(plan.INVENTORY, "")
    return host.model_copy(
        update={
            "run_id": left.run_id,
            "inputs": {**host.inputs, plan.INVENTORY: left.digests.get(inventory, inventory)},
            "members": members.get(host.members, host.members),
            "watch": watch_after(host.watch, left.watch.get(name, ())),
        }
    )


def watch_after(before: Iterable[Mapping[str, Any]], said: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return what holds after some of the roles were played: what the others said before, and what these said now."""
    found = {plan.key_of(entry): dict(entry) for entry in before}
    found.update({plan.key_of(entry): dict(entry) for entry in said})
    return tuple(found.values())


def messages(
    removed: Removal, hosts: Sequence[str], dead: Sequence[str], inventory: InventorySources, *, cleaned: bool = False
) -> tuple[str, ...]:
    """Return what the user has to know after a removal, a sentence each.

    ``dead`` are the hosts that do not answer. With ``cleaned``, the hosts were put back to what they were.
    """
    names, many = nodeset.folded(removed.names), len(removed.names) > 1
    its, has, it = ("their", "have", "they") if many else ("its", "has", "it")
    sentences = [
        f"{nodeset.folded(removed.remaining)} refuse {its} keys from now on, and know neither the host keys nor the "
        f"names of {names}."
        if len(removed.remaining) > 1
        else f"{removed.remaining[0]} refuses {its} keys from now on, and knows neither host keys nor names of {names}."
    ]
    if dead:
        sentences.append(f"{nodeset.folded(dead)} did not answer and {'were' if len(dead) > 1 else 'was'} left alone.")
    sentences.append(
        f"{names} {'are' if many else 'is'} as before the first provision."
        if cleaned
        else f"Apart from {its} mark of the cluster, nothing changed on {names}: "
        f"{it} still {has} {its} private key, the files of the mesh and the software."
    )
    listed = removed.listed(hosts)
    if listed:
        sentences.append(
            f"Delete {nodeset.folded(listed)} from {inventory}; while it is there, a full 'clusterctl provision' takes "
            f"{'the hosts' if len(listed) > 1 else 'the host'} in again."
        )
    return tuple(sentences)
