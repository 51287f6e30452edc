"""The time of the last proof and of the last turn of each node of a cluster, kept in the state folder."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.state import files, paths

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Proofs(Record):
    schema_version: int = 1
    hosts: dict[str, datetime] = Field(default_factory=dict)
    turns: dict[str, datetime] = Field(default_factory=dict)


def read(cluster: str) -> dict[str, datetime]:
    """Return the time of the last proof by node; an unreadable file counts as missing."""
    return dict(_read(cluster).hosts)


def turns(cluster: str) -> dict[str, datetime]:
    """Return when each node was last chosen or proved; a node that fails every night has its turn all the same."""
    found = _read(cluster)
    return {
        name: max(at for at in (found.hosts.get(name), found.turns.get(name)) if at is not None)
        for name in {**found.hosts, **found.turns}
    }


def keep(cluster: str, hosts: Iterable[str], at: datetime) -> None:
    """Set the time of the last proof of some nodes.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    found = _read(cluster)
    _write(cluster, found.model_copy(update={"hosts": {**found.hosts, **dict.fromkeys(hosts, at)}}))


def take_turns(cluster: str, hosts: Iterable[str], at: datetime) -> None:
    """Set the time at which some nodes were chosen.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    found = _read(cluster)
    _write(cluster, found.model_copy(update={"turns": {**found.turns, **dict.fromkeys(hosts, at)}}))


def _read(cluster: str) -> _Proofs:
    try:
        return _Proofs.model_validate_json(paths.proofs_file(cluster).read_bytes())
    except (OSError, ValueError):
        return _Proofs()


def _write(cluster: str, found: _Proofs) -> None:
    paths.private_folder(paths.cluster_dir(cluster))
    files.write_atomically(paths.proofs_file(cluster), found.model_dump_json() + "\n")
