"""The id by which the nodes of a cluster know it: random, made at the first run that changes them."""

from __future__ import annotations

import json
import secrets

from clusterctl.state import files, paths


def read(cluster: str) -> str:
    """Return the id of a cluster; '' where it has none yet, or where it cannot be read."""
    try:
        return str(json.loads(paths.identity_file(cluster).read_bytes())["cluster"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def write(cluster: str, identity: str) -> None:
    """Keep the id of a cluster.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    paths.private_folder(paths.cluster_dir(cluster))
    files.write_atomically(paths.identity_file(cluster), json.dumps({"cluster": identity}) + "\n")


def fresh() -> str:
    """Return an id that no other cluster has."""
    return secrets.token_hex(16)
