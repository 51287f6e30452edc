"""The last errors that doctor found on each node of a cluster, kept in the state folder until the node is proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.model.node_states import DoctorErrors
from clusterctl.state import files, paths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from clusterctl.model.findings import Finding


class _Kept(Record):
    schema_version: int = 1
    hosts: dict[str, DoctorErrors] = Field(default_factory=dict)


def read(cluster: str) -> dict[str, DoctorErrors]:
    """Return the last errors by node; an unreadable file counts as missing."""
    try:
        return dict(_Kept.model_validate_json(paths.doctor_errors_file(cluster).read_bytes()).hosts)
    except (OSError, ValueError):
        return {}


def keep(cluster: str, findings: Iterable[Finding], inventory: Collection[str], at: datetime) -> None:
    """Keep the errors among findings; those of a node that is no longer in the inventory are forgotten.

    A look without an error does not take back an earlier one: only a proof does.

    Raises:
        ConfigError: the state folder cannot be written.
        OSError: the disk is full.
    """
    checks: dict[str, dict[str, None]] = {}
    for one in findings:
        for host in one.hosts if one.severity == "error" else ():
            checks.setdefault(host, {})[one.check] = None
    before = read(cluster)
    new = {host: DoctorErrors(at=at, checks=tuple(found)) for host, found in checks.items()}
    kept = {host: errors for host, errors in {**before, **new}.items() if host in inventory}
    if kept != before:
        paths.private_folder(paths.cluster_dir(cluster))
        files.write_atomically(paths.doctor_errors_file(cluster), _Kept(hosts=kept).model_dump_json() + "\n")
