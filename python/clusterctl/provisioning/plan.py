"""Decide whether there is anything to do: facts and snapshots in, a decision with its reasons out; no I/O."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.model import nodeset
from clusterctl.model.hosts import PLAYED_ALONE, ROLES_OF_VARIABLES
from clusterctl.model.snapshot import HostDifference, HostSnapshot, NodeState
from clusterctl.support import content
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.hosts import Inventory, InventoryOptions
    from clusterctl.model.run_record import HostResult
    from clusterctl.model.snapshot import Snapshot
    from clusterctl.state.certificate_status import Certificates


_MOST_NAMED = 5
_ROLES = frozenset(("hosts", "ssh_mesh", *PLAYED_ALONE))  # all that tell what should hold


INVENTORY = "the inventory"  # among the digests of Inputs
NOT_PROVISIONED = "not provisioned yet, or its last run was partial or did not finish"
ASKED_FOR = "asked for by an option"
ANOTHER_NODE = "another node is new or has changed"
OTHER_OFFERS = "the nodes offer other libraries or GPUs than before, which decide what is built"


@dataclass(frozen=True)
class ClusterDigests:
    """What each node's provision depends on beside the node itself."""

    members: str  # :func:`members_digest` of the whole cluster
    offers: str = ""  # :func:`offers_digest` of the whole cluster
    # the digest of the inventory without the hosts that have no snapshot; '' where all hosts have one
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
    parts: Mapping[str, str] = field(default_factory=dict)  # of the inventory, see Inventory

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
    the inputs ask for: at most, they have to meet another node. ``roles`` are the tags of the roles that the changed
    variables matter to, where nothing else changed on any host; empty where all roles have to be played.
    """

    reasons: Mapping[str, str]
    drifted: Mapping[str, str] = field(default_factory=dict)
    as_left: frozenset[str] = frozenset()
    roles: tuple[str, ...] = ()


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

    A host without a state could not be looked at from outside Ansible. With ``every_role``, each host plays all roles,
    also one that is as it was left.
    """
    reasons: dict[str, str] = {}
    parts = _changed_parts(selected, states, snapshots, inputs, cluster)
    if parts and not every_role:
        tags = {ROLES_OF_VARIABLES[part] for part in parts}
        roles = tuple(tag for tag in PLAYED_ALONE if tag in tags)
        return ProvisionPlan(dict.fromkeys(selected, f"variables of {' and '.join(parts)} changed"), roles=roles)
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


def _changed_parts(
    selected: Sequence[str],
    states: Mapping[str, NodeState],
    snapshots: Mapping[str, HostSnapshot],
    inputs: Inputs,
    cluster: ClusterDigests,
) -> tuple[str, ...]:
    """Return the roles whose variables changed since the last run of each of these hosts, and nothing else did."""
    found: set[str] = set()
    for name in selected:
        state, snapshot = states.get(name), snapshots.get(name)
        if state is None or snapshot is None or snapshot.parts.keys() != inputs.parts.keys():
            return ()
        as_before = replace(inputs, inventory=snapshot.inputs.get(INVENTORY, ""))
        if _reason(state, snapshot, as_before, cluster) or not snapshot.all_offers:
            return ()
        if any(entry.get("role") not in _ROLES for entry in snapshot.watch):
            return ()
        found |= {part for part, digest in inputs.parts.items() if snapshot.parts[part] != digest}
    return () if "" in found else tuple(sorted(found))


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
    return and_more(map(str, known_differences(snapshot, state, verified=False)), _MOST_NAMED, "; ")


def watch_of(results: Iterable[HostResult]) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return per host what its tasks said should hold from now on, each with its role.

    Of two words on one path the later one counts.
    """
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for result in results:
        if result.outcome in {"ok", "changed"}:
            for entry in result.watch:
                found.setdefault(result.host, {})[key_of(entry)] = {**entry, "role": result.stage}
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
                parts=dict(inputs.parts),
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
        parts=cluster.parts,
    )


# --- Find drift: a host's snapshot and its present state in, the differences in words out -----------------------------

_DEFAULT = "the default"
_CONTENT = "(content)"  # the probe's word for a file whose content alone differs


def differences(snapshot: HostSnapshot, state: NodeState) -> tuple[HostDifference, ...]:
    """Return what of a host is no longer as its last run left it; properties come before paths."""
    found = [
        HostDifference(subject=subject, words=f"{after or 'none'}, was {before or 'none'}")
        for subject, before, after in (
            ("platform", snapshot.platform, state.platform),
            ("login user", snapshot.user, state.user),
            ("set of GPUs, or their driver,", snapshot.gpus, state.gpus),
        )
        if before != after
    ]
    if sorted(snapshot.host_keys) != sorted(state.host_keys):
        found.append(HostDifference(subject="host key", words="another one than at the last run"))
    if state.lost_address:
        words = f"the node has no longer {state.lost_address}, which its jobs are told to use"
        found.append(HostDifference(subject="address", words=words))
    elif snapshot.address and snapshot.address not in state.addresses:
        words = f"the node has no longer {snapshot.address}, by which the other nodes know it"
        found.append(HostDifference(subject="address", words=words))
    return (*found, *_of_traits(snapshot.traits, state.traits), *of_paths(snapshot.watch, state.watch))


def _of_traits(before: Mapping[str, str], now: Mapping[str, str]) -> list[HostDifference]:
    """Compare the settings of a node; a snapshot without any was written before they were kept."""
    if not before or not now:
        return []
    names = dict.fromkeys((*before, *now))
    return [
        HostDifference(subject=name, words=f"{now.get(name, _DEFAULT)}, was {before.get(name, _DEFAULT)}")
        for name in names
        if before.get(name) != now.get(name)
    ]


def of_paths(before: Iterable[Mapping[str, Any]], present: Iterable[Mapping[str, Any]]) -> list[HostDifference]:
    """Return the differences of the watched paths, in the snapshot's order; only what the snapshot holds counts."""
    now = {key_of(entry): entry for entry in present}
    found: dict[str, HostDifference] = {}
    for entry in before:
        words = _words(entry, now.get(key_of(entry), {}))
        if words:
            path = str(entry.get("path"))
            found.setdefault(path, HostDifference(subject=path, words=words))
    return list(found.values())


def key_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return what tells the entries of a host apart: the path, and the block where only a block is watched."""
    return str(entry.get("path")), str(entry.get("marker", ""))


def _words(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how an entry differs, '' where it does not."""
    changed = {name for name, value in before.items() if name != "role" and now.get(name) != value}
    if not changed:
        return ""
    if "kind" in changed:
        return _words_of_kind(before, now)
    found = []
    if "mode" in changed:
        found.append(f"mode {now.get('mode')}, was {before['mode']}")
    if {"owner", "group"} & changed:
        found.append(f"owner {_owner(now)}, was {_owner(before)}")
    if "sha256" in changed:
        block = before.get("kind") == "block"
        found.append(f"content of the block '{before.get('marker')}' changed" if block else "content changed")
    if "target" in changed:
        found.append(f"it leads to {now.get('target')}, was {before['target']}")
    if "files" in changed:
        files = now.get("files")
        found.append(files if isinstance(files, str) else f"{files} files, was {before['files']}")
    if "marker_sha256" in changed:
        found.append("another installation")
    return "; ".join(found) or f"{', '.join(sorted(changed))} changed"


def _words_of_kind(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    kind = now.get("kind", "absent")
    if kind == "absent":
        return "missing in the loader's cache" if before.get("kind") == "loader" else "missing"
    if kind == "silent":
        return "its file system does not answer"
    where = f" to {now['target']}" if kind == "link" and "target" in now else ""
    return f"a {kind}{where}, was a {before.get('kind')}"


def _owner(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('owner')}:{entry.get('group')}"


def known_differences(snapshot: HostSnapshot, state: NodeState, *, verified: bool) -> tuple[HostDifference, ...]:
    """Return the differences of a host, with the damage that an earlier comparison of contents found.

    ``verified`` means that this comparison read every content, so that it alone counts.
    """
    found = differences(snapshot, state)
    if verified:
        return found
    return tuple(dict.fromkeys((*found, *snapshot.damaged)))


def with_damage(snapshot: Snapshot, states: Mapping[str, NodeState], *, everything: bool) -> Snapshot:
    """Return the snapshot with what a comparison of contents has found, so that the next plain run repairs it.

    With ``everything``, the comparison read every content, so that earlier damage which it did not find is gone.
    """
    hosts = dict(snapshot.hosts)
    for name in hosts.keys() & states.keys():
        found = [each for each in differences(hosts[name], states[name]) if _CONTENT in each.words]
        known = () if everything else hosts[name].damaged
        hosts[name] = hosts[name].model_copy(update={"damaged": tuple(dict.fromkeys((*known, *found)))})
    return snapshot.model_copy(update={"hosts": hosts})


def with_damage_of(before: Mapping[str, HostSnapshot], after: Mapping[str, HostSnapshot]) -> dict[str, HostSnapshot]:
    """Return the snapshots of a run that repaired no artifact, with the damage that was known before it."""
    known = {name: host.damaged for name, host in before.items()}
    return {name: host.model_copy(update={"damaged": known.get(name, ())}) for name, host in after.items()}


def still_watched(damaged: Iterable[HostDifference], watch: Iterable[Mapping[str, Any]]) -> tuple[HostDifference, ...]:
    """Return the damage of the artifacts that are still watched; after a rollback the others are out of use."""
    paths = {entry.get("path") for entry in watch}
    return tuple(each for each in damaged if each.subject in paths)


def folded(hosts: Mapping[str, Iterable[HostDifference]]) -> list[tuple[str, HostDifference]]:
    """Return each difference once, with the node set that shows it, in the order of the first host."""
    names: dict[tuple[str, str], list[str]] = {}
    for host, found in hosts.items():
        for each in found:
            names.setdefault((each.subject, each.words), []).append(host)
    return [(nodeset.folded(found), HostDifference(subject=key[0], words=key[1])) for key, found in names.items()]


def folded_words(hosts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each text once, with the node set that it is about."""
    names: dict[str, list[str]] = {}
    for host, words in hosts.items():
        names.setdefault(words, []).append(host)
    return [(nodeset.folded(found), words) for words, found in names.items()]
