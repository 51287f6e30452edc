"""What the last runs left on a cluster: its snapshot, its sets of links, its hold and its id."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from datetime import datetime
from typing import TYPE_CHECKING

from clusterctl.model.snapshot import Hold, Snapshot, SoftwareSet
from clusterctl.state import files, paths
from clusterctl.support import node_json
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.snapshot import HostSnapshot


_NUMBER_WITHOUT_BOUND = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf|[0-9.]+[eE])")  # or a string that looks like it


def read(cluster: str) -> Snapshot:
    """Return the cluster's snapshot; an unreadable one counts as missing, and the next run checks every host."""
    try:
        data = paths.snapshot_file(cluster).read_bytes()
        if _NUMBER_WITHOUT_BOUND.search(data):
            node_json.loads(data)  # refuses what could not be written again
        return Snapshot.model_validate_json(data)
    except (OSError, ValueError):
        return Snapshot()


def write(cluster: str, snapshot: Snapshot) -> None:
    """Replace the cluster's snapshot."""
    files.keep(paths.snapshot_file(cluster), snapshot.model_dump_json() + "\n")


def forget_hosts(cluster: str, hosts: Sequence[str]) -> dict[str, HostSnapshot]:
    """Remove the snapshots of hosts that are about to be changed: a run that dies leaves them without one.

    Returns:
        The removed snapshots by host.
    """
    known = read(cluster)
    removed = {name: known.hosts[name] for name in hosts if name in known.hosts}
    if removed:
        kept = {name: host for name, host in known.hosts.items() if name not in removed}
        write(cluster, known.model_copy(update={"hosts": kept}))
    return removed


def keep_hosts(cluster: str, hosts: Mapping[str, HostSnapshot]) -> None:
    """Bring back the snapshots of hosts, where nothing was changed after all."""
    known = read(cluster)
    write(cluster, known.model_copy(update={"hosts": {**known.hosts, **hosts}}))


# --- The set of links that each run left, and the hold under which a rollback puts a cluster --------------------------


def write_set(run: Path, software: SoftwareSet) -> None:
    """Keep the set of links that a run left, in the folder of the run."""
    files.write_atomically(paths.software_file(run), software.model_dump_json() + "\n")


def sets(cluster: str) -> list[SoftwareSet]:
    """Return the sets of links that the runs of a cluster left, newest first, without unreadable ones."""
    found = []
    places = paths.runs_dir(cluster).glob(f"*/{paths.software_file(paths.runs_dir(cluster)).name}")
    for place in sorted((path for path in places if not path.parent.is_symlink()), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            found.append(SoftwareSet.model_validate_json(place.read_bytes()))
    return found


def forget_software(cluster: str, hosts: Container[str]) -> None:
    """Take hosts out of the hold and out of every set of links; what has no host left goes.

    The records of the runs stay.
    """
    for found in sets(cluster):
        left = {name: host for name, host in found.hosts.items() if name not in hosts}
        folder = paths.runs_dir(cluster) / found.run_id
        if not left:
            paths.software_file(folder).unlink(missing_ok=True)
        elif left != found.hosts:
            write_set(folder, found.model_copy(update={"hosts": left}))
    held = hold(cluster)
    if held is not None:
        left = {name: host for name, host in held.software.hosts.items() if name not in hosts}
        software = held.software.model_copy(update={"hosts": left})
        write_hold(cluster, held.model_copy(update={"software": software}) if left else None)


def collected(cluster: str) -> dict[str, datetime]:
    """Return the folders that ``gc`` removed from nodes, each with the time; an unreadable file counts as missing."""
    try:
        return _collected(paths.collected_file(cluster).read_bytes())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _collected(content: bytes) -> dict[str, datetime]:
    return {str(tree): datetime.fromisoformat(when) for tree, when in json.loads(content).items()}


def note_collected(cluster: str, trees: Iterable[str], when: datetime) -> tuple[str, ...]:
    """Keep which folders ``gc`` removed, so that a rollback to one of them can say so.

    Returns:
        A note where the file was damaged.
    """
    path = paths.collected_file(cluster)
    found, notes = files.known(path, _collected, dict[str, datetime]())
    known = {tree: at.isoformat() for tree, at in found.items()}
    known.update(dict.fromkeys(trees, when.isoformat()))
    files.keep(path, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return notes


def hold(cluster: str) -> Hold | None:
    """Return the hold of a cluster; None without one.

    Raises:
        ConfigError: it cannot be read, so nothing tells which software is to stay.
    """
    path = paths.hold_file(cluster)
    try:
        return Hold.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise ConfigError(
            f"The hold {path} cannot be read; 'clusterctl rollback --release INVENTORY' removes it."
        ) from None


def write_hold(cluster: str, wanted: Hold | None) -> None:
    """Replace the hold of a cluster; None removes it."""
    path = paths.hold_file(cluster)
    if wanted is None:
        path.unlink(missing_ok=True)
        return
    files.keep(path, wanted.model_dump_json() + "\n")


# --- The artifacts in the controller's cache: software that is built already, by name and platform --------------------


def cached_trees() -> frozenset[str]:
    """Return the names of the folders into which the cached artifacts are installed."""
    return frozenset(record.stem for record in (paths.cache_dir().value / "artifacts").glob("*.json"))


def cached() -> frozenset[tuple[str, str]]:
    """Return name and platform of each artifact; a record that cannot be read is left out."""
    found: set[tuple[str, str]] = set()
    for record in (paths.cache_dir().value / "artifacts").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(record.read_bytes())
            found.add((str(data["name"]), str(data["inputs"]["platform"])))
    return frozenset(found)


# --- The id by which the nodes of a cluster know it: random, made at the first run that changes them ------------------


def read_identity(cluster: str) -> str:
    """Return the id of a cluster; '' where it has none yet, or where it cannot be read."""
    try:
        return str(json.loads(paths.identity_file(cluster).read_bytes())["cluster"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def write_identity(cluster: str, identity: str) -> None:
    """Keep the id of a cluster.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    files.keep(paths.identity_file(cluster), json.dumps({"cluster": identity}) + "\n")


def fresh_identity() -> str:
    """Return an id that no other cluster has."""
    return secrets.token_hex(16)
