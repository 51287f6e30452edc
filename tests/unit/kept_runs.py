"""Runs that the tests of the history keep: two nodes, one check, one night after the other."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import factory
from clusterctl.model.results import Culprit, Figure, FigureKey, ValidationRecord, keys
from clusterctl.state import history as run_history
from clusterctl.state import paths

CLUSTER = "inventory-0123abcd"
# Two months ago, and the same for the processes that a test starts.
BEGAN = datetime.fromisoformat(
    os.environ.setdefault(
        "TEST_STORE_BEGAN", (datetime.now(timezone.utc) - timedelta(days=60)).isoformat(timespec="seconds")
    )
)
SLOW = Culprit(kind="node", nodes=("node2",), quantity="bandwidth", ratio=0.1, words="node2 is slow")


def figure(value: float, *nodes: str, **fields: Any) -> Figure:
    return factory.figure(value, *nodes, **{"samples": (value, value), **fields})


def record(night: int, value: float = 100.0, verdict: str = "PASS", **fields: Any) -> ValidationRecord:
    at = BEGAN + timedelta(days=night)
    check = {
        "reason": "as it was",
        "figures": (figure(value), figure(value, "node1"), figure(value, "node2")),
        **fields.pop("check", {}),
    }
    given: dict[str, Any] = {
        "run_id": f"{at:%Y%m%dT%H%M%SZ}-validate-{night}",
        "started": at,
        "finished": at + timedelta(minutes=1),
        "suite": "nightly",
        "verdict": verdict,
        **fields,
    }
    return factory.record(factory.check(verdict=verdict, **check), night=night, **given)


def large(night: int) -> ValidationRecord:
    """Return a run that takes more room than a full disk has."""
    return record(night, check={"reason": os.urandom(50_000).hex()})


def key(of: ValidationRecord, place: int = 0) -> FigureKey:
    return list(keys(of, of.checks[0]))[place]


def remember(*records: ValidationRecord) -> ValidationRecord:
    """Keep runs one after the other, and return the last one as it came back."""
    for one in records:
        back, warnings = run_history.remember(CLUSTER, one)
        assert warnings == ()
    return back


def values(of: ValidationRecord, limit: int = 20) -> tuple[float, ...]:
    with run_history.open() as history:
        return history.reference_values(CLUSTER, key(of), limit)


def leave_folder(run: ValidationRecord, text: str | None = None) -> Path:
    """Write the folder of a run, as a validation leaves it."""
    place = paths.validation_record(paths.runs_dir(CLUSTER) / run.run_id)
    place.parent.mkdir(parents=True)
    place.write_text(run.model_dump_json() if text is None else text, encoding="utf-8")
    return place
