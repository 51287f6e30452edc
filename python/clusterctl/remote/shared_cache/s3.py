"""A shared cache in S3-compatible storage, through the library obstore; keys come from the environment alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import signal
import threading
from datetime import timedelta
from itertools import chain
from multiprocessing import managers, util
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clusterctl.model.shared_cache import INDEX, LARGEST_ENVELOPE, EntryName, Statement, blob_path, index_bytes
from clusterctl.remote.shared_cache.http import LOOPBACK
from clusterctl.remote.shared_cache.store import SharedStore, counted, not_there, refused_login
from clusterctl.support import held_files
from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

_CHUNK = 1 << 20
_TRIES = 2
_PATIENCE = timedelta(seconds=20)
_SILENCE = timedelta(seconds=30)  # without a byte
_WHOLE = timedelta(hours=6)  # of a request with a content
_MOST_MEMORY = 1 << 30  # bytes of the process that asks
_MOST_REASON = 200
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_DENIED = re.compile(r"status code: (40[13])\b")  # of a list, for which the library has no error of its own
_CURE = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"


class S3Store(SharedStore):
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
            self._store = kind.from_url(
                self.where,
                config=config,
                client_options=options | {"timeout": _WHOLE},
                retry_config={"max_retries": _TRIES, "retry_timeout": _PATIENCE},
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
            return list(counted(self.where, chain.from_iterable(self._store.list(prefix=prefix))))

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


# --- A process for it: the library reads a list or a refusal of any size whole, and nothing ends its reading ----------

_FACE = ("names", "envelope", "content", "has_content", "put", "finish", "remove", "sweep", "written")


class S3Proxy(managers.BaseProxy):
    """Passes the methods of a store on to its process."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method."""
        return lambda *given, **named: self._callmethod(name, given, named)


class _Process(managers.BaseManager):
    """Has the store, and answers a proxy by a socket in a folder that goes with this object."""

    def __init__(self) -> None:
        """Prepare a process."""
        kept = contextlib.ExitStack()
        folder = kept.enter_context(held_files.folder(held_files.short_base()))
        super().__init__(str(folder / "socket"), ctx=multiprocessing.get_context("spawn"))
        util.Finalize(self, kept.close, exitpriority=-1)  # after the process, whose end has 0


_Parts: Any = managers.IteratorProxy  # type: ignore[attr-defined] # typeshed lacks it
_Process.register("parts", proxytype=_Parts, create_method=False)
_Process.register("store", S3Store, S3Proxy, _FACE, method_to_typeid={"content": "parts"})


def in_process(url: str) -> Any:
    """Open a store in a process of bounded memory, which ends with this one; ``end`` ends it before.

    Raises:
        ConfigError: see :class:`S3Store`.
        EOFError: from any method, or another error of a connection: the process had too little memory.
    """
    where = S3Store(url).where
    process = _Process()
    process.start(_bound)
    proxy = process.store(url)  # type: ignore[attr-defined] # by register()
    proxy.where, proxy.end = where, process.shutdown
    return proxy


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it aborts with words of its own
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _refuse_clear_text(endpoint: str) -> None:
    if urlsplit(endpoint).hostname not in LOOPBACK and os.environ.get("AWS_ALLOW_HTTP", "").lower() != "true":
        raise ConfigError(
            f"The endpoint {endpoint} has no TLS; use https://, or set AWS_ALLOW_HTTP=true where you trust the network."
        )


def _reason(error: BaseException) -> str:
    """Return the first line of the library's own words, in short."""
    line = str(error).strip().partition("\n")[0]
    return line if len(line) <= _MOST_REASON else f"{line[:_MOST_REASON]}…"
