"""Clean hosts with the playbook uninstall: its variables, what it found, and what the controller forgets then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.state import snapshots, software

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from clusterctl.model.snapshot import Snapshot
    from clusterctl.provisioning.tally import Tally

PLAYBOOK = "uninstall"
_NOT_PATHS = frozenset({"artifact", "library", "loader"})  # kinds of watch entries that the module finds by itself


def watched_paths(watch: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths that the last run left, for a node whose own record begins later."""
    return sorted({str(entry["path"]) for entry in watch if entry.get("kind") not in _NOT_PATHS})


def variables(before: Snapshot, hosts: Sequence[str], *, remove_user: bool) -> dict[str, Any]:
    """Return the variables of the playbook.

    Args:
        before: what the last runs left.
        hosts: those to clean.
        remove_user: whether the account goes that was made for jobs.
    """
    places = {name: watched_paths(before.hosts[name].watch) for name in hosts if name in before.hosts}
    return {"uninstall_paths": places, "uninstall_remove_user": remove_user}


def changes(tally: Tally) -> dict[str, tuple[str, ...]]:
    """Return by host a phrase for each thing that goes or is put back; hosts without any are left out."""
    found = {name: tuple(p for one in results for p in one.changes) for name, results in tally.hosts.items()}
    return {name: phrases for name, phrases in found.items() if phrases}


def forget(cluster: str, hosts: Sequence[str]) -> None:
    """Forget what earlier runs left on these hosts; the records of the runs stay."""
    software.forget_hosts(cluster, hosts)
    snapshots.forget_hosts(cluster, hosts)
