"""Since when a culprit is named: the first of the consecutive runs that named it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from clusterctl.model.results import Verdict
from clusterctl.state.history import rows

if TYPE_CHECKING:
    import sqlite3

    from clusterctl.model.culprits import Culprit
    from clusterctl.model.results import CheckResult, ValidationRecord

_WITHOUT_CULPRITS = {Verdict.SKIP.value, Verdict.ERROR.value}


def with_since(db: sqlite3.Connection, cluster: str, record: ValidationRecord) -> ValidationRecord:
    """Return the record with ``since`` of each culprit.

    A run in which the check was SKIP or ERROR, or in which the culprit's nodes took no part, does not count.
    """
    checks = tuple(
        check.model_copy(update={"culprits": tuple(_dated(db, cluster, record, check, one) for one in check.culprits)})
        for check in record.checks
    )
    return record.model_copy(update={"checks": checks})


def _dated(
    db: sqlite3.Connection, cluster: str, record: ValidationRecord, check: CheckResult, culprit: Culprit
) -> Culprit:
    """Follow the consecutive earlier runs that named it; each has its own ``since``, so that one is enough."""
    found = db.execute(
        "SELECT r.started, r.hosts, x.verdict, x.culprits FROM runs r "
        "JOIN results x ON x.run = r.id AND x.name = ? JOIN clusters c ON c.id = r.cluster "
        "WHERE c.name = ? AND r.run_id <> ? AND r.started <= ? "
        "ORDER BY r.started DESC, r.run_id DESC",
        (check.check, cluster, record.run_id, record.started.timestamp()),
    )
    for started, hosts, verdict, culprits in found:
        if verdict in _WITHOUT_CULPRITS or not set(culprit.nodes) <= set(json.loads(hosts)):
            continue
        for other in rows.culprits_of(culprits):
            if _is_same(culprit, other):
                return culprit.model_copy(update={"since": other.since or rows.moment(started)})
        break
    return culprit.model_copy(update={"since": None})


def _is_same(one: Culprit, other: Culprit) -> bool:
    """Whether two runs name the same culprit: a slow link shows now at one size, now at another."""
    return (one.kind, set(one.nodes), one.quantity) == (other.kind, set(other.nodes), other.quantity)
