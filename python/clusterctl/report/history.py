"""The verbs history, compare and baseline: what earlier runs found, and what changed between them.

The story: find the cluster's runs in the store, and read them from the oldest on, so that whatever differs from what
was last known of a check is a change of that run. Two runs are compared figure by figure, whatever their versions, and
a difference counts only beyond the noise. Nothing here reaches a node.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from clusterctl import suite
from clusterctl.analysis import references, robust_stats
from clusterctl.model import nodeset
from clusterctl.model import results as result
from clusterctl.model.base import Record
from clusterctl.model.results import Better, Figure, Trend, Unit, ValidationRecord, Verdict
from clusterctl.report import figure_words
from clusterctl.state import history as store
from clusterctl.state import paths
from clusterctl.state.history import Baseline, Noise, StoredRun
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterctl.model.results import FigureKey
    from clusterctl.state.history import Store, StoredResult

_FLOOR = 0.03  # the least relative difference that anybody has to care about, as for outliers
_RECORD = "validation.json"
_MOST_NAMED = 8


class HistoryLine(Record):
    """One run of the history; ``reason`` is that of the check that was asked for."""

    run_id: str
    started: datetime
    suite: str
    verdict: Verdict
    accepted: bool = False
    checks: dict[str, Verdict] = Field(default_factory=dict)
    reason: str = ""
    changes: tuple[str, ...] = ()


class History(Record):
    """A cluster's runs, oldest first; ``total`` counts those that are kept, ``trends`` are of the last run."""

    cluster: str
    inventory: str
    total: int
    baseline: Baseline | None
    runs: tuple[HistoryLine, ...]
    trends: tuple[Trend, ...] = ()
    notes: tuple[str, ...] = ()


class Side(Record):
    """One of two compared runs."""

    run_id: str
    inventory: str
    started: datetime
    verdict: Verdict
    suite: str
    hosts: tuple[str, ...]


class Difference(Record):
    """A figure of both runs; ``change`` is a fraction of ``first``, None where that is 0.

    ``noise`` is a fraction as well: one figure has to be more than ``1 + noise`` times the other.
    """

    check: str
    quantity: str
    operation: str
    backend: str
    algorithm: str
    size_bytes: int | None
    nodes: tuple[str, ...]
    unit: Unit
    better: Better
    first: float
    second: float
    change: float | None
    noise: float
    beyond_noise: bool

    @property
    def worse(self) -> bool:
        """Whether it moved to its bad side, beyond the noise."""
        fell = self.second < self.first
        return self.beyond_noise and (fell if self.better == "higher" else not fell and self.better == "lower")


class RunComparison(Record):
    """Two runs side by side; ``versions`` and ``verdicts`` hold what differs, empty text where one has none."""

    first: Side
    second: Side
    versions: dict[str, tuple[str, str]]
    verdicts: dict[str, tuple[str, str]]
    figures: tuple[Difference, ...]
    only_first: int
    only_second: int
    notes: tuple[str, ...] = ()


class InForce(Record):
    """What a figure is held against; ``lower`` and ``upper`` are fractions of ``median``, None is no limit there.

    ``in_force`` is False where the good runs are still too few.
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
    """The references of a cluster's own history, for the figures that its last runs measured."""

    cluster: str
    inventory: str
    baseline: Baseline | None
    at_least: int
    entries: tuple[InForce, ...]
    notes: tuple[str, ...] = ()


def overview(path: Path, check: str | None = None, last: int | None = None) -> History:
    """Return the history of an inventory's cluster.

    Args:
        path: the inventory.
        check: only this check's verdicts, reasons and figures; runs without it are left out.
        last: at most so many runs, the newest.

    Raises:
        ConfigError: there is no history, or no run has such a check.
        StoreError: the history cannot be read.
    """
    cluster = _cluster(path)
    with store.open() as history:
        runs = _some_runs(history, path, cluster)
        if check is not None:
            runs = _with_check(runs, check, path)
        record = history.record(runs[-1].run_id, cluster)
        if check is not None:
            only = tuple(one for one in record.checks if one.check == check)
            record = record.model_copy(update={"checks": only})
        lines = tuple(_lines(runs, check))
        return History(
            cluster=cluster,
            inventory=str(path),
            total=len(runs),
            baseline=history.baseline(cluster),
            runs=lines if last is None else lines[-last:],
            trends=history.trends(cluster, record, noise=noise()),
            notes=tuple(history.warnings),
        )


def compare(first: str, second: str, path: Path | None = None) -> RunComparison:
    """Put the figures of two runs side by side.

    Args:
        first: the earlier run: an id or the beginning of one, ``last``, ``last-1``, or the path of a record.
        second: the later run, likewise.
        path: the inventory whose runs are meant; None takes the cluster of the run that is named.

    Raises:
        ConfigError: a run is not there, several begin so, a record is damaged, or they are of different clusters.
        StoreError: the history cannot be read.
    """
    named = [_path(first), _path(second)]
    if None not in named:
        records = [_load(one) for one in named if one is not None]
        return _compared(records[0], records[1])
    with store.open() as history:
        cluster = _cluster(path) if path is not None else _meant(history, first, second)
        found = [
            history.record(run, cluster) if place is None else _load(place)
            for run, place in zip((first, second), named, strict=True)
        ]
        return _compared(found[0], found[1], history, cluster)


def accept(path: Path, run: str = "last") -> StoredRun:
    """Let the history of an inventory's cluster begin with a run, whose figures count as good.

    Raises:
        ConfigError: there is no history, or no such run.
        StoreError: the history cannot be written.
    """
    cluster = _cluster(path)
    with store.open() as history:
        _some_runs(history, path, cluster)
        return history.accept(cluster, run)


def reset(path: Path) -> int:
    """Let the history begin anew, and return how many runs it has from which none counts any more.

    Raises:
        ConfigError: there is no history.
        StoreError: the history cannot be written.
    """
    cluster = _cluster(path)
    with store.open() as history:
        count = len(_some_runs(history, path, cluster))
        history.reset(cluster)
        return count


def forget(path: Path, keep_runs: int | None, keep_days: float | None) -> int:
    """Forget old runs of an inventory's cluster, never the newest or the accepted one, and return how many.

    Args:
        path: the inventory.
        keep_runs: keep so many of the newest; None keeps any number.
        keep_days: keep those that are no older; None keeps any age.

    Raises:
        ConfigError: there is no history.
        StoreError: the history cannot be written.
    """
    cluster = _cluster(path)
    with store.open() as history:
        _some_runs(history, path, cluster)
        return history.prune(cluster, keep_runs=keep_runs, keep_days=keep_days)


def in_force(path: Path, check: str | None = None, options: suite.HistoryOptions | None = None) -> References:
    """Return what the figures of an inventory's cluster are held against.

    Args:
        path: the inventory.
        check: only this check's.
        options: what the suite says of the history; None is the default.

    Raises:
        ConfigError: there is no history, or no run has such a check.
        StoreError: the history cannot be read.
    """
    cluster = _cluster(path)
    options = options or suite.HistoryOptions()
    with store.open() as history:
        runs = _some_runs(history, path, cluster)
        if check is not None:
            runs = _with_check(runs, check, path)
        entries: dict[tuple[Any, ...], InForce] = {}
        for record, name in _newest_measured(history, runs, check):
            for entry in _entries(history, cluster, record, name, options):
                entries.setdefault((entry.check, *_about(entry.figure)), entry)
        return References(
            cluster=cluster,
            inventory=str(path),
            baseline=history.baseline(cluster),
            at_least=options.at_least,
            entries=tuple(entries.values()),
            notes=tuple(history.warnings),
        )


def noise() -> Noise:
    """Return what is no change between nights, as a suite says that does not say it otherwise."""
    options = suite.HistoryOptions()
    return Noise(floor=options.floor, mads=options.mads, at_least=options.at_least)


# --- the history ------------------------------------------------------------------------------------------------------


def _cluster(path: Path) -> str:
    if not path.exists():
        raise ConfigError(f"The inventory {path} does not exist; the history of a cluster goes by its inventory.")
    return paths.cluster_id(path)


def _some_runs(history: Store, path: Path, cluster: str) -> tuple[StoredRun, ...]:
    """Return the runs of a cluster, oldest first."""
    runs = history.runs(cluster)
    if not runs:
        raise ConfigError(f"There is no history of {path} yet; 'clusterctl validate {path}' begins it.")
    return runs[::-1]


def _with_check(runs: Sequence[StoredRun], check: str, path: Path) -> tuple[StoredRun, ...]:
    found = tuple(run for run in runs if any(one.check == check for one in run.results))
    if not found:
        names = dict.fromkeys(one.check for run in runs for one in run.results)
        shown = ", ".join(sorted(names)) or "none"
        raise ConfigError(f"No run of {path} has a check '{check}'; their checks are: {shown}.")
    return found


def _lines(runs: Sequence[StoredRun], check: str | None) -> Iterator[HistoryLine]:
    known = _Known()
    for run in runs:
        results = [one for one in run.results if check is None or one.check == check]
        asked = results[0] if check is not None else None
        yield HistoryLine(
            run_id=run.run_id,
            started=run.started,
            suite=run.suite,
            verdict=run.verdict if asked is None else asked.verdict,
            accepted=run.accepted,
            checks={one.check: one.verdict for one in results},
            reason="" if asked is None else asked.reason,
            changes=tuple(known.changes(run, results)),
        )


class _Known:
    """What is known so far, from the oldest run on; a SKIP tells nothing, so the last word of a check stays."""

    def __init__(self) -> None:
        self._hosts: tuple[str, ...] | None = None
        self._versions: dict[str, str] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._culprits: dict[str, set[str]] = {}

    def changes(self, run: StoredRun, results: Iterable[StoredResult]) -> Iterator[str]:
        """Yield what this run has that the earlier ones had otherwise, a few words each."""
        for one in results:
            if one.verdict is not Verdict.SKIP:
                yield from self._of_check(one)
        yield from self._of_nodes(run.hosts)
        for name, version in run.versions.items():
            before = self._versions.get(name, version)
            if version and before != version:
                yield f"{name} {before} → {version}"
        self._versions.update({name: version for name, version in run.versions.items() if version})

    def _of_check(self, one: StoredResult) -> Iterator[str]:
        before = self._verdicts.get(one.check)
        if before is not None and before is not one.verdict:
            yield f"{one.check} {before.value} → {one.verdict.value}"
        elif before is None and one.verdict is not Verdict.PASS:
            yield f"{one.check} {one.verdict.value}"
        self._verdicts[one.check] = one.verdict
        if one.verdict is Verdict.ERROR:
            return
        named = {nodeset.folded(culprit.nodes) for culprit in one.culprits if culprit.kind != "together"}
        earlier = self._culprits.get(one.check, set())
        new, gone = sorted(named - earlier), sorted(earlier - named)
        if new:
            yield f"{_several(new)} named by {one.check}"
        if gone:
            yield f"{_several(gone)} no longer named by {one.check}"
        self._culprits[one.check] = named

    def _of_nodes(self, hosts: tuple[str, ...]) -> Iterator[str]:
        if self._hosts is not None:
            gone, new = set(self._hosts) - set(hosts), set(hosts) - set(self._hosts)
            if gone:
                yield f"without {nodeset.folded(sorted(gone))}"
            if new:
                yield f"with {nodeset.folded(sorted(new))}"
        self._hosts = hosts


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


# --- two runs ---------------------------------------------------------------------------------------------------------


def _path(run: str) -> Path | None:
    """Return the record's path where a run is named by one, or by its folder."""
    path = Path(run)
    if not run.strip():
        raise ConfigError("A run's id is empty; give its beginning, 'last', 'last-1' or the file of a record.")
    if path.is_dir():
        return path / _RECORD
    return path if "/" in run or run.endswith(".json") or path.is_file() else None


def _load(path: Path) -> ValidationRecord:
    try:
        return result.load(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"The record {path} cannot be read: {error.strerror}.") from None


def _meant(history: Store, *runs: str) -> str:
    """Return the cluster whose runs are meant: that of the runs that are named by id, or of the newest run."""
    named = [run for run in runs if _path(run) is None]
    ids = [run for run in named if not run.startswith("last")]
    clusters = {run: history.find(run).cluster for run in ids or ["last"]}
    if len(set(clusters.values())) > 1:
        words = " and ".join(f"{run} of {cluster}" for run, cluster in clusters.items())
        raise ConfigError(f"The runs are of different clusters ({words}); compare runs of one, or give their records.")
    return next(iter(clusters.values()))


def _compared(
    first: ValidationRecord, second: ValidationRecord, history: Store | None = None, cluster: str = ""
) -> RunComparison:
    before, after = dict(_figures(first)), dict(_figures(second))
    pairs = tuple(
        _difference(place[0], before[place], after[place], history, cluster) for place in before if place in after
    )
    versions = [dict(record.versions or {"openmpi": record.openmpi_version}) for record in (first, second)]
    verdicts = [{one.check: one.verdict.value for one in record.checks} for record in (first, second)]
    return RunComparison(
        first=_side(first),
        second=_side(second),
        versions=_differing(*versions),
        verdicts=_differing(*verdicts),
        figures=pairs,
        only_first=len(before.keys() - after.keys()),
        only_second=len(after.keys() - before.keys()),
        notes=tuple(history.warnings) if history is not None else (),
    )


def _side(record: ValidationRecord) -> Side:
    return Side(
        run_id=record.run_id,
        inventory=record.inventory,
        started=record.started,
        verdict=record.verdict,
        suite=record.suite,
        hosts=record.hosts,
    )


def _differing(first: dict[str, str], second: dict[str, str]) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys((*first, *second))
    both = {name: (first.get(name, ""), second.get(name, "")) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _figures(record: ValidationRecord) -> Iterator[tuple[tuple[Any, ...], tuple[FigureKey, Figure]]]:
    """Yield the figures under what has to be the same; versions may differ, for that is what one wants to see."""
    for check in record.checks:
        for key, figure in result.keys(record, check).items():
            yield (check.check, *_about(figure), key.unit, key.nodes, key.ranks), (key, figure)


def _about(figure: Figure) -> tuple[Any, ...]:
    return (figure.quantity, figure.operation, figure.backend, figure.algorithm, figure.size_bytes, figure.nodes)


def _difference(
    check: str,
    before: tuple[FigureKey, Figure],
    after: tuple[FigureKey, Figure],
    history: Store | None,
    cluster: str,
) -> Difference:
    first, second = before[1], after[1]
    change = second.value / first.value - 1 if first.value else None
    around = max(_FLOOR, _uncertainty(first, second), _scatter((before[0], after[0]), history, cluster))
    return Difference(
        check=check,
        quantity=first.quantity,
        operation=first.operation,
        backend=first.backend,
        algorithm=first.algorithm,
        size_bytes=first.size_bytes,
        nodes=first.nodes,
        unit=first.unit,
        better=first.better,
        first=first.value,
        second=second.value,
        change=change,
        noise=around,
        beyond_noise=_is_beyond(first.value, second.value, around),
    )


def _is_beyond(first: float, second: float, noise: float) -> bool:
    """Whether one is more than ``1 + noise`` times the other."""
    if first <= 0 or second <= 0:
        return first != second
    return max(first / second, second / first) > 1 + noise


def _uncertainty(first: Figure, second: Figure) -> float:
    """Return the halves of both medians' intervals together, as a fraction of the first."""
    halves = [(one.high - one.low) / 2 for one in (first, second) if one.low is not None and one.high is not None]
    return sum(halves) / abs(first.value) if first.value else 0.0


def _scatter(keys: tuple[FigureKey, FigureKey], history: Store | None, cluster: str) -> float:
    """Return how far good runs lie apart, as a fraction of their median; 0 where they are too few to say."""
    if history is None:
        return 0.0
    found = []
    for key in dict.fromkeys(keys):
        values = history.reference_values(cluster, key, suite.HistoryOptions().runs)
        around = store.band(values, replace(noise(), floor=0.0))
        if around is not None and around.median > 0:
            found.append(around.high / around.median - 1)
    return max(found, default=0.0)


# --- references -------------------------------------------------------------------------------------------------------


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
    for key, figure in result.keys(record, check).items():
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


def about(one: Difference | Figure) -> str:
    """Return what a figure is and of whom, in words: 'node2: bandwidth, 1 MiB (mpi)'."""
    figure = (
        one
        if isinstance(one, Figure)
        else Figure(
            quantity=one.quantity,
            operation=one.operation,
            backend=one.backend,
            algorithm=one.algorithm,
            size_bytes=one.size_bytes,
            nodes=one.nodes,
            unit=one.unit,
            value=one.first,
        )
    )
    words = figure_words.about(figure)
    return f"{nodeset.folded(figure.nodes)}: {words}" if figure.nodes else words


def before_and_now(trend: Trend) -> tuple[str, str]:
    """Return the median since a figure changed and the one before it, in words; both the same where it did not."""
    ids = [point.run_id for point in trend.points]
    place = ids.index(trend.changed_at) if trend.changed_at in ids else 0
    parts = (trend.points[place:], trend.points[:place] or trend.points)
    now, before = (
        figure_words.figure(statistics.median(point.value for point in part), trend.figure.unit) for part in parts
    )
    return now, before
