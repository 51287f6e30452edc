"""Rows of the history: names, records, columns, and the SQL for whole runs; the caller ends the transaction."""

from __future__ import annotations

import json
import math
import re
import sys
import time
import zlib
from array import array
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from clusterctl.model import results
from clusterctl.model.base import Record
from clusterctl.model.results import Culprit, Verdict
from clusterctl.state import files
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from clusterctl.model.results import ValidationRecord


_DAY_S = 86_400.0
_OF_CLUSTER = "FROM runs r JOIN clusters c ON c.id = r.cluster WHERE (? IS NULL OR c.name = ?)"
_NEWEST_FIRST = "ORDER BY r.started DESC, r.run_id DESC"


def moment(seconds: float) -> datetime:
    """Return a column's seconds since 1970 as a time."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def cluster_number(db: sqlite3.Connection, cluster: str) -> int | None:
    """Return the number of a cluster; None where it has not run yet."""
    row = db.execute("SELECT id FROM clusters WHERE name = ?", (cluster,)).fetchone()
    return None if row is None else int(row[0])


def ids(db: sqlite3.Connection, cluster: str | None) -> list[tuple[int, str, float]]:
    """Return number, id and start of the runs of a cluster (None: of all), newest first."""
    return db.execute(f"SELECT r.id, r.run_id, r.started {_OF_CLUSTER} {_NEWEST_FIRST}", (cluster, cluster)).fetchall()


def baseline(db: sqlite3.Connection, cluster: str) -> Baseline | None:
    """Return where the history of a cluster begins; None where all runs count."""
    row = db.execute(
        "SELECT coalesce(r.run_id, ''), b.begins, b.at FROM baselines b JOIN clusters c ON c.id = b.cluster "
        "LEFT JOIN runs r ON r.id = b.run WHERE c.name = ? ORDER BY b.id DESC LIMIT 1",
        (cluster,),
    ).fetchone()
    return None if row is None else Baseline(run_id=row[0], begins=moment(row[1]), at=moment(row[2]))


def stored(
    db: sqlite3.Connection, cluster: str | None, last: int | None = None, number: int | None = None
) -> tuple[StoredRun, ...]:
    """Return runs with their checks, newest first: the last runs of a cluster, or the run of that number."""
    rows = db.execute(
        f"SELECT r.id, c.name, r.run_id, r.started, r.verdict, r.suite, r.hosts, r.versions {_OF_CLUSTER} "
        f"AND (? IS NULL OR r.id = ?) {_NEWEST_FIRST} LIMIT ?",
        (cluster, cluster, number, number, -1 if last is None else last),
    ).fetchall()
    begins = {name: baseline(db, name) for name in {str(row[1]) for row in rows}}
    return tuple(
        StoredRun(
            cluster=name,
            run_id=run_id,
            started=moment(started),
            verdict=Verdict(verdict),
            suite=suite,
            hosts=tuple(json.loads(hosts)),
            versions=json.loads(versions),
            accepted=(base := begins[name]) is not None and base.run_id == run_id,
            results=_results(db, at),
        )
        for at, name, run_id, started, verdict, suite, hosts, versions in rows
    )


def record(db: sqlite3.Connection, found: StoredRun) -> bytes:
    row = db.execute(f"SELECT r.record {_OF_CLUSTER} AND r.run_id = ?", (found.cluster, found.cluster, found.run_id))
    return bytes(row.fetchone()[0])


def insert(db: sqlite3.Connection, cluster: str, record: ValidationRecord) -> None:
    """Write a run with its checks; it replaces a run of the same id."""
    db.execute("INSERT INTO clusters (name) VALUES (?) ON CONFLICT DO NOTHING", (cluster,))
    known = cluster_number(db, cluster)
    db.execute(
        "INSERT INTO runs (cluster, run_id, started, verdict, suite, hosts, versions, record) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (cluster, run_id) DO UPDATE SET started = excluded.started, "
        "verdict = excluded.verdict, suite = excluded.suite, hosts = excluded.hosts, versions = excluded.versions, "
        "record = excluded.record",
        (
            known,
            record.run_id,
            record.started.timestamp(),
            record.verdict.value,
            record.suite,
            json.dumps(record.hosts),
            json.dumps(record.versions),
            pack_record(record),
        ),
    )
    number = db.execute("SELECT id FROM runs WHERE cluster = ? AND run_id = ?", (known, record.run_id)).fetchone()[0]
    db.execute("DELETE FROM results WHERE run = ?", (number,))
    for check in record.checks:
        figures = {
            key.text: figure.value for key, figure in results.keys(record, check).items() if math.isfinite(figure.value)
        }
        db.execute(
            "INSERT INTO results (run, name, verdict, layout, reason, culprits, figures, named, apart) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number,
                check.check,
                check.verdict.value,
                _layout(db, list(figures)),
                check.reason,
                json.dumps([culprit.model_dump(mode="json") for culprit in check.culprits]),
                pack_figures(list(figures.values())),
                json.dumps(check.named),
                json.dumps([host for host in record.hosts if host not in record.slots or host in check.left_out]),
            ),
        )


def begin(db: sqlite3.Connection, cluster: str, run_id: str | None) -> None:
    """Let the history of the cluster begin with a run, or now where ``run_id`` is None."""
    known, now = cluster_number(db, cluster), time.time()
    if run_id is None:
        db.execute("INSERT INTO baselines (cluster, at, run, begins) VALUES (?, ?, NULL, ?)", (known, now, now))
    else:
        db.execute(
            "INSERT INTO baselines (cluster, at, run, begins) "
            "SELECT ?, ?, id, started FROM runs WHERE cluster = ? AND run_id = ?",
            (known, now, known, run_id),
        )


def prune(db: sqlite3.Connection, cluster: str, keep_runs: int | None, keep_days: float | None) -> int:
    """Forget runs beyond a count or an age, except the accepted and the newest run; return how many."""
    base = baseline(db, cluster)
    kept = base.run_id if base else ""
    oldest = -math.inf if keep_days is None else time.time() - keep_days * _DAY_S
    gone = [
        (number,)
        for place, (number, run_id, started) in enumerate(ids(db, cluster))
        if run_id != kept and place and (started < oldest or (keep_runs is not None and place >= keep_runs))
    ]
    db.executemany("DELETE FROM runs WHERE id = ?", gone)
    if gone:
        _drop_unused(db)
    return len(gone)


def forget(db: sqlite3.Connection, cluster: str) -> None:
    """Remove a cluster with its runs and baselines."""
    if db.execute("DELETE FROM clusters WHERE name = ?", (cluster,)).rowcount:
        _drop_unused(db)


def _drop_unused(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM layouts WHERE NOT EXISTS (SELECT 1 FROM results WHERE results.layout = layouts.id)")


def _results(db: sqlite3.Connection, number: int) -> tuple[StoredResult, ...]:
    rows = db.execute(
        "SELECT name, verdict, reason, culprits, coalesce(named, '[]'), coalesce(apart, '[]') "
        "FROM results WHERE run = ? ORDER BY id",
        (number,),
    )
    return tuple(
        StoredResult(
            check=name,
            verdict=Verdict(verdict),
            reason=reason,
            culprits=culprits_of(culprits),
            named=tuple(json.loads(named)),
            apart=tuple(json.loads(apart)),
        )
        for name, verdict, reason, culprits, named, apart in rows
    )


def culprits_of(text: str) -> tuple[Culprit, ...]:
    return tuple(Culprit.model_validate(one) for one in json.loads(text))


def _layout(db: sqlite3.Connection, keys: Sequence[str]) -> int | None:
    if not keys:
        return None
    digest = blake2b("\n".join(keys).encode(), digest_size=16).digest()
    row = db.execute("SELECT id FROM layouts WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return db.execute("INSERT INTO layouts (digest, keys) VALUES (?, ?)", (digest, pack_keys(keys))).lastrowid
    return int(row[0])


# --- Names of runs: an id, the beginning of one, ``last``, or ``last-1`` for the run before the last ------------------

_LAST = re.compile(r"last(?:-(?P<back>\d{1,6}))?")
_MOST_NAMED = 4


def is_last(name: str) -> bool:
    """Whether a name counts back from the newest run, as ``last`` and ``last-1`` do."""
    return _LAST.fullmatch(name) is not None


def choose(name: str, ids: Sequence[str], whose: str) -> int:
    """Return the place of the named run among the ids.

    Args:
        name: what the user gave.
        ids: the ids of all runs, newest first.
        whose: how a message names them, such as "the history".

    Raises:
        ConfigError: the run is unknown, or the name is the beginning of several ids.
    """
    if not ids:
        raise ConfigError(f"{whose[0].upper()}{whose[1:]} is empty; 'clusterctl validate INVENTORY' begins it.")
    if match := _LAST.fullmatch(name):
        back = int(match["back"] or 0)
        if back >= len(ids):
            raise ConfigError(f"The run '{name}' is not in {whose} (runs: {len(ids)}); choose a newer one.")
        return back
    found = [place for place, known in enumerate(ids) if known == name]
    found = found or [place for place, known in enumerate(ids) if name and known.startswith(name)]
    if not found:
        raise ConfigError(f"The run '{name}' is not in {whose}; 'clusterctl history INVENTORY' lists the runs.")
    if len(found) > 1:
        several = and_more([ids[place] for place in found], _MOST_NAMED)
        raise ConfigError(f"'{name}' is the beginning of {len(found)} runs ({several}); give more of the id.")
    return found[0]


# --- Records that the history returns ---------------------------------------------------------------------------------


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


# --- Columns of the database: records, keys and figures, compressed and with a checksum against flipped bits ----------

_CHECKSUM = 4  # bytes
# A stored record leaves out the samples (medians and intervals stay), the trends, and matrices of more links than 200
# nodes have. The folder of the run holds all of them as long as it is kept.
_MOST_LINKS = 20_000
_MOST_BYTES = 1 << 30  # unpacked
_WITHOUT: Any = {"trends": True, "checks": {"__all__": {"figures": {"__all__": {"samples"}}}}}


class BrokenError(ValueError):
    """A column is damaged."""


def pack_record(record: ValidationRecord) -> bytes:
    """Return a record as one compressed column."""
    if any(len(matrix.value) > _MOST_LINKS for check in record.checks for matrix in check.matrices):
        slim = [
            check.model_copy(update={"matrices": tuple(m for m in check.matrices if len(m.value) <= _MOST_LINKS)})
            for check in record.checks
        ]
        record = record.model_copy(update={"checks": tuple(slim)})
    return files.compress(record.model_dump_json(exclude=_WITHOUT).encode())


def unpack_record(data: bytes, place: str) -> ValidationRecord:
    """Return the record of a column.

    Raises:
        ConfigError: the record is damaged.
        BrokenError: its compressed bytes are damaged.
    """
    return results.load(_decompress(data), place)


def pack_keys(keys: Sequence[str]) -> bytes:
    """Return a layout's keys as one compressed column."""
    return files.compress(json.dumps(list(keys)).encode())


def unpack_keys(data: bytes) -> dict[str, int]:
    """Return the place of each key.

    Raises:
        BrokenError: the column is damaged.
    """
    try:
        return {str(key): place for place, key in enumerate(json.loads(_decompress(data)))}
    except ValueError as error:
        raise BrokenError(str(error)) from None


def pack_figures(values: Sequence[float]) -> bytes:
    """Return values as 8 bytes each, least significant first, and a checksum."""
    packed = array("d", values)
    if sys.byteorder == "big":
        packed.byteswap()
    data = packed.tobytes()
    return data + zlib.crc32(data).to_bytes(_CHECKSUM, "little")


def unpack_figures(data: bytes) -> array[float]:
    """Return the values of a column.

    Raises:
        BrokenError: the column is damaged.
    """
    body, check = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if len(body) % 8 or zlib.crc32(body).to_bytes(_CHECKSUM, "little") != check:
        raise BrokenError("the checksum of figures is wrong")
    values = array("d", body)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _decompress(data: bytes) -> bytes:
    try:
        return files.decompress(data, _MOST_BYTES)
    except ValueError as error:
        raise BrokenError(str(error)) from None
