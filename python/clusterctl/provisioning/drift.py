"""Find drift: a host's snapshot and its present state in, the differences in words out; no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.model import nodeset
from clusterctl.model.snapshot import HostDifference, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.model.snapshot import HostSnapshot, Snapshot

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
    changed = {name for name, value in before.items() if now.get(name) != value}
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

    Args:
        snapshot: of the cluster.
        states: of the hosts, as the comparison saw them.
        everything: it read every content, so that earlier damage which it did not find is gone.
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
