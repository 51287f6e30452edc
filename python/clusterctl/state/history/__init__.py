"""History of all clusters of this controller: the results of earlier runs, in one SQLite file.

    with history.open() as opened:
        values = opened.reference_values(paths.cluster_id(inventory), key, limit=20)

An error in the file is a :class:`StoreError` of one sentence, or it is repaired and noted in :attr:`Store.warnings`. A
validation goes on in both cases: :func:`remember` turns errors in the history into notes of the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.analysis.trend import Band, Noise, band, changed_at
from clusterctl.state import paths
from clusterctl.state.history.database import KEEP_DAYS, Store
from clusterctl.state.history.file import StoreError
from clusterctl.state.history.rows import Baseline, Past, StoredResult, StoredRun, is_last

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.model.results import ValidationRecord

__all__ = [
    "KEEP_DAYS",
    "Band",
    "Baseline",
    "Noise",
    "Past",
    "Store",
    "StoreError",
    "StoredResult",
    "StoredRun",
    "band",
    "changed_at",
    "is_last",
    "open",
    "remember",
]


def open(path: Path | None = None) -> Store:  # noqa: A001 - history.open() says what it does
    """Open the history; create the file where it is missing.

    Args:
        path: the file; None is ``history.sqlite3`` in the state folder.

    Raises:
        StoreError: the file cannot be used, or a newer clusterctl wrote it; the file stays as it was.
    """
    return Store(path or paths.history_file())


def remember(
    cluster: str, record: ValidationRecord, path: Path | None = None, noise: Noise | None = None
) -> tuple[ValidationRecord, tuple[str, ...]]:
    """Keep a finished run, and compare it with the earlier ones; an error in the history never fails the run.

    Args:
        cluster: of the run, as :func:`clusterctl.state.paths.cluster_id` names it.
        record: of the run.
        path: the file of the history, as :func:`open` takes it.
        noise: changes that do not count, as the suite defines them.

    Returns:
        The record with its trends and each culprit's ``since``, and notes for the user, a sentence each.
    """
    warnings: list[str] = []
    try:
        with open(path) as history:
            warnings = history.warnings
            record = history.since(cluster, record)
            record = record.model_copy(update={"trends": history.trends(cluster, record, noise=noise)})
            history.add(cluster, record)
    except StoreError as error:
        return record, (*warnings, f"{error} This run is not in the history; its record is in its folder.")
    return record, tuple(warnings)
