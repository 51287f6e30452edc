"""A small read-only HTTP server over this controller's cache: the signed packs and locks, and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, TYPE_CHECKING, Any

from clusterctl.model.shared_cache import INDEX, EntryName, Envelope, blob_path, index_bytes
from clusterctl.state import cache_entries
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.remote.shared_cache.signing import Signer
    from clusterctl.state.cache_entries import LocalEntry

_IDLE_S = 60  # a reader that takes nothing for so long is given up
_ENTRY = re.compile(r"/entries/([a-z]+)/([^/]+)\.json")
_MOST_READERS = 64
_PATIENCE_S = 30.0  # for the request, and how long a reader may be slower than the least rate
_SLOWEST_BYTES_PER_S = 64 << 10  # the least rate, which readers expect of a server too
_GRACE_S = 10.0  # as _PATIENCE_S, while another reader waits for a place
_FAST_BYTES_PER_S = 1 << 20  # the least rate then
_CHUNK = 1 << 16


class Shelf:
    """What the server offers: entries of a cache folder that are signed, or that the site's key signs now."""

    def __init__(self, cache: Path, signer: Signer | None) -> None:
        """Offer the entries of a cache folder.

        Args:
            cache: the cache folder.
            signer: signs what has no signed statement yet; None leaves that out.
        """
        self._cache = cache
        self._signer = signer
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Read the cache folder anew; what is new and unsigned is hashed and signed once."""
        with self._lock:
            entries = cache_entries.found(self._cache)
            unsigned = [entry for entry in entries if entry.envelope() is None]
            if self._signer is not None and unsigned:
                whole = [entry for entry in unsigned if not entry.problem()]
                made = self._signer.sign([entry.statement.to_bytes() for entry in whole])
                for entry, envelope in zip(whole, made, strict=True):
                    entry.keep(envelope)
            signed = [(entry, kept) for entry in entries if (kept := entry.envelope())]
            self._entries: dict[str, tuple[LocalEntry, Envelope]] = {
                f"/{entry.name.path}": (entry, envelope) for entry, envelope in signed
            }
            self._contents = {f"/{blob_path(entry.statement.sha256)}": entry.path for entry, _ in signed}
            self.unsigned = len(entries) - len(signed)

    @property
    def names(self) -> list[EntryName]:
        """The names of what is offered."""
        return [entry.name for entry, _ in self._entries.values()]

    def text(self, path: str) -> bytes | None:
        """Return the index or an envelope; None for another path. Paths of a request open no file by themselves."""
        if path == f"/{INDEX}":
            return index_bytes(self.names)
        found = self._entries.get(path)
        return found[1].to_bytes() if found else None

    def content(self, path: str) -> Path | None:
        """Return the file of a content; None for another path."""
        return self._contents.get(path)


def serve(shelf: Shelf, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server that is bound to an address; ``serve_forever`` answers.

    Raises:
        ConfigError: the address is not one of this machine, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return _server(family)((address, port), _handler(shelf))
    except OSError as error:
        raise ConfigError(
            f"Nothing can listen at {address} port {port} ({error.strerror or error}); choose another --bind or --port."
        ) from None


@dataclass
class _Reader:
    """A connection, and what it has taken."""

    began: float = field(default_factory=time.monotonic)
    sent: int = 0  # bytes
    waits: bool = False  # for us

    def behind_s(self, bytes_per_s: int) -> float:
        """Return how long it has been slower than a rate; a negative number where it is faster."""
        return -1.0 if self.waits else time.monotonic() - self.began - self.sent / bytes_per_s


def _server(kind: int) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = kind
        daemon_threads = True

        def __init__(self, *given: Any) -> None:
            self._places = threading.BoundedSemaphore(_MOST_READERS)
            self.readers: dict[socket.socket, _Reader] = {}
            super().__init__(*given)

        def process_request(self, request: Any, client_address: Any) -> None:
            while not self._places.acquire(timeout=0.5):
                readers = list(self.readers.items())
                behind_s, slowest = max(
                    (each.behind_s(_FAST_BYTES_PER_S), place) for place, (_, each) in enumerate(readers)
                )
                if behind_s > _GRACE_S:
                    _give_up(readers[slowest][0])
            self.readers[request] = _Reader()
            super().process_request(request, client_address)

        def service_actions(self) -> None:
            """Give up who is too slow; called twice a second."""
            for connection, reader in list(self.readers.items()):
                if reader.behind_s(_SLOWEST_BYTES_PER_S) > _PATIENCE_S:
                    _give_up(connection)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                self.readers.pop(request, None)
                self._places.release()

        def handle_error(self, _request: Any, _client_address: Any) -> None:
            """Leave out the traceback of a reader that went away."""

    return Server


def _give_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended in between
        connection.shutdown(socket.SHUT_RDWR)


def _handler(shelf_: Shelf) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        shelf = shelf_

    return Handler


class _Handler(BaseHTTPRequestHandler):
    shelf: Shelf
    timeout = _IDLE_S
    server_version = "clusterctl-cache"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        reader: _Reader = self.server.readers[self.connection]  # type: ignore[attr-defined]
        reader.waits = True
        is_new = _ENTRY.fullmatch(self.path) is not None and self.shelf.text(self.path) is None
        if self.path == f"/{INDEX}" or is_new:
            self.shelf.refresh()
        reader.began, reader.waits = time.monotonic(), False
        if (text := self.shelf.text(self.path)) is not None:
            self._head(len(text), "application/json")
            if with_body:
                self.wfile.write(text)
            return
        stream = self._opened()
        if stream is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with stream:
            self._head(os.fstat(stream.fileno()).st_size, "application/octet-stream")
            if with_body:
                while chunk := stream.read(_CHUNK):
                    self.wfile.write(chunk)
                    reader.sent += len(chunk)

    def _opened(self) -> IO[bytes] | None:
        file = self.shelf.content(self.path)
        try:
            return None if file is None else file.open("rb")
        except OSError:
            return None

    def _head(self, size: int, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        """Print nothing: the command says what it serves, and a reader's words belong on no terminal."""
