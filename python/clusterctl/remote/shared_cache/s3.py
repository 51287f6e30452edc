"""A shared cache in S3-compatible storage, through the library obstore; keys come from the environment alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

from clusterctl.model.shared_cache import INDEX, LARGEST_ENVELOPE, EntryName, Statement, blob_path, index_bytes
from clusterctl.remote.shared_cache.http import LOOPBACK
from clusterctl.remote.shared_cache.store import counted, not_there, refused_login
from clusterctl.support.errors import ClusterctlError, ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from multiprocessing.connection import Connection
    from pathlib import Path

_CHUNK = 1 << 20
_TRIES = 2
_PATIENCE = timedelta(seconds=20)
_SILENCE = timedelta(seconds=30)  # without a byte
_WHOLE = timedelta(hours=6)  # of a request with a content
_LIST_S = 120.0  # of all pages of a list
_LIST_BYTES = 1 << 30  # of memory for them
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
        """Return what is below a prefix, by a process that ends in time and whose memory is bounded.

        The library reads a page of any size whole, and its reading cannot be ended.
        """
        spawn = multiprocessing.get_context("spawn")
        answers, told = spawn.Pipe(duplex=False)
        lister = spawn.Process(target=_tell_list, args=(told, self.where, prefix), daemon=True)
        lister.start()
        told.close()
        found: list[Any] | ClusterctlError
        try:
            found = answers.recv() if answers.poll(_LIST_S) else self._endless(f"in {_LIST_S:g} s")
        except EOFError:
            found = self._endless(f"within {_LIST_BYTES >> 20} MiB of memory")
        finally:
            lister.kill()
            lister.join()
        if isinstance(found, ClusterctlError):
            raise found
        return list(found)

    def pages(self, prefix: str) -> list[Any]:
        """Return what is below a prefix, up to a number that no shared cache has."""
        with self._asked():
            return list(counted(self.where, chain.from_iterable(self._store.list(prefix=prefix))))

    def _endless(self, bound: str) -> UnreachableError:
        return UnreachableError(f"The list of {self.where} cannot be read {bound}; look at that place.")

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


def _tell_list(told: Connection, where: str, prefix: str) -> None:
    """Send a list, or the error instead of it; with too little memory the process aborts and sends nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_LIST_BYTES, _LIST_BYTES))
    try:
        told.send(S3Store(where).pages(prefix))
    except ClusterctlError as error:
        told.send(error)


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
