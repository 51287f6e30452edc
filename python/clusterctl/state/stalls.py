"""Records of jobs that stood still or that a death ended, kept in the state folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.job_outcome import StallRecord
from clusterctl.state import files, paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEEP = 40


def keep(cluster: str, record: StallRecord) -> Path:
    """Write a record, forget the oldest beyond :data:`KEEP`, and return its path.

    Raises:
        ConfigError: the state folder cannot be written.
        OSError: the disk is full.
    """
    folder = paths.stalls_dir(cluster)
    paths.private_folder(folder)
    path = folder / f"{record.at:%Y%m%dT%H%M%SZ}-{record.job}.json"
    files.write_atomically(path, record.model_dump_json(indent=2) + "\n")
    for old in sorted(folder.glob("*.json"))[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def newest(cluster: str, count: int) -> Iterator[tuple[Path, StallRecord]]:
    """Yield the newest records with their paths, the oldest of them first; a damaged file is passed over."""
    for path in sorted(paths.stalls_dir(cluster).glob("*.json"))[-count:]:
        try:
            yield path, StallRecord.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            continue
