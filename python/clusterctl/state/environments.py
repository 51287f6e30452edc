"""The environments of projects that ``run --project`` installed on the nodes of a cluster, kept in the state folder."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.state import files, paths

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

KEPT_FOR = timedelta(days=30)  # since the last use; then gc may remove it


class Environment(Record):
    """One environment.

    Attributes:
        project: folder of the project on this machine.
        lock: file in it.
        trees: by host, the folder of the environment.
        used: when a job last used it.
    """

    project: str
    lock: str
    trees: dict[str, str]
    used: datetime


class _Environments(Record):
    schema_version: int = 1
    known: dict[str, Environment] = Field(default_factory=dict)  # by the digest of the lock


def read(cluster: str) -> dict[str, Environment]:
    """Return the environments by the digest of their lock; an unreadable file counts as missing."""
    try:
        return dict(_Environments.model_validate_json(paths.environments_file(cluster).read_bytes()).known)
    except (OSError, ValueError):
        return {}


def keep(cluster: str, digest: str, environment: Environment) -> None:
    """Keep an environment, in place of the former one of this digest.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    paths.private_folder(paths.cluster_dir(cluster))
    found = _Environments(known={**read(cluster), digest: environment})
    files.write_atomically(paths.environments_file(cluster), found.model_dump_json() + "\n")


def trees_in_use(environments: Mapping[str, Environment], now: datetime) -> Collection[str]:
    """Return the folders that a job used within :data:`KEPT_FOR`."""
    recent = (one for one in environments.values() if now - one.used < KEPT_FOR)
    return {tree for one in recent for tree in one.trees.values()}
