"""Records that the history returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from clusterctl.model.base import Record
from clusterctl.model.culprits import Culprit
from clusterctl.model.results import Verdict


class StoredResult(Record):
    """One check of a run.

    ``named`` are the nodes that a bad check blames. ``apart`` are the hosts of the run that took no part in the check.
    """

    check: str
    verdict: Verdict
    reason: str
    culprits: tuple[Culprit, ...] = ()
    named: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()


class StoredRun(Record):
    """A run in the history, in short; :meth:`clusterctl.state.history.Store.record` returns the whole record."""

    cluster: str
    run_id: str
    started: datetime
    verdict: Verdict
    suite: str
    hosts: tuple[str, ...]
    versions: dict[str, str]
    accepted: bool = False  # the history begins with it
    results: tuple[StoredResult, ...] = ()


class Baseline(Record):
    """Where the history of a cluster begins: with the accepted run ``run_id``, or at ``begins`` where that is empty."""

    run_id: str = ""
    begins: datetime
    at: datetime  # when it was accepted or reset


@dataclass(frozen=True)
class Past:
    """A figure of an earlier run, in the unit of its key; ``good`` where it counts for references."""

    run_id: str
    started: float
    value: float
    verdict: Verdict
    good: bool
