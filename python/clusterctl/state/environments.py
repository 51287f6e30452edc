"""The environments of projects that ``run --project`` installed on the nodes of a cluster, kept in the state folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.state import files, paths

_LEAST_DIGEST = 4  # characters
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
        return _parsed(paths.environments_file(cluster).read_bytes())
    except (OSError, ValueError):
        return {}


def _parsed(content: bytes) -> dict[str, Environment]:
    return dict(_Environments.model_validate_json(content).known)


def keep(cluster: str, digest: str, environment: Environment) -> None:
    """Keep an environment, in place of the former one of this digest.

    Raises:
        ConfigError: the state folder cannot be read or written.
    """
    path = paths.environments_file(cluster)
    found = _Environments(known={**files.known(path, _parsed, dict[str, Environment]()), digest: environment})
    files.keep(path, found.model_dump_json() + "\n")


def forget(cluster: str, trees: Mapping[str, Collection[str]]) -> None:
    """Forget folders of environments, given by host, and an environment that is on no host any more.

    Raises:
        ConfigError: the state folder cannot be read or written.
    """
    left, path = {}, paths.environments_file(cluster)
    for digest, one in files.known(path, _parsed, dict[str, Environment]()).items():
        there = {host: tree for host, tree in one.trees.items() if tree not in trees.get(host, ())}
        if there:
            left[digest] = one.model_copy(update={"trees": there})
    files.keep(path, _Environments(known=left).model_dump_json() + "\n")


def chosen(environments: Mapping[str, Environment], word: str) -> dict[str, Environment]:
    """Return the environments that a word names: by the beginning of the lock's digest, or by the project's folder."""
    folder = str(Path(word).absolute())
    return {
        digest: one
        for digest, one in environments.items()
        if one.project == folder or (len(word) >= _LEAST_DIGEST and digest.startswith(word))
    }


def trees_in_use(environments: Mapping[str, Environment], now: datetime) -> Collection[str]:
    """Return the folders that a job used within :data:`KEPT_FOR`."""
    recent = (one for one in environments.values() if now - one.used < KEPT_FOR)
    return {tree for one in recent for tree in one.trees.values()}
