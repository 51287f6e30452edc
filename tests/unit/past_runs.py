"""Runs of an inventory's cluster for the tests of history, compare, baseline and report."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import factory
import program_forks
from clusterctl.model.hosts import AnyInventory
from clusterctl.model.results import CheckResult, Culprit, Figure, ValidationRecord
from clusterctl.state import history as run_history
from clusterctl.state import paths
from factory import check

__all__ = ["SLOW", "check", "figure", "record", "remember", "run"]

SLOW = Culprit(kind="node", nodes=("node2",), quantity="bandwidth", words="node2 is slow")


def figure(value: float, *nodes: str, **fields: Any) -> Figure:
    return factory.figure(value, *nodes, **{"size_bytes": 1024, **fields})


def record(night: int, *checks: CheckResult, **fields: Any) -> ValidationRecord:
    """Return the run of a night; without checks, one that measured all nodes and node2."""
    at = factory.BEGAN + timedelta(days=night)
    some = checks or (check("pairs", "PASS", figure(100), figure(100, "node2")),)
    return factory.record(*some, night=night, **{"run_id": f"{at:%Y%m%dT%H%M%SZ}-validate-7", **fields})


def remember(inventory: AnyInventory, *records: ValidationRecord) -> None:
    for one in records:
        assert run_history.remember(paths.cluster_id(inventory), one)[1] == ()


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return program_forks.clusterctl(*arguments)
