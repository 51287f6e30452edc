"""The database of the history: adds, finds and forgets runs, and answers what earlier runs measured."""

from __future__ import annotations

import functools
import json
import math
import sqlite3
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from clusterctl.analysis import trend
from clusterctl.model import results
from clusterctl.model.results import Trend, TrendPoint, Verdict
from clusterctl.state import paths
from clusterctl.state.history import file, rows
from clusterctl.state.history.file import StoreError, explained, is_damage
from clusterctl.state.history.rows import Past
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from clusterctl.model.results import CheckResult, Culprit, Figure, FigureKey, ValidationRecord
    from clusterctl.state.history.rows import Baseline, StoredRun


KEEP_DAYS = 400  # a year of nights, and a month more to compare with
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _guarded(method: Callable[Concatenate[Store, _P], _T]) -> Callable[Concatenate[Store, _P], _T]:
    """Turn an error of the file into a sentence; set a damaged file aside and try once more."""

    @functools.wraps(method)
    def guarded(self: Store, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._within:  # only the outermost call can be repeated
            return method(self, *args, **kwargs)
        self._within = True
        try:
            try:
                return method(self, *args, **kwargs)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._begin_again(error)
            return method(self, *args, **kwargs)
        except sqlite3.DatabaseError as error:
            if type(error) not in {sqlite3.DatabaseError, sqlite3.OperationalError}:
                raise  # a mistake in this program
            raise explained(error, self.path) from None
        except ValueError as error:  # a flipped bit in a word or in JSON, which sqlite does not detect
            words = str(error).splitlines()[0]
            raise StoreError(
                f"The history {self.path} holds a damaged line ({words}); move it away, and a new one begins with the "
                "runs whose folders are still there."
            ) from None
        finally:
            self._within = False

    return guarded


class Store:
    """An open history, as a context manager; for one thread.

    Attributes:
        path: its file.
        warnings: problems that were worked around, a sentence each: a damaged file that was set aside, the folder of a
            run that could not be read.
    """

    def __init__(self, path: Path) -> None:
        """Use :func:`clusterctl.state.history.open` instead."""
        self.path = path
        self.warnings: list[str] = []
        self._adopted: set[str] = set()
        self._series: Series | None = None
        self._within = False
        try:
            self._db, self._writable = file.connect(path)
        except sqlite3.DatabaseError as error:
            self._begin_again(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    @_guarded
    def add(self, cluster: str, record: ValidationRecord) -> None:
        """Keep a run whole or not at all; it replaces a run of the same id. Runs older than a year are forgotten.

        Raises:
            StoreError: the disk is full or read-only, or another process writes for a long time.
        """
        self._adopt(cluster, but=record.run_id)
        record = self.since(cluster, record)
        with self._transaction():
            rows.insert(self._db, cluster, record)
            rows.prune(self._db, cluster, None, KEEP_DAYS)

    @_guarded
    def accept(self, cluster: str, run: str) -> StoredRun:
        """Let the history begin with a run, whose figures count as good even where its verdict is bad.

        Args:
            cluster: whose history.
            run: as :meth:`find` takes it.

        Raises:
            ConfigError: the run is unknown.
            StoreError: the history cannot be written.
        """
        found = self.find(run, cluster)
        with self._transaction():
            rows.begin(self._db, cluster, found.run_id)
        return found.model_copy(update={"accepted": True})

    @_guarded
    def reset(self, cluster: str) -> None:
        """Let the history begin anew: earlier runs do not count for references, but stay and can be accepted.

        Raises:
            ConfigError: the cluster has not run yet.
            StoreError: the history cannot be written.
        """
        self._adopt(cluster)
        self._must_be_known(cluster)
        with self._transaction():
            rows.begin(self._db, cluster, None)

    @_guarded
    def prune(self, cluster: str | None = None, *, keep_runs: int | None = None, keep_days: float | None = None) -> int:
        """Forget old runs; the newest run and the accepted run stay.

        Args:
            cluster: whose runs; None means the runs of all clusters.
            keep_runs: keep so many of the newest runs of a cluster.
            keep_days: keep runs up to this age.

        Returns:
            How many were forgotten.

        Raises:
            StoreError: the history cannot be written.
        """
        names = [cluster] if cluster is not None else self.clusters()
        with self._transaction():
            gone = sum(rows.prune(self._db, name, keep_runs, keep_days) for name in names)
        self._db.execute("PRAGMA incremental_vacuum").fetchall()
        return gone

    @_guarded
    def forget(self, cluster: str) -> None:
        """Remove the runs and the baseline of a cluster that is gone.

        Raises:
            StoreError: the history cannot be written.
        """
        with self._transaction():
            rows.forget(self._db, cluster)

    # --- reading ------------------------------------------------------------------------------------------------------

    @_guarded
    def clusters(self) -> list[str]:
        return [str(row[0]) for row in self._db.execute("SELECT name FROM clusters ORDER BY name")]

    @_guarded
    def runs(self, cluster: str | None = None, last: int | None = None) -> tuple[StoredRun, ...]:
        """Return the runs of a cluster (None: of all), newest first, at most ``last`` of them."""
        self._adopt_of(cluster)
        return rows.stored(self._db, cluster, last)

    @_guarded
    def find(self, run: str, cluster: str | None = None) -> StoredRun:
        """Return one run.

        Args:
            run: its id or the beginning of it, ``last``, or ``last-1`` for the one before.
            cluster: whose runs are meant; None means the runs of all clusters.

        Raises:
            ConfigError: the run is unknown, or the beginning of several ids.
        """
        self._adopt_of(cluster)
        if cluster is not None:
            self._must_be_known(cluster)
        runs = rows.ids(self._db, cluster)
        whose = "the history" if cluster is None else f"the history of {cluster}"
        chosen = rows.choose(run, [row[1] for row in runs], whose)
        return rows.stored(self._db, cluster, number=runs[chosen][0])[0]

    @_guarded
    def record(self, run: str, cluster: str | None = None) -> ValidationRecord:
        """Return the whole record of a run: from its folder, or from the history where the folder is gone.

        A record in the history is without samples and without matrices of more than 20,000 links.

        Args:
            run: as :meth:`find` takes it.
            cluster: whose runs are meant; None means the runs of all clusters.

        Raises:
            ConfigError: the run is unknown, or its record is damaged.
        """
        found = self.find(run, cluster)
        place = paths.validation_record(paths.runs_dir(found.cluster) / found.run_id)
        try:
            return results.load(place.read_bytes(), str(place))
        except OSError:
            pass  # the folder is gone
        except ConfigError as error:
            self._warn(str(error))
        try:
            return rows.unpack_record(rows.record(self._db, found), f"The record of {found.run_id} in {self.path}")
        except rows.BrokenError as error:
            raise ConfigError(
                f"The record of {found.run_id} in {self.path} is damaged ({error}); take another run."
            ) from None

    @_guarded
    def baseline(self, cluster: str) -> Baseline | None:
        """Return where the history of the cluster begins; None where all runs count."""
        return rows.baseline(self._db, cluster)

    @_guarded
    def past(self, cluster: str, key: FigureKey, limit: int | None = None) -> tuple[Past, ...]:
        """Return the figure's earlier values since the baseline, newest first, at most ``limit``."""
        return tuple(islice(self._of(cluster, key.check).past(key), limit))

    @_guarded
    def reference_values(self, cluster: str, key: FigureKey, limit: int) -> tuple[float, ...]:
        """Return the figure's values in the last good runs since the baseline, newest first, at most ``limit``.

        A run is good where the verdict of the check was PASS, or where the run was accepted.

        Raises:
            StoreError: the history cannot be read.
        """
        return tuple(islice(self._of(cluster, key.check).good_values(key), limit))

    # --- what this run means beside the others ------------------------------------------------------------------------

    @_guarded
    def since(self, cluster: str, record: ValidationRecord) -> ValidationRecord:
        """Return the record with ``since`` of each culprit: the first of the consecutive runs that named it.

        A run without the culprit's nodes, or with a check that was SKIP or ERROR, does not count.

        Raises:
            StoreError: the history cannot be read.
        """
        if not any(check.culprits for check in record.checks):
            return record
        self._adopt(cluster, but=record.run_id)
        return with_since(self._db, cluster, record)

    @_guarded
    def trends(
        self, cluster: str, record: ValidationRecord, points: int = 30, noise: trend.Noise | None = None
    ) -> tuple[Trend, ...]:
        """Return the trends of the figures worth showing, over the runs since the baseline, this run last.

        Those of culprits come first, then those that miss their reference, then those about all nodes together.
        There are at most ``trends.MOST_TRENDS``; ``changed_at`` follows :func:`clusterctl.analysis.trend.changed_at`.

        Raises:
            StoreError: the history cannot be read.
        """
        return of_record(record, lambda check, key: self._of(cluster, check).past(key), points, noise or trend.Noise())

    # --- inside -------------------------------------------------------------------------------------------------------

    def _begin_again(self, error: sqlite3.DatabaseError) -> None:
        if not is_damage(error) and type(error) is not sqlite3.DatabaseError:
            raise explained(error, self.path) from None
        if hasattr(self, "_db"):
            self._db.close()
        aside = file.set_aside(self.path)
        if aside is not None:
            self._warn(
                f"The history {self.path} was damaged ({error}) and is set aside as {aside}; a new one begins with the "
                "runs whose folders are still there, and without a baseline."
            )
        self._adopted.clear()
        self._series = None
        try:
            self._db, self._writable = file.connect(self.path)
        except sqlite3.DatabaseError as again:
            raise explained(again, self.path) from None

    def _warn(self, words: str) -> None:
        if words not in self.warnings:
            self.warnings.append(words)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if not self._writable:
            raise StoreError(f"The history {self.path} cannot be written; make it writable, or set XDG_STATE_HOME.")
        self._series = None
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _must_be_known(self, cluster: str) -> None:
        if rows.cluster_number(self._db, cluster) is None:
            raise ConfigError(f"The history of {cluster} is empty; 'clusterctl validate' begins it.")

    def _adopt_of(self, cluster: str | None) -> None:
        """Add the run folders of a cluster, or of all clusters."""
        if cluster is not None:
            self._adopt(cluster)
            return
        with suppress(OSError):
            for place in sorted(paths.clusters_dir().iterdir()):
                self._adopt(place.name)

    def _adopt(self, cluster: str, but: str = "") -> None:
        """Add the runs that have a folder and no line in the database, once per opening.

        A new database learns of earlier runs this way, and so does one that missed a run on a full disk. Runs older
        than the oldest kept run were forgotten on purpose; so the newest run is always kept.
        """
        if cluster in self._adopted or not self._writable:
            return
        self._adopted.add(cluster)
        for run_id in sorted(self._missing(cluster) - {but}):  # one at a time, since a record may be large
            place = paths.validation_record(paths.runs_dir(cluster) / run_id)
            try:
                record = results.load(place.read_bytes(), str(place))
                with self._transaction():
                    rows.insert(self._db, cluster, record)
            except OSError:
                continue  # the run goes on, or ended without a record
            except ConfigError as error:
                self._warn(f"A run is missing in the history: {error}")
            except sqlite3.OperationalError as error:
                if is_damage(error):
                    raise
                self._warn(str(explained(error, self.path)))  # the kept runs can still be read
                return

    def _missing(self, cluster: str) -> set[str]:
        try:
            folders = {path.name for path in paths.runs_dir(cluster).iterdir() if not path.is_symlink()}
        except OSError:
            return set()
        base = rows.baseline(self._db, cluster)
        known = {row[1] for row in rows.ids(self._db, cluster)}
        kept = known - {base.run_id if base else ""}
        oldest = min(kept, default="")
        return {name for name in folders - known if name > oldest}

    def _of(self, cluster: str, check: str) -> Series:
        """Return the series of a check; the last series is cached, since figures are asked for check by check."""
        self._adopt(cluster)
        if self._series is None or self._series.about != (cluster, check):
            self._series = Series(self._db, self.path, self._warn, cluster, check)
        return self._series


# --- Since when a culprit is named: the first of the consecutive runs that named it -----------------------------------

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


# --- Trends: how the figures of a run went over the earlier runs ------------------------------------------------------

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
        for key, figure in results.keys(record, chosen).items():
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


# --- Earlier values of the figures of a check, read once for all figures of the check ---------------------------------


class Series:
    """The results of one check of one cluster since the baseline, newest first."""

    def __init__(
        self, db: sqlite3.Connection, path: Path, warn: Callable[[str], None], cluster: str, check: str
    ) -> None:
        """Read the runs and verdicts of the check; figures are read on demand."""
        self.about = (cluster, check)
        self._db, self._path, self._warn = db, path, warn
        self._layouts: dict[int, dict[str, int]] = {}
        base = rows.baseline(db, cluster)
        found = db.execute(
            "SELECT x.id, r.run_id, r.started, x.verdict, x.layout FROM runs r "
            "JOIN clusters c ON c.id = r.cluster JOIN results x ON x.run = r.id AND x.name = ? "
            "WHERE c.name = ? AND r.started >= ? ORDER BY r.started DESC, r.run_id DESC",
            (check, cluster, base.begins.timestamp() if base else -math.inf),
        )
        self._rows = [_Row(*row, accepted=base is not None and base.run_id == row[1]) for row in found]

    def past(self, key: FigureKey) -> Iterator[Past]:
        """Yield the figure's values, newest first; a damaged column becomes a warning."""
        return (Past(row.run_id, row.started, value, row.verdict, row.good) for row, value in self._each(key))

    def good_values(self, key: FigureKey) -> Iterator[float]:
        """Yield the figure's values in good runs, newest first; a damaged column becomes a warning."""
        return (value for row, value in self._each(key) if row.good)

    def _each(self, key: FigureKey) -> Iterator[tuple[_Row, float]]:
        text = key.text
        for row in self._rows:
            value = self._value(row, text)
            if value is not None:
                yield row, value

    def _value(self, row: _Row, key: str) -> float | None:
        if row.layout is None:
            return None
        try:
            place = self._places(row.layout).get(key)
            if place is None:
                return None
            if row.figures is None:
                data = self._db.execute("SELECT figures FROM results WHERE id = ?", (row.number,)).fetchone()
                row.figures = rows.unpack_figures(data[0])
            return row.figures[place]
        except (rows.BrokenError, IndexError) as error:
            self._warn(f"The figures of {row.run_id} in {self._path} are damaged ({error}) and are left out.")
            row.layout = None
            return None

    def _places(self, layout: int) -> dict[str, int]:
        if layout not in self._layouts:
            row = self._db.execute("SELECT keys FROM layouts WHERE id = ?", (layout,)).fetchone()
            self._layouts[layout] = rows.unpack_keys(row[0])
        return self._layouts[layout]


class _Row:
    """The result of a check in a run."""

    __slots__ = ("figures", "good", "layout", "number", "run_id", "started", "verdict")

    def __init__(
        self, number: int, run_id: str, started: float, verdict: str, layout: int | None, *, accepted: bool
    ) -> None:
        self.number, self.run_id, self.started, self.layout = number, run_id, started, layout
        self.verdict = Verdict(verdict)
        self.good = accepted or self.verdict is Verdict.PASS
        self.figures: array[float] | None = None
