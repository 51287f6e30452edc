"""The snapshot of each cluster: the state in which the last successful run left its hosts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.model.snapshot import Snapshot
from clusterctl.state import files, paths
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    paths.private_folder(paths.cluster_dir(cluster))
    files.write_atomically(paths.snapshot_file(cluster), snapshot.model_dump_json() + "\n")


def forget_hosts(cluster: str, hosts: Sequence[str]) -> None:
    """Remove the snapshots of hosts that are about to be changed: a run that dies leaves them without one."""
    known = read(cluster)
    if any(name in known.hosts for name in hosts):
        kept = {name: host for name, host in known.hosts.items() if name not in hosts}
        write(cluster, known.model_copy(update={"hosts": kept}))
