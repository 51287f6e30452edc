"""What earlier runs found: one SQLite file for all clusters of this controller, so that nights can be compared.

    with store.open() as history:
        values = history.reference_values(journal.cluster_id(inventory), key, limit=20)

Who validates goes on without it: whatever is wrong with the file is a :class:`StoreError` of one sentence, or has been
dealt with and is told in :attr:`Store.warnings`. :func:`remember` does both for a run that has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.analysis.trend import Band, Noise, band, changed_at
from clusterctl.state import paths
from clusterctl.state.history.database import KEEP_DAYS, Store
from clusterctl.state.history.entries import Baseline, Past, StoredResult, StoredRun
from clusterctl.state.history.errors import StoreError
from clusterctl.state.history.run_names import is_last

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


def open(path: Path | None = None) -> Store:  # noqa: A001 - store.open() reads as what it does
    """Open the history, and make it where there is none.

    Args:
        path: the file; None is ``history.sqlite3`` in the state folder.

    Raises:
        StoreError: it cannot be used, or a newer clusterctl wrote it; nothing was touched.
    """
    return Store(path or paths.history_file())


def remember(
    cluster: str, record: ValidationRecord, path: Path | None = None, noise: Noise | None = None
) -> tuple[ValidationRecord, tuple[str, ...]]:
    """Put a finished run beside the earlier ones and keep it; never ends a run that has its verdict.

    Args:
        cluster: whose run, :func:`clusterctl.state.paths.cluster_id`.
        record: the run.
        path: the history's file, as :func:`open` takes it.
        noise: what is no change, as the suite says.

    Returns:
        The record with its trends and each culprit's ``since``, and what the user is to be told, a sentence each.
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
