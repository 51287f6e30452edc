"""Errors of the history, and their messages."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_DAMAGE = ("not a database", "malformed", "unsupported file format")


class StoreError(ConfigError):
    """The history cannot be read or written (exit 1); a validation goes on without it, with a note."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged; a full disk, a missing permission or a busy writer is another error."""
    return type(error) in {sqlite3.DatabaseError, sqlite3.OperationalError} and any(
        words in str(error) for words in _DAMAGE
    )


def explained(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    """Return the message for an error of the file system or of sqlite."""
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
