"""Open the shared cache at a place: a path, http(s):// or s3://. Everything that it answers has a deadline.

A timeout of a socket is not enough: a server may send a byte a minute, a name server or a network file system may hang.
So the asking happens in a thread that is left behind, and the store is not asked again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import urlsplit

from clusterctl.remote.shared_cache.store import FolderStore, SharedStore
from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from clusterctl.model.shared_cache import EntryName, Statement

_SCHEMES = "a folder, http://…, https://… or s3://BUCKET/PREFIX"
_T = TypeVar("_T")
_OPEN_S = 60.0
_ANSWER_S = 60.0  # until an answer is whole, and without a part of a content
_LIST_S = 120.0  # a long list has many pages
_SLOWEST_BYTES_PER_S = 64 << 10
_PARTS = 4  # that are read ahead
_LOST = (EOFError, ConnectionError)  # of a store whose process has ended


_Parts: TypeAlias = "queue.Queue[bytes | BaseException | None]"  # None: the end


def opened(where: str, within_s: float | None = None) -> SharedStore:
    """Return the store at a place; nothing is asked over the network yet.

    ``within_s`` is the time for all its answers together but contents; None sets none.

    Raises:
        ConfigError: the place is not one, or a library for it is missing.
    """
    return PatientStore(where, lambda: _store(where), within_s)


def _store(where: str) -> SharedStore:
    if "://" not in where:
        return FolderStore(Path(where).expanduser())
    refuse(where)
    scheme, _, rest = where.partition("://")
    if scheme == "file":
        return FolderStore(Path(rest))
    if scheme in {"http", "https"}:
        from clusterctl.remote.shared_cache.http import HttpStore  # noqa: PLC0415 - one kind is used

        return HttpStore(where)
    from clusterctl.remote.shared_cache import s3  # noqa: PLC0415 - the same

    store: SharedStore = s3.in_process(where)
    return store


def refuse(where: str) -> None:
    """Refuse what is not the place of a shared cache.

    Raises:
        ConfigError: the scheme is unknown, or the address carries a password.
    """
    if "://" not in where:
        return
    scheme, _, rest = where.partition("://")
    if scheme not in {"file", "http", "https", "s3"} or not rest.strip("/"):
        raise ConfigError(f"'{scheme}://' is not the beginning of a shared cache's address; give {_SCHEMES}.")
    try:
        parts = urlsplit(where)
        has_login = parts.username is not None or bool(parts.query)
    except ValueError:
        raise ConfigError(f"'{scheme}://…' is not a readable address; give {_SCHEMES}.") from None
    if has_login:
        raise ConfigError(
            "The address of the shared cache carries a user, a password or a query, and records would show it; set"
            " CLUSTERCTL_CACHE_USER and CLUSTERCTL_CACHE_PASSWORD in the environment instead."
        )


class PatientStore(SharedStore):
    """A store whose reading ends in time; what writes has the user before it, who can stop it."""

    def __init__(self, where: str, make: Callable[[], SharedStore], within_s: float | None = None) -> None:
        """Open a store.

        ``where`` is its place, as a message names it. ``make`` opens it and may ask over the network. ``within_s`` is
        the time for all answers together but contents; None sets none.

        Raises:
            UnreachableError: it did not open in time.
        """
        self.where = where
        self._end = None if within_s is None else time.monotonic() + within_s
        self._given_up = ""
        self._store = self._within(_OPEN_S, make)
        self.where = self._store.where

    def names(self) -> list[EntryName]:
        """See :class:`SharedStore`."""
        return self._within(_LIST_S, self._store.names)

    def envelope(self, name: EntryName) -> bytes | None:
        """See :class:`SharedStore`."""
        return self._within(_ANSWER_S, lambda: self._store.envelope(name))

    def has_content(self, statement: Statement) -> bool:
        """See :class:`SharedStore`."""
        return self._within(_ANSWER_S, lambda: self._store.has_content(statement))

    def written(self, name: EntryName) -> float | None:
        """See :class:`SharedStore`."""
        return self._within(_ANSWER_S, lambda: self._store.written(name))

    def content(self, statement: Statement) -> Iterator[bytes]:
        """See :class:`SharedStore`.

        Raises:
            UnreachableError: nothing comes any more, or it comes too slowly to end in time.
        """
        parts: _Parts = queue.Queue(_PARTS)
        stopped = threading.Event()
        end = time.monotonic() + _ANSWER_S + statement.size / _SLOWEST_BYTES_PER_S
        self._refuse_given_up()
        threading.Thread(target=_read, args=(self._store, statement, parts, stopped), daemon=True).start()
        try:
            while (part := self._part(parts, end, statement)) is not None:
                yield part
        finally:
            stopped.set()

    def _part(self, parts: _Parts, end: float, statement: Statement) -> bytes | None:
        """Return the next part of a content, None behind the last."""
        try:
            part = parts.get(timeout=max(0.0, min(_ANSWER_S, end - time.monotonic())))
        except queue.Empty:
            slow = time.monotonic() >= end
            words = f"less than {_SLOWEST_BYTES_PER_S >> 10} KiB a second" if slow else "nothing any more"
            raise self._give_up(f"{self.where} sends {words} of {statement.entry.name}; look at that server.") from None
        if isinstance(part, _LOST):
            raise self._lost()
        if isinstance(part, BaseException):
            raise part
        return part

    def put(self, statement: Statement, content: Path, envelope: bytes, *, replace: bool) -> bool:
        """See :class:`SharedStore`."""
        return self._told(lambda: self._store.put(statement, content, envelope, replace=replace))

    def finish(self) -> None:
        """See :class:`SharedStore`."""
        self._told(self._store.finish)

    def remove(self, name: EntryName) -> None:
        """See :class:`SharedStore`."""
        self._told(lambda: self._store.remove(name))

    def sweep(self, wanted: AbstractSet[str], before: float) -> int:
        """See :class:`SharedStore`."""
        return self._told(lambda: self._store.sweep(wanted, before))

    def _within(self, limit_s: float, ask: Callable[[], _T]) -> _T:
        """Return an answer that comes in time."""
        self._refuse_given_up()
        answers: list[_T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                answers.append(self._told(ask))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                errors.append(error)

        left = limit_s if self._end is None else max(0.0, min(limit_s, self._end - time.monotonic()))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(left)
        if errors:
            raise errors[0]
        if answers:
            return answers[0]
        raise self._give_up(f"{self.where} did not answer in time; look at that server and at the network.")

    def _told(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except _LOST:
            raise self._lost() from None

    def _lost(self) -> UnreachableError:
        return self._give_up(f"{self.where} answers with more than any shared cache does; look at that server.")

    def _give_up(self, words: str) -> UnreachableError:
        """Ask the store no more, and end its process where it has one."""
        self._given_up = words
        getattr(getattr(self, "_store", None), "end", str)()
        return UnreachableError(words)

    def _refuse_given_up(self) -> None:
        if self._given_up:
            raise UnreachableError(self._given_up)


def _read(store: SharedStore, statement: Statement, parts: _Parts, stopped: threading.Event) -> None:
    """Read a content until its end, or until nobody takes it any more."""

    def give(part: bytes | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                parts.put(part, timeout=1.0)
                return

    try:
        for part in store.content(statement):
            give(part)
            if stopped.is_set():
                return
        give(None)
    except BaseException as error:  # noqa: BLE001 - raised where the content is taken
        give(error)
