"""Decide whether there is anything to do: facts and snapshots in, a decision with its reasons out; no I/O."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.model.snapshot import HostSnapshot
from clusterctl.provisioning import drift
from clusterctl.support import content
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.events import HostResult
    from clusterctl.model.hosts import Inventory, InventoryOptions
    from clusterctl.model.snapshot import NodeState
    from clusterctl.state.certificates import Certificates

_MOST_NAMED = 5


INVENTORY = "the inventory"  # among the digests of Inputs
NOT_PROVISIONED = "not provisioned yet, or its last run was partial or did not finish"
ASKED_FOR = "asked for by an option"
ANOTHER_NODE = "another node is new or has changed"
OTHER_OFFERS = "the nodes offer other libraries or GPUs than before, which decide what is built"


@dataclass(frozen=True)
class ClusterDigests:
    """What each node's provision depends on beside the node itself.

    Attributes:
        members: :func:`members_digest` of the whole cluster.
        offers: :func:`offers_digest` of the whole cluster.
        smaller: the digest of the inventory without the hosts that have no snapshot; '' where all hosts have one.
    """

    members: str
    offers: str = ""
    smaller: str = ""


@dataclass(frozen=True)
class Inputs:
    """What a run would be made from; only digests of variables, for secrets may be among them."""

    inventory: str
    content: str
    version: str
    options: Mapping[str, str] = field(default_factory=dict)
    held: str = ""  # the run whose software a rollback holds
    revoked: str = ""  # the digest of the keys that a certificate authority revoked

    @property
    def digests(self) -> dict[str, str]:
        """One digest for each, by the words that a reason names it with."""
        return {
            **held_inputs(self.held),
            **({"the list of revoked keys": self.revoked} if self.revoked else {}),
            INVENTORY: self.inventory,
            "the content of the playbook": self.content,
            "clusterctl's version": self.version,
            "an option": digest_of(dict(self.options)),
        }


@dataclass(frozen=True)
class ProvisionPlan:
    """The hosts to provision and why; ``reasons`` is empty when every host is as its last run left it.

    ``drifted`` are the hosts on which something is not as it was left, each with that difference. Other changes (the
    inventory, an option) do not matter for it. ``as_left`` are the hosts that are as their last run left them, and as
    the inputs ask for: at most, they have to meet another node.
    """

    reasons: Mapping[str, str]
    drifted: Mapping[str, str] = field(default_factory=dict)
    as_left: frozenset[str] = frozenset()


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


def offers_digest(states: Mapping[str, NodeState], snapshots: Mapping[str, HostSnapshot], hosts: Sequence[str]) -> str:
    """Return the digest of what the nodes offer to builds; a host that does not answer counts as its snapshot.

    A build depends on what some or all nodes offer. So a node that offers the same as another one changes nothing.
    """
    known: list[NodeState | HostSnapshot | None] = [states.get(name) or snapshots.get(name) for name in hosts]
    return digest_of(sorted({one.offers for one in known if one and one.offers}))


def cluster_of(
    states: Mapping[str, NodeState], snapshots: Mapping[str, HostSnapshot], hosts: Sequence[str], smaller: str = ""
) -> ClusterDigests:
    """Return what matters of a cluster; ``smaller`` is that of :class:`Cluster`."""
    return ClusterDigests(members_digest(states, snapshots, hosts), offers_digest(states, snapshots, hosts), smaller)


def decide(
    selected: Sequence[str],
    states: Mapping[str, NodeState],
    snapshots: Mapping[str, HostSnapshot],
    inputs: Inputs,
    cluster: ClusterDigests,
    *,
    every_role: bool = False,
) -> ProvisionPlan:
    """Compare each selected host with its snapshot.

    Args:
        selected: the hosts that ``--limit`` leaves.
        states: how they are now; a host without a state could not be looked at from outside Ansible.
        snapshots: how their last successful run left them.
        inputs: what a run now would be made from.
        cluster: what matters of the whole cluster now.
        every_role: each host plays all roles, also one that is as it was left.
    """
    reasons: dict[str, str] = {}
    for name in selected:
        reason = _reason(states.get(name), snapshots.get(name), inputs, cluster)
        reason = reason or (ASKED_FOR if every_role else "")
        if reason:
            reasons[name] = reason
    pairs = {name: (states[name], snapshots[name]) for name in selected if name in states and name in snapshots}
    drifted = {name: words for name, (state, snapshot) in pairs.items() if (words := _drift(state, snapshot))}
    as_left = frozenset(
        name
        for name in selected
        if reasons.get(name, ANOTHER_NODE) == ANOTHER_NODE and snapshots[name].all_offers == cluster.offers
    )
    return ProvisionPlan(reasons, drifted, as_left)


def _reason(state: NodeState | None, snapshot: HostSnapshot | None, inputs: Inputs, cluster: ClusterDigests) -> str:
    if snapshot is None:
        return NOT_PROVISIONED
    digests = inputs.digests
    is_longer = snapshot.inputs.get(INVENTORY) == cluster.smaller  # new hosts were added, and nothing else changed
    known = {**snapshot.inputs, INVENTORY: digests[INVENTORY]} if is_longer else snapshot.inputs
    changed = [name for name in {**digests, **known} if known.get(name) != digests.get(name)]
    if changed:
        return f"{' and '.join(changed)} changed"
    if state is None:
        return "it can be looked at through Ansible only"
    if drifted := _drift(state, snapshot):
        return drifted
    if snapshot.all_offers and snapshot.all_offers != cluster.offers:
        return OTHER_OFFERS
    is_news = snapshot.members != cluster.members or snapshot.inputs.get(INVENTORY) != digests[INVENTORY]
    return ANOTHER_NODE if is_news else ""


def _drift(state: NodeState, snapshot: HostSnapshot) -> str:
    """Return what of the host itself is no longer as it was left."""
    return and_more(map(str, drift.known_differences(snapshot, state, verified=False)), _MOST_NAMED, "; ")


def watch_of(results: Iterable[HostResult]) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return per host what its tasks said should hold from now on; of two words on one path the later one counts."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for result in results:
        if result.outcome in {"ok", "changed"}:
            for entry in result.watch:
                found.setdefault(result.host, {})[drift.key_of(entry)] = entry
    return {host: tuple(entries.values()) for host, entries in found.items()}


def snapshots_after(
    run_id: str,
    hosts: Sequence[str],
    states: Mapping[str, NodeState],
    watch: Mapping[str, tuple[dict[str, Any], ...]],
    inputs: Inputs,
    cluster: ClusterDigests,
    addresses: Mapping[str, str] | None = None,
) -> dict[str, HostSnapshot]:
    """Return the snapshots of hosts that a full run has just left in order.

    ``addresses`` are those by which the nodes know each other; one that a node does not have itself, behind a port
    forward for example, is not watched.

    A host of which nothing can be watched gets none: an empty list would hold after any change.
    """
    snapshots: dict[str, HostSnapshot] = {}
    for name in hosts:
        state, address = states.get(name), (addresses or {}).get(name, "")
        if state is not None and watch.get(name):
            snapshots[name] = HostSnapshot(
                run_id=run_id,
                inputs=inputs.digests,
                members=cluster.members,
                platform=state.platform,
                host_keys=state.host_keys,
                user=state.user,
                watch=watch[name],
                gpus=state.gpus,
                traits=dict(state.traits),
                offers=state.offers,
                all_offers=cluster.offers,
                address=address if address in state.addresses else "",
            )
    return snapshots


def inputs_of(
    cluster: Inventory, options: InventoryOptions, extra_vars: str, held: str, certificates: Certificates
) -> Inputs:
    """Return what a run would be made from now; ``extra_vars`` is their digest, ``held`` the run of a hold."""
    return Inputs(
        inventory=cluster.digest,
        content=content.digest(),
        version=__version__,
        options={"extra_vars": extra_vars, "become": str(options.become), "user": options.user or ""},
        held=held,
        revoked=certificates.revoked,
    )
