"""Tables of the history, and the migration of files of earlier versions."""

from __future__ import annotations

import sqlite3
import struct
from typing import TYPE_CHECKING

from clusterctl.state.history.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

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
