"""The environments of projects that ``run --project`` installed on the nodes of a cluster, kept in the state folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.model.nodeset import folded
from clusterctl.state import files, paths
from clusterctl.support.errors import ClusterctlError, ExitCode

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


class GoneError(ClusterctlError):
    """Hosts lack the environment that was installed there."""

    exit_code = ExitCode.HOST_FAILED

    def __init__(self, gone: Mapping[str, str]) -> None:
        """Take the hosts that lack the environment, each with its folder."""
        trees = " and ".join(dict.fromkeys(gone.values()))
        super().__init__(f"The environment {trees} of the project is gone from {folded(gone)}; run it again.")
        self.hosts = tuple(gone)


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


def to_change(cluster: str) -> tuple[dict[str, Environment], tuple[str, ...]]:
    """Return the environments by the digest of their lock, and a note where the file was damaged.

    Raises:
        ConfigError: the file cannot be read, or a newer clusterctl wrote it.
    """
    return files.known(paths.environments_file(cluster), _parsed, {})


def keep(cluster: str, digest: str, environment: Environment) -> tuple[str, ...]:
    """Keep an environment in place of the former one of this digest, and return a note where the file was damaged.

    Raises:
        ConfigError: the file cannot be read or written, or a newer clusterctl wrote it.
    """
    known, notes = to_change(cluster)
    files.keep(
        paths.environments_file(cluster), _Environments(known={**known, digest: environment}).model_dump_json() + "\n"
    )
    return notes


def forget(cluster: str, trees: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Forget folders of environments, given by host, and an environment that is on no host any more.

    Returns:
        A note where the file was damaged.

    Raises:
        ConfigError: the file cannot be read or written, or a newer clusterctl wrote it.
    """
    left = {}
    known, notes = to_change(cluster)
    for digest, one in known.items():
        there = {host: tree for host, tree in one.trees.items() if tree not in trees.get(host, ())}
        if there:
            left[digest] = one.model_copy(update={"trees": there})
    files.keep(paths.environments_file(cluster), _Environments(known=left).model_dump_json() + "\n")
    return notes


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
