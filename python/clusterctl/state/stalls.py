"""Records of jobs that stood still, kept in the state folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.state import files, paths

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.model.stall import StallRecord

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
