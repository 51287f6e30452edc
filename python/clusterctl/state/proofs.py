"""The time of the last proof of each node of a cluster, kept in the state folder."""

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


def read(cluster: str) -> dict[str, datetime]:
    """Return the time of the last proof by node; an unreadable file counts as missing."""
    try:
        return dict(_Proofs.model_validate_json(paths.proofs_file(cluster).read_bytes()).hosts)
    except (OSError, ValueError):
        return {}


def keep(cluster: str, hosts: Iterable[str], at: datetime) -> None:
    """Set the time of the last proof of some nodes.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    found = {**read(cluster), **dict.fromkeys(hosts, at)}
    paths.private_folder(paths.cluster_dir(cluster))
    files.write_atomically(paths.proofs_file(cluster), _Proofs(hosts=found).model_dump_json() + "\n")
