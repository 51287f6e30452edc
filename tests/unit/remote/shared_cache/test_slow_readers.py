"""Readers of 'cache serve' who are slow on purpose: they are given up, and others are served."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.remote.shared_cache import server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIZE = 64 << 20  # more than the buffers of a connection take
DRIP = b"GET /index.json HTTP/1.1\r\nX-Long: "
WHOLE = b"GET /blobs/large HTTP/1.0\r\n\r\n"


class Shelf:
    """Offers an index and one large content."""

    def __init__(self, large: Path) -> None:
        self.large = large

    def refresh(self) -> None:
        """Nothing is new."""

    def text(self, path: str) -> bytes | None:
        return b"{}" if path == "/index.json" else None

    def content(self, path: str) -> Path | None:
        return self.large if path == "/blobs/large" else None


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate(SIZE)
    shelf: Any = Shelf(large)
    with server.serve(shelf, "127.0.0.1", 0) as running:
        running.daemon_threads = True
        running.block_on_close = False
        thread = threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield running
        threading.Thread(target=running.shutdown, daemon=True).start()
        thread.join(5)


@pytest.fixture
def address(running: Any) -> tuple[str, int]:
    return "127.0.0.1", running.server_address[1]


@contextlib.contextmanager
def readers(address: tuple[str, int], request: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Connect readers who send a request, and take nothing."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection(address)))
            made[-1].sendall(request)
        yield made


def is_served(address: tuple[str, int], within_s: float) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/index.json", timeout=within_s) as answer:
            return bool(answer.read() == b"{}")
    except OSError:
        return False


@pytest.mark.parametrize("request_", [b"", DRIP, WHOLE], ids=["says nothing", "drips", "takes nothing"])
def test_slow_readers_at_every_place_give_way_to_another(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    monkeypatch.setattr(server, "_GRACE_S", 0.5, raising=False)
    with readers(address, request_, 70) as slow:
        time.sleep(1)
        for one in slow:
            with contextlib.suppress(OSError):
                one.send(b"x")
        assert is_served(address, 15)


@pytest.mark.parametrize("request_", [DRIP, WHOLE], ids=["drips", "takes nothing"])
def test_a_slow_reader_is_given_up_without_others(
    running: Any, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 1.0, raising=False)
    monkeypatch.setattr(server, "_SLOWEST_BYTES_PER_S", 64 << 20, raising=False)  # megabytes lie in buffers
    with readers(address, request_, 1) as (slow,):
        until = time.monotonic() + 10
        assert wait_for(lambda: len(running.readers) == 1, until)

        def drip() -> bool:
            with contextlib.suppress(OSError):
                slow.send(b"x")
                return bool(request_ == WHOLE and slow.recv(1)) and not running.readers
            return not running.readers

        assert wait_for(drip, until)


def wait_for(is_so: Callable[[], bool], until: float) -> bool:
    while not is_so() and time.monotonic() < until:
        time.sleep(0.1)
    return is_so()


def test_a_reader_at_the_least_rate_keeps_its_place(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 1.0, raising=False)
    with readers(address, WHOLE, 1) as (slow,):
        taken = 0
        while portion := slow.recv(1 << 20):
            taken += len(portion)
            if taken < 8 << 20:
                time.sleep(0.1)
        assert taken > SIZE
