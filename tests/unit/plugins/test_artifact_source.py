"""Where a source comes from, and that nothing unverified ever does."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source

CONTENT = b"the release"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WRONG = "0" * 64
NOWHERE = {"url": "http://127.0.0.1:9/demo-1.0.tar.bz2", "sha256": SHA256}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "demo-1.0.tar.bz2").write_bytes(CONTENT)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www"))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def fetch(cache: Path, *sources: dict[str, Any]) -> source.Fetched:
    return source.fetch("demo", "1.0", sources, cache, variable="demo_sources")


def test_the_first_source_that_has_it_is_used_and_then_the_cache(server: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    places = [NOWHERE, {"url": f"{server}/demo-1.0.tar.bz2", "sha256": SHA256}]
    fetched = fetch(cache, *places)
    assert (fetched.path.read_bytes(), fetched.cached) == (CONTENT, False)
    assert fetched.path.name == f"demo-1.0-{SHA256[:16]}.tar.bz2"
    (tmp_path / "www" / "demo-1.0.tar.bz2").unlink()
    assert fetch(cache, *places).cached
    assert [path.name for path in (cache / "sources").iterdir()] == [fetched.path.name], "no temporary file is left"


def test_a_file_in_the_cache_is_hashed_at_each_use(server: str, tmp_path: Path) -> None:
    place = {"url": f"{server}/demo-1.0.tar.bz2", "sha256": SHA256}
    fetched = fetch(tmp_path / "cache", place)
    fetched.path.write_bytes(CONTENT[:-1])
    again = fetch(tmp_path / "cache", place)
    assert (again.cached, again.path.read_bytes()) == (False, CONTENT)


def test_a_wrong_sha256_names_file_expected_and_found(tmp_path: Path) -> None:
    tarball = tmp_path / "demo.tar.gz"
    tarball.write_bytes(CONTENT)
    with pytest.raises(source.SourceError, match=rf"{tarball}: its sha256 is {SHA256}, expected {WRONG}"):
        fetch(tmp_path / "cache", {"path": str(tarball), "sha256": WRONG})
    assert not list((tmp_path / "cache" / "sources").iterdir())


class Hostile(Quiet):
    """Answers as its server says, for as long as somebody reads."""

    def do_GET(self) -> None:
        way, ended = self.server.way, self.server.ended  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            if way == "drips headers":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            else:
                head = {
                    "breaks off": "200 OK\r\nContent-Length: 5000",
                    "500": "500 x\x1b",
                    "redirects": f"302 Found\r\nLocation: {self.path}",
                    "leaves": "302 Found\r\nLocation: file:///etc/passwd",
                }
                self.wfile.write(f"HTTP/1.1 {head.get(way, '200 OK')}\r\n\r\n".encode())
            while way not in {"breaks off", "500"} and not ended.is_set():
                self.wfile.write(b"x" if way.startswith("drips") else b"x" * (1 << 20))
                self.wfile.flush()
                if way.startswith("drips"):
                    ended.wait(0.1)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.ThreadingHTTPServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as running:
        running.daemon_threads = True
        running.ended = threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.ended.set()  # type: ignore[attr-defined]
        running.shutdown()


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("has no end", "it has more than 33554432 bytes"),
        ("drips", "it sends less than 16 KiB a second"),
        ("drips headers", "it sends less than 16 KiB a second"),
        ("breaks off", "the transfer broke off"),
        ("500", "the server said 500 x"),
        ("redirects", "it redirects more than 10 times"),
        ("leaves", "the server said 302"),
    ],
)
def test_a_server_of_a_source_that_sends_no_end_or_drips_is_given_up(
    hostile: http.server.ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, words: str
) -> None:
    hostile.way = way  # type: ignore[attr-defined]
    monkeypatch.setattr(source, "_MOST_SOURCE", 32 << 20)
    monkeypatch.setattr(source, "_PATIENCE_S", 4.0)
    tarball = tmp_path / "demo.tar.gz"
    tarball.write_bytes(CONTENT)
    url = f"http://127.0.0.1:{hostile.server_address[1]}/demo.tar.gz"
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(fetch(tmp_path / "alone", {"url": url, "sha256": SHA256}))
        except source.SourceError as error:
            found.append(str(error))
        found.append(
            fetch(tmp_path / "cache", {"url": url, "sha256": SHA256}, {"path": str(tarball), "sha256": SHA256})
        )

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert len(found) == 2, "it did not end"
    assert f"{url}: {words}" in found[0]
    assert found[0].isprintable()
    assert found[1].path.read_bytes() == CONTENT, "the next source is tried"
    assert [path.name for path in (tmp_path / "cache" / "sources").iterdir()] == [found[1].path.name]


@pytest.mark.parametrize("page", [b"<!DOCTYPE html>\n<title>Sign in</title>", b"\n <html><body>error</body></html>"])
def test_a_page_of_a_mirror_in_place_of_the_file_is_named_and_not_kept(
    server: str, tmp_path: Path, page: bytes
) -> None:
    (tmp_path / "www" / "demo-1.0.tar.bz2").write_bytes(page)
    with pytest.raises(source.SourceError) as caught:
        fetch(tmp_path / "cache", {"url": f"{server}/demo-1.0.tar.bz2", "sha256": SHA256})
    message = str(caught.value)
    assert "127.0.0.1 answered with an HTML page" in message
    assert "repair the mirror or the proxy" in message
    assert "demo_sources" in message
    assert "\n" not in message
    assert not list((tmp_path / "cache" / "sources").iterdir())


def test_when_all_fail_each_is_named_with_its_reason_and_the_cure(server: str, tmp_path: Path) -> None:
    with pytest.raises(source.SourceError) as caught:
        fetch(tmp_path, NOWHERE, {"url": f"{server}/none", "sha256": SHA256}, {"path": "/none", "sha256": SHA256})
    message = str(caught.value)
    assert f"{NOWHERE['url']}: not reachable" in message
    assert f"{server}/none: the server said 404" in message
    assert "/none: the file does not exist" in message
    assert "Put the release's archive on the controller and name it with its sha256 in demo_sources" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"url": "https://example.org/x"}, "has no sha256"),
        ({"url": "https://example.org/x", "sha256": "abc"}, "has no sha256"),
        ({"url": "ftp://example.org/x", "sha256": SHA256}, "not an http, https or file address"),
        ({"sha256": SHA256}, "one of 'url', 'path' and 'apt'"),
        ({"apt": {"package": "-oDir=/", "version": "1", "sha256": SHA256}}, "'package' and 'version'"),
    ],
)
def test_an_entry_that_is_no_source_is_refused(entry: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(source.SourceError, match=complaint):
        fetch(tmp_path, entry)


def test_a_version_without_any_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(source.SourceError, match=r"No source is known for demo 1\.0; list one .* in demo_sources"):
        fetch(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    tarball = tmp_path / "big.tar"
    tarball.write_bytes(os.urandom(1 << 20))
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        with pytest.raises(
            ArtifactError, match=rf"disk is full: {small}/sources has \d+ bytes free and demo 1.0 did not"
        ):
            fetch(small, {"path": str(tarball), "sha256": digest})
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with SlowServer() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.may_answer.set()
        running.shutdown()


class SlowServer(http.server.ThreadingHTTPServer):
    """Serves the release once the test says so, and counts the requests."""

    def __init__(self) -> None:
        self.may_answer, self.asked = threading.Event(), threading.Semaphore(0)
        self.requests = 0
        super().__init__(("127.0.0.1", 0), SlowHandler)

    @property
    def place(self) -> dict[str, str]:
        return {"url": f"http://127.0.0.1:{self.server_address[1]}/demo-1.0.tar.bz2", "sha256": SHA256}


class SlowHandler(http.server.BaseHTTPRequestHandler):
    server: SlowServer

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.server.asked.release()
        self.server.may_answer.wait(30)
        self.wfile.write(CONTENT)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_second_process_waits_for_the_one_that_fetches(slow: SlowServer, tmp_path: Path) -> None:
    cache, notes = tmp_path / "cache", []
    asked = ("demo", "1.0", [slow.place], cache)
    options = {"variable": "demo_sources"}
    process = multiprocessing.get_context("fork").Process(target=source.fetch, args=asked, kwargs=options)
    process.start()
    assert slow.asked.acquire(timeout=20)

    def note(text: str) -> None:
        notes.append(text)
        slow.may_answer.set()

    fetched = source.fetch(*asked, variable="demo_sources", note=note)
    assert (fetched.cached, slow.requests) == (True, 1)
    assert notes == [f"waiting for another process that fetches demo 1.0 (process {process.pid})"]
    process.join(20)
    assert process.exitcode == 0


DEB822 = """\
Types: deb
# a comment between
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://vendor.example/apt
Suites: nodistro
Components: main
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "apt" / "sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME=bookworm\nNAME="Debian"\n')
    return tmp_path


def test_only_the_distributions_own_mirror_is_used(etc: Path) -> None:
    (etc / "apt" / "sources.list.d" / "debian.sources").write_text(DEB822)
    (mirror,) = source.own_mirrors(etc)
    assert mirror.uri == "http://mirror.example/debian"
    assert source.source_list(mirror, "trixie") == (
        "Types: deb-src\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )


def test_one_line_lists_are_read_as_well(etc: Path) -> None:
    (etc / "apt" / "sources.list").write_text(
        "# deb http://commented.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main non-free # the mirror\n"
        "deb https://vendor.example/apt stable-of-theirs main\n"
    )
    (mirror,) = source.own_mirrors(etc)
    assert (mirror.uri, mirror.signed_by) == ("http://mirror.example/debian", "/k.gpg")


def test_a_machine_without_apt_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etc: Path) -> None:
    (etc / "apt" / "sources.list.d" / "debian.sources").write_text(DEB822)
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = source.parse_sources([{"apt": {"package": "demo", "version": "1.0", "sha256": SHA256}}])[0]
    with pytest.raises(Exception, match="this controller has no apt"):
        source._from_apt(wanted, tmp_path / "target", etc=etc)  # noqa: SLF001 - the one way to point it at another /etc
