"""JSON lines: one object a line, for log collectors and ``jq``; each line has its type and the id of its run.

The first line of a run is ``run``. Each check has a line ``check``, then its lines ``figure``, ``comparison``,
``culprit`` and ``search``. A line ``trend`` follows where a figure changed. Samples, matrices, ranks and logs stay in
the record.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from clusterctl.report import actions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.model.results import CheckResult, ValidationRecord


def lines(record: ValidationRecord) -> Iterator[str]:
    """Yield the lines, each with its line feed; a field means the same as in the record."""
    common = {"schema_version": record.schema_version, "run_id": record.run_id}
    for kind, data in _objects(record):
        yield _line({"type": kind, **common, **data})


def _line(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"
    except ValueError:  # JSON lacks NaN and infinities
        return json.dumps(finite(data), separators=(",", ":")) + "\n"


def finite(data: Any) -> Any:
    """Return plain data with null in the place of NaN and infinities."""
    if isinstance(data, dict):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _objects(record: ValidationRecord) -> Iterator[tuple[str, dict[str, Any]]]:
    large = {"checks", "trends", "schema_version", "run_id"}
    yield "run", record.model_dump(mode="json", exclude=large)
    for check in record.checks:
        yield "check", _check(check)
        for figure in check.figures:
            yield "figure", {"check": check.check, **figure.model_dump(mode="json", exclude={"samples"})}
        for one in check.comparisons:
            yield "comparison", {"check": check.check, **one.model_dump(mode="json", exclude={"figure": {"samples"}})}
        for culprit in actions.culprits(check):
            yield "culprit", {"check": check.check, **culprit.model_dump(mode="json")}
        if check.search:
            yield "search", check.search.model_dump(mode="json")
    for trend in record.trends:
        if trend.changed_at:
            yield "trend", trend.model_dump(mode="json", exclude={"figure": {"samples"}, "points": True})


def _check(check: CheckResult) -> dict[str, Any]:
    elsewhere = {"ranks", "figures", "matrices", "comparisons", "culprits", "search", "stacks"}
    states = [report.state for report in check.ranks]
    return {
        **check.model_dump(mode="json", exclude=elsewhere),
        "ranks": {state: states.count(state) for state in sorted(set(states))},
    }
