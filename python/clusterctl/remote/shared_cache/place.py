"""Open the shared cache at a place: a path, http(s):// or s3://. Everything that it answers has a deadline.

A timeout of a socket is not enough: a server may send a byte a minute, a name server or a network file system may hang.
So the asking happens in a thread that is left behind, and the store is not asked again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from clusterctl.model.shared_cache import INDEX, LARGEST_ENVELOPE, EntryName, Statement, blob_path, index_bytes
from clusterctl.remote.shared_cache.store import LOOPBACK, FolderStore, HttpStore, counted, not_there, refused_login
from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from clusterctl.remote.shared_cache.store import SharedStore


_SCHEMES = "a folder, http://…, https://… or s3://BUCKET/PREFIX"
_T = TypeVar("_T")
_ANSWER_S = 60.0  # until an answer is whole, and without a part of a content
_LIST_S = 120.0  # a long list has many pages
_SLOWEST_BYTES_PER_S = 64 << 10
_PARTS = 4  # that are read ahead


_Parts: TypeAlias = "queue.Queue[bytes | BaseException | None]"  # None: the end


def opened(where: str, within_s: float | None = None) -> SharedStore:
    """Return the store at a place; nothing is asked over the network yet.

    Args:
        where: the place.
        within_s: the time for all its answers together but contents, in seconds; None sets none.

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
        return HttpStore(where)
    return S3Store(where)


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


class PatientStore:
    """A store whose reading ends in time; what writes has the user before it, who can stop it."""

    def __init__(self, where: str, make: Callable[[], SharedStore], within_s: float | None = None) -> None:
        """Open a store.

        Args:
            where: its place, as a message names it.
            make: opens it; may ask over the network.
            within_s: the time for all answers together but contents, in seconds; None sets none.

        Raises:
            UnreachableError: it did not open in time.
        """
        self.where = where
        self._end = None if within_s is None else time.monotonic() + within_s
        self._given_up = ""
        self._store = self._within(_ANSWER_S, make)
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
            self._given_up = f"{self.where} sends {words} of {statement.entry.name}; look at that server."
            raise UnreachableError(self._given_up) from None
        if isinstance(part, BaseException):
            raise part
        return part

    def put(self, statement: Statement, content: Path, envelope: bytes, *, replace: bool) -> bool:
        """See :class:`SharedStore`."""
        return self._store.put(statement, content, envelope, replace=replace)

    def finish(self) -> None:
        """See :class:`SharedStore`."""
        self._store.finish()

    def remove(self, name: EntryName) -> None:
        """See :class:`SharedStore`."""
        self._store.remove(name)

    def sweep(self, wanted: AbstractSet[str], before: float) -> int:
        """See :class:`SharedStore`."""
        return self._store.sweep(wanted, before)

    def _within(self, limit_s: float, ask: Callable[[], _T]) -> _T:
        """Return an answer that comes in time."""
        self._refuse_given_up()
        answers: list[_T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                answers.append(ask())
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
        self._given_up = f"{self.where} did not answer in time; look at that server and at the network."
        raise UnreachableError(self._given_up)

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


# --- A shared cache in S3-compatible storage, through the library obstore; keys come from the environment alone -------

_CHUNK = 1 << 20
_TRIES = 2
_PATIENCE = timedelta(seconds=20)
_SILENCE = timedelta(seconds=30)  # without a byte
_WHOLE = timedelta(hours=6)  # of a request with a content
_SHORT = timedelta(seconds=60)  # of a page of a list, which the library reads whole
_PAGES_S = 120.0  # of all pages
_MOST_REASON = 200
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_DENIED = re.compile(r"status code: (40[13])\b")  # of a list, for which the library has no error of its own
_CURE = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"


class S3Store:
    """The files of a folder store as objects below a prefix of a bucket."""

    def __init__(self, url: str) -> None:
        """Use ``s3://BUCKET/PREFIX``; AWS_ENDPOINT_URL names another service than Amazon's.

        Raises:
            ConfigError: the library is missing, or the environment does not fit.
        """
        try:
            from obstore import exceptions, store  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("s3:// needs the library obstore; install clusterctl[cache].") from None
        self.where = url.rstrip("/")
        self._exceptions = exceptions
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
        keyless = not (os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_PROFILE"))
        config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        config |= {"skip_signature": True} if keyless and endpoint else {}
        options: dict[str, Any] = {"read_timeout": _SILENCE, "connect_timeout": _PATIENCE}
        if endpoint.startswith("http://"):
            _refuse_clear_text(endpoint)
            options["allow_http"] = True
        try:
            kind: Any = store.S3Store
            self._store, self._lists = (
                kind.from_url(
                    self.where,
                    config=config,
                    client_options=options | {"timeout": limit},
                    retry_config={"max_retries": tries, "retry_timeout": _PATIENCE},
                )
                for limit, tries in ((_WHOLE, _TRIES), (_SHORT, 0))
            )
        except exceptions.BaseError as error:
            raise ConfigError(f"{self.where} is not a place in S3 storage ({_reason(error)}).") from None

    def names(self) -> list[EntryName]:
        """See :class:`SharedStore`."""
        found = []
        for meta in self._listed("entries/"):
            kind, _, name = str(meta["path"]).removeprefix("entries/").partition("/")
            with contextlib.suppress(ValueError):
                found.append(EntryName.parse(f"{kind}/{name.removesuffix('.json')}"))
        return sorted(found)

    def envelope(self, name: EntryName) -> bytes | None:
        """See :class:`SharedStore`."""
        with self._asked():
            try:
                answer = self._store.get(name.path)
                data = bytearray()
                for chunk in answer.stream(min_chunk_size=1):  # the size that it tells may be a lie
                    data += bytes(chunk)
                    if len(data) > LARGEST_ENVELOPE:
                        raise UnreachableError(f"{self.where}/{name.path} is too large for an entry of a shared cache.")
                return bytes(data)
            except FileNotFoundError:
                return None

    def content(self, statement: Statement) -> Iterator[bytes]:
        """See :class:`SharedStore`."""
        with self._asked():
            try:
                answer = self._store.get(blob_path(statement.sha256))
            except FileNotFoundError:
                raise not_there(self.where, statement) from None
        with contextlib.suppress(self._exceptions.BaseError, OSError):  # the reader sees what is missing
            for chunk in answer.stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)

    def has_content(self, statement: Statement) -> bool:
        """See :class:`SharedStore`."""
        with self._asked():
            try:
                return bool(self._store.head(blob_path(statement.sha256))["size"] == statement.size)
            except FileNotFoundError:
                return False

    def put(self, statement: Statement, content: Path, envelope: bytes, *, replace: bool) -> bool:
        """See :class:`SharedStore`."""
        if not self.has_content(statement):
            with self._asked():
                self._store.put(blob_path(statement.sha256), content)
        with self._asked():
            try:
                self._store.put(statement.entry.path, envelope, mode="overwrite" if replace else "create")
            except self._exceptions.AlreadyExistsError:
                return False
        return True

    def finish(self) -> None:
        """See :class:`SharedStore`; the index is for readers over HTTP. It is written until it names what is there."""
        for _ in range(_TRIES + 1):
            names = self.names()
            with self._asked():
                self._store.put(INDEX, index_bytes(names))
            if self.names() == names:
                return

    def remove(self, name: EntryName) -> None:
        """See :class:`SharedStore`."""
        with self._asked(), contextlib.suppress(FileNotFoundError):
            self._store.delete(name.path)

    def sweep(self, wanted: AbstractSet[str], before: float) -> int:
        """See :class:`SharedStore`."""
        freed = 0
        for meta in self._listed("blobs/sha256/"):
            path = str(meta["path"])
            if path.rpartition("/")[2] not in wanted and meta["last_modified"].timestamp() < before:
                with self._asked(), contextlib.suppress(FileNotFoundError):
                    self._store.delete(path)
                freed += int(meta["size"])
        return freed

    def written(self, name: EntryName) -> float | None:
        """See :class:`SharedStore`."""
        with self._asked():
            try:
                return float(self._store.head(name.path)["last_modified"].timestamp())
            except FileNotFoundError:
                return None

    def _listed(self, prefix: str) -> list[Any]:
        with self._asked():
            return list(counted(self.where, self._pages(prefix)))

    def _pages(self, prefix: str) -> Iterator[Any]:
        end = time.monotonic() + _PAGES_S
        for batch in self._lists.list(prefix=prefix):
            yield from batch
            if time.monotonic() > end:
                raise UnreachableError(f"The list of {self.where} has no end after {_PAGES_S:g} s; look at that place.")

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Turn the library's errors into ours."""
        errors = self._exceptions
        try:
            yield
        except errors.UnauthenticatedError:
            raise refused_login(self.where, "401", _CURE) from None
        except (errors.PermissionDeniedError, PermissionError):
            raise refused_login(self.where, "403", _CURE) from None
        except FileNotFoundError:
            raise ConfigError(f"{self.where} is not there; make the bucket, or correct its name.") from None
        except errors.BaseError as error:
            if "NoSuchBucket" in str(error):
                raise ConfigError(f"The bucket of {self.where} does not exist; make it, or correct its name.") from None
            if denied := _DENIED.search(str(error)):
                raise refused_login(self.where, denied[1], _CURE) from None
            raise UnreachableError(
                f"{self.where} cannot be used ({_reason(error)}); check AWS_ENDPOINT_URL, AWS_REGION and the network."
            ) from None


def _refuse_clear_text(endpoint: str) -> None:
    host = endpoint.removeprefix("http://").partition("/")[0].rpartition(":")[0].strip("[]") or endpoint
    if host not in LOOPBACK and os.environ.get("AWS_ALLOW_HTTP", "").lower() != "true":
        raise ConfigError(
            f"The endpoint {endpoint} has no TLS; use https://, or set AWS_ALLOW_HTTP=true where you trust the network."
        )


def _reason(error: BaseException) -> str:
    """Return the first line of the library's own words, in short."""
    line = str(error).strip().partition("\n")[0]
    return line if len(line) <= _MOST_REASON else f"{line[:_MOST_REASON]}…"
