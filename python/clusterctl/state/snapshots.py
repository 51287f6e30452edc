"""The snapshot of each cluster: the state in which the last successful run left its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.snapshot import Snapshot
from clusterctl.state import files, paths

if TYPE_CHECKING:
    from collections.abc import Sequence


def read(cluster: str) -> Snapshot:
    """Return the cluster's seal; one that cannot be read counts as none, since a run then simply checks everything."""
    path = paths.state_dir().value / "clusters" / cluster / "seal.json"
    try:
        return Snapshot.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return Snapshot()


def write(cluster: str, seal: Snapshot) -> None:
    """Replace the cluster's seal."""
    folder = paths.private_folder(paths.state_dir().value / "clusters" / cluster)
    files.write_atomically(folder / "seal.json", seal.model_dump_json() + "\n")


def forget_hosts(cluster: str, hosts: Sequence[str]) -> None:
    """Forget the seals of hosts that are about to be changed: a run that dies leaves them unsealed."""
    known = read(cluster)
    if any(name in known.hosts for name in hosts):
        kept = {name: seal for name, seal in known.hosts.items() if name not in hosts}
        write(cluster, Snapshot(members=known.members, hosts=kept))
