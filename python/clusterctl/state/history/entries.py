"""What the history tells: frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from clusterctl.model.base import Record
from clusterctl.model.results import Culprit, Verdict


class StoredResult(Record):
    """One check of a run."""

    check: str
    verdict: Verdict
    reason: str
    culprits: tuple[Culprit, ...] = ()


class StoredRun(Record):
    """A run as its line in the history; :meth:`clusterctl.state.history.Store.record` gives all of it."""

    cluster: str
    run_id: str
    started: datetime
    verdict: Verdict
    suite: str
    hosts: tuple[str, ...]
    versions: dict[str, str]
    accepted: bool = False  # history begins with it
    results: tuple[StoredResult, ...] = ()


class Baseline(Record):
    """Where a cluster's history begins: with the accepted run ``run_id``, or anew (empty) at ``begins``."""

    run_id: str = ""
    begins: datetime
    at: datetime  # when that was decided


@dataclass(frozen=True)
class Past:
    """A figure of an earlier run, in its key's unit; ``good`` where references may be made of it."""

    run_id: str
    started: float
    value: float
    verdict: Verdict
    good: bool
