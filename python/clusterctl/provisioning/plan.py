"""Decide whether there is anything to do: facts and snapshots in, a decision with its reasons out; no I/O."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.model.snapshot import HostSnapshot
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.events import HostResult

_MOST_PATHS_NAMED = 3


@dataclass(frozen=True)
class NodeState:
    """What of a node's facts decides.

    ``watch`` is the present state of the paths that its snapshot names; ``gpus`` counts those that NVIDIA's driver has
    taken, with the driver's version, since they decide which builds a node gets. ``lost_address`` is the address that
    Open MPI and NCCL are told to use there, where the node no longer has it.
    """

    platform: str
    host_keys: tuple[str, ...]
    user: str
    watch: tuple[Mapping[str, Any], ...] = ()
    gpus: str = ""
    lost_address: str = ""


@dataclass(frozen=True)
class Inputs:
    """What a run would be made from; only digests of variables, for secrets may be among them."""

    inventory: str
    content: str
    version: str
    options: Mapping[str, str] = field(default_factory=dict)
    held: str = ""  # the run whose software a rollback holds

    @property
    def digests(self) -> dict[str, str]:
        """One digest for each, by the words that a reason names it with."""
        return {
            **held_inputs(self.held),
            "the inventory": self.inventory,
            "the content of the playbook": self.content,
            "clusterctl's version": self.version,
            "an option": digest_of(dict(self.options)),
        }


@dataclass(frozen=True)
class ProvisionPlan:
    """The hosts to provision and why; ``reasons`` is empty when every host is as its last run left it.

    ``drifted`` are the hosts on which something is not as it was left, each with that difference. Other changes (the
    inventory, an option) do not matter for it.
    """

    reasons: Mapping[str, str]
    drifted: Mapping[str, str] = field(default_factory=dict)

    @property
    def work(self) -> bool:
        """Whether Ansible has to run at all."""
        return bool(self.reasons)


def held_inputs(run_id: str) -> dict[str, str]:
    """Return what a hold adds to the digests of :class:`Inputs`; without a hold, nothing."""
    return {"the hold of a rollback": digest_of(run_id)} if run_id else {}


def digest_of(value: Any) -> str:
    """Return the sha256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def members_digest(states: Mapping[str, NodeState], snapshots: Mapping[str, HostSnapshot], hosts: Sequence[str]) -> str:
    """Return the digest of what every node knows of the others.

    A host that does not answer and is not selected counts as its snapshot describes it. So one switched-off machine
    does not make all others look changed.
    """
    members: list[tuple[str, str, tuple[str, ...], str]] = []
    for name in sorted(hosts):
        known: NodeState | HostSnapshot | None = states.get(name) or snapshots.get(name)
        members.append(
            (name, known.platform, tuple(sorted(known.host_keys)), known.gpus) if known else (name, "", (), "")
        )
    return digest_of(members)


def decide(
    selected: Sequence[str],
    states: Mapping[str, NodeState],
    snapshots: Mapping[str, HostSnapshot],
    inputs: Inputs,
    members: str,
) -> ProvisionPlan:
    """Compare each selected host with its snapshot.

    Args:
        selected: the hosts that ``--limit`` leaves.
        states: how they are now; a host without a state could not be looked at from outside Ansible.
        snapshots: how their last successful run left them.
        inputs: what a run now would be made from.
        members: :func:`members_digest` of the whole cluster now.
    """
    reasons: dict[str, str] = {}
    for name in selected:
        reason = _reason(states.get(name), snapshots.get(name), inputs, members)
        if reason:
            reasons[name] = reason
    pairs = {name: (states[name], snapshots[name]) for name in selected if name in states and name in snapshots}
    drifted = {name: words for name, (state, snapshot) in pairs.items() if (words := _drift(state, snapshot))}
    return ProvisionPlan(reasons, drifted)


def _reason(state: NodeState | None, snapshot: HostSnapshot | None, inputs: Inputs, members: str) -> str:
    if snapshot is None:
        return "not provisioned yet, or its last run was partial or did not finish"
    digests = inputs.digests
    changed = [name for name in {**digests, **snapshot.inputs} if snapshot.inputs.get(name) != digests.get(name)]
    if changed:
        return f"{' and '.join(changed)} changed"
    if state is None:
        return "it can be looked at through Ansible only"
    return _drift(state, snapshot) or ("another node is new or has changed" if snapshot.members != members else "")


def _drift(state: NodeState, snapshot: HostSnapshot) -> str:
    """Return what of the host itself is no longer as it was left."""
    for name, before, after in (
        ("platform", snapshot.platform, state.platform),
        ("login user", snapshot.user, state.user),
        ("host key", sorted(snapshot.host_keys), sorted(state.host_keys)),
        ("set of GPUs, or their driver,", snapshot.gpus, state.gpus),
    ):
        if before != after:
            return f"its {name} changed"
    if state.lost_address:
        return f"it has no longer the address {state.lost_address}, which its jobs are told to use"
    differing = differences(snapshot.watch, state.watch)
    if differing:
        return f"{and_more(differing, _MOST_PATHS_NAMED)} {'differs' if len(differing) == 1 else 'differ'}"
    return ""


def differences(before: Iterable[Mapping[str, Any]], present: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths whose present state differs from the snapshot, in the snapshot's order."""
    now = {_key(entry): entry for entry in present}
    found: dict[str, None] = {}
    for entry in before:
        other = now.get(_key(entry), {})
        if any(other.get(name) != value for name, value in entry.items()):
            found.setdefault(str(entry.get("path")))
    return list(found)


def _key(entry: Mapping[str, Any]) -> str:
    return str(entry.get("path"))


def watch_of(results: Iterable[HostResult]) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return per host what its tasks said should hold from now on; of two words on one path the later one counts."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for result in results:
        if result.outcome in {"ok", "changed"}:
            for entry in result.watch:
                found.setdefault(result.host, {})[_key(entry)] = entry
    return {host: tuple(entries.values()) for host, entries in found.items()}


def snapshots_after(
    run_id: str,
    hosts: Sequence[str],
    states: Mapping[str, NodeState],
    watch: Mapping[str, tuple[dict[str, Any], ...]],
    inputs: Inputs,
    members: str,
) -> dict[str, HostSnapshot]:
    """Return the snapshots of hosts that a full run has just left in order.

    A host of which nothing can be watched gets none: an empty list would hold after any change.
    """
    snapshots: dict[str, HostSnapshot] = {}
    for name in hosts:
        state = states.get(name)
        if state is not None and watch.get(name):
            snapshots[name] = HostSnapshot(
                run_id=run_id,
                inputs=inputs.digests,
                members=members,
                platform=state.platform,
                host_keys=state.host_keys,
                user=state.user,
                watch=watch[name],
                gpus=state.gpus,
            )
    return snapshots
