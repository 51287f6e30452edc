"""The file of the history: create it, open it, and set a damaged file aside."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from clusterctl.state import locks, paths
from clusterctl.state.history import schema
from clusterctl.state.history.errors import StoreError, explained, is_damage

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
            schema.refuse_newer(path)
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
        schema.refuse_foreign(connection)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only before the first table
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        schema.migrate(connection, path)
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
    if version != schema.VERSION:
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
