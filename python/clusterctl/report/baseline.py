"""Baseline of a cluster: the run with which its history begins, and the references made of the runs since."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from clusterctl import suite
from clusterctl.analysis import references, robust_stats
from clusterctl.model import results
from clusterctl.model.base import Record
from clusterctl.model.hosts import InventorySources
from clusterctl.model.results import Figure, ValidationRecord, Verdict
from clusterctl.report import run_resolver
from clusterctl.state import history as run_history
from clusterctl.state.history import Baseline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.model.hosts import AnyInventory
    from clusterctl.state.history import Store, StoredRun


class InForce(Record):
    """The reference of a figure; ``lower`` and ``upper`` are fractions of ``median``, None means unlimited.

    ``in_force`` is False while good runs are too few.
    """

    check: str
    figure: Figure  # of the last run, without its samples
    median: float
    mad: float
    runs: int
    in_force: bool
    lower: float | None = None
    upper: float | None = None


class References(Record):
    """The references from a cluster's own history, for the figures of its last runs."""

    cluster: str
    inventory: str
    baseline: Baseline | None
    at_least: int
    entries: tuple[InForce, ...]
    notes: tuple[str, ...] = ()


def accept(given: AnyInventory, run: str = "last") -> StoredRun:
    """Let the history of an inventory's cluster begin with a run, whose figures count as good.

    Args:
        given: the inventory.
        run: as :func:`clusterctl.report.run_resolver.resolve` takes it.

    Raises:
        ConfigError: the cluster has not run yet, or the run is unknown.
        StoreError: the history cannot be written.
    """
    cluster = run_resolver.cluster_of(given)
    with run_history.open() as history:
        run_resolver.runs_of(history, given)
        return history.accept(cluster, run_resolver.resolve(run, history, cluster).record.run_id)


def reset(given: AnyInventory) -> int:
    """Let the history begin anew, and return how many kept runs no longer count.

    Raises:
        ConfigError: the cluster has not run yet.
        StoreError: the history cannot be written.
    """
    cluster = run_resolver.cluster_of(given)
    with run_history.open() as history:
        count = len(run_resolver.runs_of(history, given))
        history.reset(cluster)
        return count


def in_force(given: AnyInventory, check: str | None = None, options: suite.HistoryOptions | None = None) -> References:
    """Return the references of an inventory's cluster.

    Args:
        given: the inventory.
        check: only the references of this check.
        options: the history options of the suite; None means the defaults.

    Raises:
        ConfigError: the cluster has not run yet, or the check is unknown.
        StoreError: the history cannot be read.
    """
    cluster = run_resolver.cluster_of(given)
    options = options or suite.HistoryOptions()
    with run_history.open() as history:
        runs = run_resolver.runs_of(history, given, check)
        entries: dict[tuple[Any, ...], InForce] = {}
        for record, name in _newest_measured(history, runs, check):
            for entry in _entries(history, cluster, record, name, options):
                entries.setdefault((entry.check, *entry.figure.identity), entry)
        return References(
            cluster=cluster,
            inventory=str(InventorySources.of(given)),
            baseline=history.baseline(cluster),
            at_least=options.at_least,
            entries=tuple(entries.values()),
            notes=tuple(history.warnings),
        )


def _newest_measured(
    history: Store, runs: Sequence[StoredRun], check: str | None
) -> Iterator[tuple[ValidationRecord, str]]:
    """Yield for each check the newest run that was not SKIP or ERROR; a run's record is read once."""
    wanted: dict[str, list[str]] = {}
    seen: set[str] = set()
    for run in reversed(runs):
        for one in run.results:
            told = one.verdict in {Verdict.PASS, Verdict.FAIL} and check in {None, one.check}
            if told and one.check not in seen:
                seen.add(one.check)
                wanted.setdefault(run.run_id, []).append(one.check)
    for run_id, names in wanted.items():
        record = history.record(run_id, runs[0].cluster)
        yield from ((record, name) for name in names)


def _entries(
    history: Store, cluster: str, record: ValidationRecord, name: str, options: suite.HistoryOptions
) -> Iterator[InForce]:
    check = next((one for one in record.checks if one.check == name), None)
    if check is None:  # the folder's record is not that of the run
        return
    for key, figure in results.keys(record, check).items():
        values = history.reference_values(cluster, key, options.runs)
        if not values:
            continue
        median = statistics.median(values)
        speaks = references.Sources(
            check=name,
            nodes=key.nodes,
            ranks=key.ranks,
            history=lambda _figure, known=values: known,  # type: ignore[misc]
            options=options,
            figures=len(check.figures),
        )(figure)
        yield InForce(
            check=name,
            figure=figure.model_copy(update={"samples": ()}),
            median=median,
            mad=robust_stats.mad(values),
            runs=len(values),
            in_force=speaks is not None,
            lower=speaks.lower if speaks else None,
            upper=speaks.upper if speaks else None,
        )
