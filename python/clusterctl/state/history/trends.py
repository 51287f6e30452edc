"""Trends: how the figures of a run went over the earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.analysis import trend
from clusterctl.model import figure_keys
from clusterctl.model.results import Trend, TrendPoint, Verdict
from clusterctl.state.history import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterctl.model.results import CheckResult, Figure, FigureKey, ValidationRecord
    from clusterctl.state.history.entries import Past

MOST_TRENDS = 500


def of_record(
    record: ValidationRecord, past: Callable[[str, FigureKey], Iterable[Past]], points: int, noise: trend.Noise
) -> tuple[Trend, ...]:
    """Return the trends of the figures worth showing, those of culprits first, at most :data:`MOST_TRENDS`.

    Args:
        record: the run.
        past: returns the values of a check's figure in all runs since the baseline, newest first.
        points: at most so many runs a trend, this run among them.
        noise: what is no change.
    """
    wanted = [(rank, check, figure) for check in record.checks for rank, figure in _worth_showing(check)]
    wanted.sort(key=lambda one: one[0])
    asked: dict[str, list[Figure]] = {}
    for _, check, figure in wanted[:MOST_TRENDS]:
        asked.setdefault(check.check, []).append(figure)
    found: dict[int, Trend] = {}
    for check in record.checks:
        chosen = check.model_copy(update={"figures": tuple(asked.get(check.check, ()))})
        for key, figure in figure_keys.keys(record, chosen).items():
            found[id(figure)] = _trend(record, check, figure, past(check.check, key), points, noise)
    return tuple(found[id(figure)] for _, _, figure in wanted[:MOST_TRENDS] if id(figure) in found)


def _trend(
    record: ValidationRecord,
    check: CheckResult,
    figure: Figure,
    past: Iterable[Past],
    points: int,
    noise: trend.Noise,
) -> Trend:
    earlier: list[TrendPoint] = []
    for one in past:
        if one.run_id != record.run_id and one.started <= record.started.timestamp():
            earlier.append(
                TrendPoint(run_id=one.run_id, at=rows.moment(one.started), value=one.value, verdict=one.verdict)
            )
        if len(earlier) >= points - 1:
            break
    shown = [
        *reversed(earlier),
        TrendPoint(run_id=record.run_id, at=record.started, value=figure.value, verdict=check.verdict),
    ]
    place = trend.changed_at([point.value for point in shown], noise)
    return Trend(
        check=check.check,
        figure=figure.model_copy(update={"samples": ()}),
        points=tuple(shown),
        changed_at="" if place is None else shown[place].run_id,
    )


def _worth_showing(check: CheckResult) -> Iterator[tuple[int, Figure]]:
    """Yield the figures that a reader may ask about, each with its rank; the lowest rank comes first."""
    culprits = {frozenset(culprit.nodes) for culprit in check.culprits}
    named = {name for culprit in culprits for name in culprit}
    missed = {one.figure.identity for one in check.comparisons if one.verdict is not Verdict.PASS}
    for figure in check.figures:
        if figure.nodes and named.issuperset(figure.nodes) and any(one.issuperset(figure.nodes) for one in culprits):
            yield 0, figure
        elif missed and figure.identity in missed:
            yield 1, figure
        elif not figure.nodes:
            yield 2, figure
