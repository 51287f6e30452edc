"""The file of the history: create it with its tables, open it, and set a damaged file aside."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import struct
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from clusterctl.state import locks, paths
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_BUSY_S = 30.0
_CHECKED_WHOLE = 32 * 2**20  # bytes; a larger file is checked where it is read, or every start would wait
_BESIDE = ("-wal", "-shm")  # files of sqlite; they belong to this one database


def connect(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the database, create it where it is missing, and migrate it to the present schema.

    Returns:
        The connection, and whether it can be written: a file on a read-only disk can still be read.

    Raises:
        StoreError: it cannot be used, or a newer clusterctl wrote it.
        sqlite3.DatabaseError: it is damaged.
    """
    try:
        paths.ensure_private(path.parent)
        if path.exists():
            refuse_newer(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM} and path.is_file():
            return _read_only(path), False
        raise explained(error, path) from None
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            with _locked(path, shared=True):  # a file must not be opened while it is renamed
                return _open(path), True
        except OSError as error:
            raise explained(error, path) from None
        except sqlite3.OperationalError as error:
            if is_damage(error):
                raise
            if "locked" not in str(error) or time.monotonic() > until:  # sqlite does not wait for a new WAL
                raise explained(error, path) from None
            time.sleep(0.05)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file; None where another process has just done so.

    Nothing is deleted: its readable parts stay, and a process that has it open goes on.

    Raises:
        StoreError: the file cannot be renamed.
    """
    try:
        with _locked(path, shared=False):
            if not _is_damaged(path):
                return None
            aside = path.with_name(f"{path.name}.damaged-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%fZ}")
            for ending in (*_BESIDE, ""):  # the log first: a new file must never find the log of the old one
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + ending).rename(aside.with_name(aside.name + ending))
            return aside
    except OSError as error:
        raise explained(error, path) from None


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        refuse_foreign(connection)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only before the first table
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        migrate(connection, path)
        if path.stat().st_size <= _CHECKED_WHOLE:
            _check(connection)
    except UnicodeDecodeError as error:  # the message of sqlite about a damaged schema quotes its bytes
        connection.close()
        raise sqlite3.DatabaseError(f"malformed: {error}") from None
    except sqlite3.DatabaseError as error:
        connection.close()
        if type(error) is sqlite3.DatabaseError and not str(error):  # Python 3.10 drops a message that is not text
            raise sqlite3.DatabaseError("malformed: the message of sqlite is not text") from None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _read_only(path: Path) -> sqlite3.Connection:
    """Open a read-only file; ``immutable`` keeps sqlite from writing the index of its log."""
    log = path.with_name(path.name + "-wal")
    try:
        how = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    except (sqlite3.OperationalError, OSError) as error:
        raise explained(error, path) from None
    if version != VERSION:
        connection.close()
        raise StoreError(f"The history {path} was written by an earlier clusterctl and is read-only; make it writable.")
    return connection


def _check(connection: sqlite3.Connection, how: str = "quick_check") -> None:
    found = connection.execute(f"PRAGMA {how}(1)").fetchone()
    if found is None or found[0] != "ok":
        words = " ".join(str(found[0]).split()) if found else "no answer"
        raise sqlite3.DatabaseError(f"malformed: {words.removeprefix('*** in database main *** ')}")


def _is_damaged(path: Path) -> bool:
    try:
        connection = _open(path)
    except sqlite3.DatabaseError as error:
        return is_damage(error)
    try:
        _check(connection, "integrity_check")
    except sqlite3.DatabaseError as error:
        return is_damage(error)
    finally:
        connection.close()
    return False


@contextlib.contextmanager
def _locked(path: Path, *, shared: bool) -> Iterator[None]:
    lock = path.with_name(f"{path.name}.lock")
    try:
        with locks.held(lock, "clusterctl, which renames a damaged history", shared=shared, patience_s=_BUSY_S):
            yield
    except locks.HeldError as holder:
        raise StoreError(f"The history {path} is held by {holder}; wait for it to end, or stop it first.") from None


# --- Errors of the history, and their messages ------------------------------------------------------------------------

_DAMAGE = ("not a database", "malformed", "unsupported file format")


class StoreError(ConfigError):
    """The history cannot be read or written (exit 1); a validation goes on without it, with a note."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged; a full disk, a missing permission or a busy writer is another error."""
    return type(error) in {sqlite3.DatabaseError, sqlite3.OperationalError} and any(
        words in str(error) for words in _DAMAGE
    )


def explained(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if "locked" in words:
        cure = "another clusterctl writes to it for a long time; wait for it to end"
    elif any(damage in words for damage in _DAMAGE):
        cure = "move it away, so that a new one can begin"
    elif "full" in words or "No space" in words:
        cure = "make room there"
    else:
        cure = "make it writable, or set XDG_STATE_HOME to a writable place"
    return StoreError(f"The history {path} cannot be used ({words}); {cure}.")


# --- Tables of the history, and the migration of files of earlier versions --------------------------------------------

# The figures of a check are one packed column, in the order of its layout. A row per figure would be 100,000 rows a
# night, and references are needed for a whole check at a time.
_TABLES = """
CREATE TABLE clusters (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE runs (
  id INTEGER PRIMARY KEY,
  cluster INTEGER NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
  run_id TEXT NOT NULL,
  started REAL NOT NULL,
  verdict TEXT NOT NULL,
  suite TEXT NOT NULL,
  hosts TEXT NOT NULL,
  versions TEXT NOT NULL,
  record BLOB NOT NULL,
  UNIQUE (cluster, run_id)
);
CREATE INDEX runs_by_time ON runs (cluster, started);
CREATE INDEX runs_by_name ON runs (run_id);
CREATE TABLE layouts (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, keys BLOB NOT NULL);
CREATE TABLE results (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  verdict TEXT NOT NULL,
  layout INTEGER REFERENCES layouts (id),
  reason TEXT NOT NULL,
  culprits TEXT NOT NULL,
  figures BLOB NOT NULL,
  UNIQUE (run, name)
);
CREATE INDEX results_by_layout ON results (layout);
"""
# Accepted runs and resets, with their times; the last line of a cluster is in force.
_BASELINES = """
CREATE TABLE baselines (
  id INTEGER PRIMARY KEY,
  cluster INTEGER NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
  at REAL NOT NULL,
  run INTEGER REFERENCES runs (id) ON DELETE CASCADE,
  begins REAL NOT NULL
);
"""
# The nodes that a bad check names and those that took no part in it, as JSON; NULL where an earlier version wrote it.
_NODES = """
ALTER TABLE results ADD COLUMN named TEXT;
ALTER TABLE results ADD COLUMN apart TEXT;
"""
# Each migrates a file from the version of its index to the next; a released one never changes.
MIGRATIONS: tuple[str, ...] = (_TABLES, _BASELINES, _NODES)
VERSION = len(MIGRATIONS)
_HEADER = 100  # bytes; https://www.sqlite.org/fileformat.html#the_database_header
_MAGIC = b"SQLite format 3\0"
_USER_VERSION = 60  # offset in it, four bytes, most significant first


def refuse_newer(path: Path) -> None:
    """Refuse a file of a newer clusterctl by its header alone, without a change in or beside it.

    Raises:
        StoreError: a newer clusterctl wrote the file.
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        header = stream.read(_HEADER)
    if header.startswith(_MAGIC) and len(header) == _HEADER:
        _refuse(path, struct.unpack_from(">I", header, _USER_VERSION)[0])


def refuse_foreign(connection: sqlite3.Connection) -> None:
    """Refuse a database of another program.

    Raises:
        sqlite3.DatabaseError: another program made it, or it is damaged.
    """
    if _version(connection) == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise sqlite3.DatabaseError("file is not a database of clusterctl")


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the file to the schema of this module, in all steps or none.

    Raises:
        StoreError: a newer clusterctl wrote it.
        sqlite3.DatabaseError: the file is damaged, or another program made it.
    """
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # again: another process may have been quicker
        _refuse(path, version)
        refuse_foreign(connection)
        for step in MIGRATIONS[version:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse(path: Path, version: int) -> None:
    if version > VERSION:
        raise StoreError(
            f"The history {path} was written by a newer clusterctl (schema {version}, this one knows {VERSION}); "
            "use that one, or set XDG_STATE_HOME to another folder."
        )
