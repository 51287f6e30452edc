from __future__ import annotations

import contextlib
import threading
import time as clock
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from clusterctl.nightly import notify
from nights import (
    QUICK,
)

pytestmark = pytest.mark.programs


class Server(BaseHTTPRequestHandler):
    answers: list[int]
    slow_s = 0.0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        code = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if self.slow_s:
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                for _ in range(100):  # alive, and never done
                    self.wfile.write(b"X-A: b\r\n")
                    self.wfile.flush()
                    clock.sleep(self.slow_s)
            except OSError:
                return
        self.send_response(code)
        if code in range(300, 400):
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        """Quiet."""


@contextlib.contextmanager
def serving(*answers: int, slow_s: float = 0.0) -> Iterator[tuple[str, list[Any]]]:
    handler = type("Handler", (Server,), {"answers": list(answers), "slow_s": slow_s})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.got = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", server.got  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


def test_a_post_to_this_machine_goes_to_no_proxy(tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(204) as (place, got), serving(204) as (proxy, astray):
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://{proxy}")
        monkeypatch.setenv("no_proxy", "")
        done = notify.call(notify.parse(f"http://user:secret@{place}/x"), record, {}, tmp_path, QUICK)
    assert done.ok
    assert (len(got), astray) == (1, [])


def test_a_post_carries_the_record_and_keeps_its_secrets(tmp_path: Path, record: Path) -> None:
    with serving(204) as (place, got):
        target = notify.parse(f"http://me:pass%20word@{place}/services/T0KEN?key=S3CRET#frag")
        result = notify.call(target, record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts, result.words) == (True, 1, f"http://{place}/… answered 204")
    path, headers, body = got[0]
    assert path == "/services/T0KEN?key=S3CRET"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert body == record.read_bytes()


@pytest.mark.parametrize(
    ("answers", "attempts", "ok", "words"),
    [
        ((503, 503, 200), 3, True, "answered 200"),
        ((500,), 3, False, "answered 500"),
        ((429, 200), 2, True, "answered 200"),
        ((404,), 1, False, "answered 404"),
        ((302,), 1, False, "redirect, which is not followed"),
    ],
    ids=["busy", "broken", "too many", "not there", "redirect"],
)
def test_answers_to_a_post(
    tmp_path: Path, record: Path, answers: tuple[int, ...], attempts: int, ok: bool, words: str
) -> None:
    with serving(*answers) as (place, got):
        result = notify.call(notify.parse(f"http://{place}/x"), record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts, len(got)) == (ok, attempts, attempts)
    assert words in result.words


def test_a_server_that_dribbles_is_given_up(tmp_path: Path, record: Path) -> None:
    began = clock.monotonic()
    with serving(200, slow_s=0.2) as (place, _):
        result = notify.call(
            notify.parse(f"http://{place}/SECRET"), record, {}, tmp_path, notify.RetryPolicy(1, 1, 0.01, 10, 0.5)
        )
    assert not result.ok
    assert clock.monotonic() - began < 6
    assert "did not answer within 1 s" in result.words
    assert "SECRET" not in result.words


def test_a_server_that_is_not_there(tmp_path: Path, record: Path) -> None:
    result = notify.call(notify.parse("http://127.0.0.1:1/SECRET"), record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts) == (False, 3)
    assert result.words == "http://127.0.0.1:1/… Connection refused"
