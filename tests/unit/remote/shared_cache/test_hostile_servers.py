"""Servers and folders that are not ours: no password goes elsewhere, nothing is endless, nothing but a file is read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import subprocess
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from clusterctl.model.shared_cache import EntryName, Envelope, Statement, blob_path
from clusterctl.remote.shared_cache import exchange, place, signing
from clusterctl.remote.shared_cache.store import FolderStore
from clusterctl.state import snapshots
from clusterctl.support.errors import ClusterctlError, ConfigError, UnreachableError

NAME = EntryName("pack", "openmpi-1.0-0123456789abcdef")
STATEMENT = Statement(NAME, "debian", hashlib.sha256(b"whole").hexdigest(), 5)
MOST_MEMORY = 200 << 20

Answer: TypeAlias = "Callable[[BaseHTTPRequestHandler], None]"


class Server(ThreadingHTTPServer):
    """Answers as a test says, and remembers what it was sent."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.logins: list[str | None] = []
        self.paths: list[str] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_words: object) -> None:
        """Say nothing of a reader that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.logins.append(self.headers.get("Authorization"))
        self.server.paths.append(self.path)
        if size := int(self.headers.get("Content-Length") or 0):
            self.rfile.read(size)
        self.server.answer(self)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of the base class

    def log_message(self, format: str, *_arguments: object) -> None:  # noqa: A002 - the name of the base class
        """Be silent."""


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    """Run servers at free ports of this machine."""
    running: list[Server] = []

    def start(answer: Answer) -> Server:
        server = Server(answer)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.ended.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's own configuration counts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "NETRC"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long."""
    for name in ("_ANSWER_S", "_LIST_S"):
        monkeypatch.setattr(place, name, 1.5)


def send(handler: BaseHTTPRequestHandler, code: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def endless(handler: BaseHTTPRequestHandler, code: int = 200, block: bytes = b"x" * (1 << 20), **headers: str) -> None:
    """Send for as long as somebody reads."""
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        while not handler.server.ended.is_set():  # type: ignore[attr-defined]
            handler.wfile.write(block)


def dripping(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte of a header that has no end, each tenth of a second."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    with contextlib.suppress(OSError):
        while not handler.server.ended.wait(0.1):  # type: ignore[attr-defined]
            handler.wfile.write(b"x")
            handler.wfile.flush()


def in_time(work: Callable[[], Any], limit_s: float = 10.0) -> Any:
    """Return what the work gives, or its error; it has to end, and to do with little memory."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except ClusterctlError as error:
            found.append(error)

    tracemalloc.start()
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(limit_s)
        assert found, "it did not end"
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    return found[0]


def told(error: Any, kind: type[ClusterctlError], words: str) -> None:
    assert type(error) is kind, error
    assert words in str(error)
    assert "secret" not in str(error)
    assert "\n" not in str(error)


# --- deadlines of all kinds -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
def test_a_server_that_drips_is_given_up(serve: Callable[[Answer], Server]) -> None:
    where = f"{serve(dripping).url}/packs"
    began = time.monotonic()
    told(in_time(lambda: place.opened(where).envelope(NAME)), UnreachableError, f"{where} did not answer in time")
    assert time.monotonic() - began < 5


@pytest.mark.usefixtures("hasty")
def test_a_server_that_was_given_up_is_not_asked_again(serve: Callable[[Answer], Server]) -> None:
    server = serve(dripping)
    store = place.opened(server.url)
    for _ in range(3):
        told(in_time(lambda: store.envelope(NAME)), UnreachableError, "did not answer in time")
    assert len(server.paths) == 1


@pytest.mark.usefixtures("hasty")
def test_all_answers_together_have_a_deadline(serve: Callable[[Answer], Server]) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.5)
        send(handler, 404)

    store = place.opened(serve(answer).url, 1.2)
    began = time.monotonic()
    told(in_time(lambda: [store.envelope(NAME) for _ in range(10)]), UnreachableError, "did not answer in time")
    assert time.monotonic() - began < 3


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("pause_s", "words"), [(60.0, "nothing any more"), (0.2, "less than 64 KiB a second")])
def test_a_content_that_stalls_is_given_up(
    serve: Callable[[Answer], Server], tmp_path: Path, pause_s: float, words: str
) -> None:
    size = 4 << 20

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(size))
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(1000):
                handler.wfile.write(b"x" * (1 << 20) if pause_s > 1 else b"x" * 1000)
                if handler.server.ended.wait(pause_s):  # type: ignore[attr-defined]
                    break

    from clusterctl.state import cache_entries  # noqa: PLC0415 - here alone

    statement = Statement(NAME, "debian", "0" * 64, size, {})
    store = place.opened(serve(answer).url)
    failed = in_time(
        lambda: cache_entries.take(tmp_path, statement, Envelope(b"", ""), store.content(statement), "the pack")
    )
    told(failed, UnreachableError, words if pause_s > 1 else "sends ")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".lock")] == []


# --- HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("code", [200, 302, 401, 404, 500])
def test_an_endless_answer_of_a_web_server_ends(serve: Callable[[Answer], Server], code: int) -> None:
    server = serve(lambda handler: endless(handler, code, Location=handler.path))
    in_time(lambda: place.opened(server.url).envelope(NAME))
    in_time(lambda: place.opened(server.url).names())


@pytest.mark.parametrize("target", ["ftp://127.0.0.1:9/x", "file:///etc/passwd", "gopher://x/"])
def test_a_web_server_leads_to_web_servers_alone(serve: Callable[[Answer], Server], target: str) -> None:
    server = serve(lambda handler: send(handler, 302, Location=target))
    told(in_time(lambda: place.opened(server.url).envelope(NAME)), UnreachableError, "answered 302")


def test_a_small_answer_that_unpacks_to_a_large_one_is_not_unpacked(serve: Callable[[Answer], Server]) -> None:
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(pack.compress(b" " * (1 << 20)) for _ in range(300)) + pack.flush()
    own = serve(lambda handler: send(handler, 200, bomb, Content_Encoding="gzip"))
    told(in_time(place.opened(own.url).names), ConfigError, "is not an index of a shared cache")
    assert in_time(lambda: sum(len(part) for part in place.opened(own.url).content(STATEMENT))) <= len(bomb)


def test_names_that_climb_are_refused(serve: Callable[[Answer], Server]) -> None:
    index = json.dumps({"schema": 1, "entries": ["pack/../../etc/passwd"]}).encode()
    server = serve(lambda handler: send(handler, 200, index))
    told(in_time(place.opened(server.url).names), ConfigError, "is not an index of a shared cache")


def test_a_content_without_end_is_not_read_to_its_end(serve: Callable[[Answer], Server]) -> None:
    """What verifies a whole shared cache stops where a content is longer than its statement."""
    server = serve(endless)

    class Trusting:
        def check(self, _envelope: Envelope, _what: str) -> str:
            return "somebody"

    store = place.opened(server.url)
    listed = exchange.Listed(STATEMENT, "somebody")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "listed", lambda *_: ([listed], []))
        outcome = in_time(lambda: exchange.verify(store, Trusting(), lambda *_: None))  # type: ignore[arg-type]
    assert "is not the signed content" in str(outcome.problems[0])


# --- S3 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(serve: Callable[[Answer], Server], monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], Server]:
    """A server that S3 is asked at."""

    def start(answer: Answer) -> Server:
        server = serve(answer)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        return server

    return start


def page(keys: str, token: str) -> bytes:
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
    head = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    return f"{head}{more}{keys}</ListBucketResult>".encode()


KEY = (
    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>e</ETag><Size>5</Size></Contents>"
)


@pytest.mark.parametrize(
    ("code", "ask"),
    [
        (200, lambda store, _content: store.names()),
        (403, lambda store, _content: store.envelope(NAME)),
        (403, lambda store, _content: list(store.content(STATEMENT))),
        (403, lambda store, content: store.put(STATEMENT, content, b"{}", replace=True)),
    ],
    ids=["a page", "a refusal", "a refused content", "a refused push"],
)
def test_what_s3_answers_without_end_fills_no_memory(
    bucket: Callable[[Answer], Server], tmp_path: Path, code: int, ask: Callable[[Any, Path], object]
) -> None:
    (tmp_path / "content").write_bytes(b"whole")
    bucket(lambda one: send(one, 404) if one.command == "HEAD" else endless(one, code, block=b" " * (1 << 20)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = place.opened("s3://packs/x")
    for _again in range(2):
        with pytest.raises(UnreachableError, match=r"s3://packs/x answers with more than any shared cache does"):
            ask(store, tmp_path / "content")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_MEMORY


@pytest.mark.usefixtures("hasty")
def test_a_list_of_s3_ends(bucket: Callable[[Answer], Server]) -> None:
    keys = "".join(KEY.format(f"x/entries/pack/p{number}.json") for number in range(1000))
    server: Server = bucket(lambda handler: send(handler, 200, page(keys, str(len(server.paths)))))
    told(in_time(place.opened("s3://packs/x").names), UnreachableError, "")
    asked = len(server.paths)
    time.sleep(1)
    assert len(server.paths) - asked < 100


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("way", ["a page", "pages"])
def test_a_list_of_s3_that_was_given_up_is_read_no_further(bucket: Callable[[Answer], Server], way: str) -> None:
    ended: list[float] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if way == "a page":
            block = b" " * (1 << 10)
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + page("", "x").partition(b"<IsTruncated>")[0])
            with contextlib.suppress(OSError):
                while not handler.server.ended.wait(0.01):  # type: ignore[attr-defined]
                    handler.wfile.write(block)
            handler.close_connection = True
        else:
            keys = KEY.format(f"x/entries/other{len(server.paths)}")
            time.sleep(0.02)
            send(handler, 200, page(keys * 50, str(len(server.paths))))
        ended.append(time.monotonic())

    server: Server = bucket(answer)
    told(in_time(place.opened("s3://packs/x").names), UnreachableError, "")
    time.sleep(6)
    asked, over = len(server.paths), len(ended)
    time.sleep(1)
    assert ended, "the first request goes on"
    assert (len(server.paths), len(ended)) == (asked, over), "a request is made, or goes on"


@pytest.mark.usefixtures("hasty")
def test_keys_of_s3_that_climb_are_no_names(bucket: Callable[[Answer], Server]) -> None:
    keys = "".join(KEY.format(f"x/entries/{name}") for name in ("pack/..%2f..%2fetc.json", "pack/a/../b.json", "lock/"))
    body = page(keys, "").replace(b"true", b"false").replace(b"<NextContinuationToken></NextContinuationToken>", b"")
    bucket(lambda handler: send(handler, 200, body))
    found = in_time(place.opened("s3://packs/x").names)
    assert found == [] or isinstance(found, UnreachableError)


@pytest.mark.usefixtures("hasty")
def test_entities_of_s3_are_not_unfolded(bucket: Callable[[Answer], Server]) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "laugh"}">' for n in range(12))
    body = f'<?xml version="1.0"?><!DOCTYPE l [{entities}]><ListBucketResult>{KEY.format("x/&e11;")}</ListBucketResult>'
    bucket(lambda handler: send(handler, 200, body.encode()))
    found = in_time(place.opened("s3://packs/x").names)
    assert found == [] or isinstance(found, UnreachableError)


@pytest.mark.usefixtures("hasty")
def test_an_envelope_of_s3_is_no_longer_than_allowed(bucket: Callable[[Answer], Server]) -> None:
    bucket(lambda handler: endless(handler, ETag="e", Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT"))
    assert isinstance(in_time(lambda: place.opened("s3://packs/x").envelope(NAME)), UnreachableError)


@pytest.mark.usefixtures("hasty")
def test_a_redirect_of_s3_takes_no_signature_along(
    serve: Callable[[Answer], Server], bucket: Callable[[Answer], Server]
) -> None:
    other = serve(lambda handler: send(handler, 404))
    bucket(lambda handler: send(handler, 307, Location=f"{other.url}{handler.path}"))
    in_time(lambda: place.opened("s3://packs/x").envelope(NAME))
    assert set(other.logins) <= {None}


# --- a folder ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    for path in (NAME.path, blob_path(STATEMENT.sha256)):
        (folder / path).parent.mkdir(parents=True)
    (folder / NAME.path).write_bytes(b"{}")
    (folder / blob_path(STATEMENT.sha256)).write_bytes(b"whole")
    return folder


def planted(path: Path, what: str, tmp_path: Path) -> None:
    path.unlink()
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        (tmp_path / "elsewhere").write_bytes(b"whole")
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "zero":
        path.symlink_to("/dev/zero")
    elif what == "sparse":
        with path.open("wb") as stream:
            stream.truncate(400 << 30)


@pytest.mark.parametrize("what", ["fifo", "folder", "link", "zero", "sparse"])
def test_only_a_file_is_an_envelope(shared: Path, tmp_path: Path, what: str) -> None:
    planted(shared / NAME.path, what, tmp_path)
    words = "has more than" if what == "sparse" else "is not a regular file"
    told(in_time(lambda: place.opened(str(shared)).envelope(NAME)), UnreachableError, words)


@pytest.mark.parametrize("what", ["fifo", "folder", "link", "zero", "sparse"])
def test_only_a_file_is_a_content(shared: Path, tmp_path: Path, what: str) -> None:
    planted(shared / blob_path(STATEMENT.sha256), what, tmp_path)
    store = place.opened(str(shared))
    found = in_time(lambda: sum(len(part) for part in store.content(STATEMENT)))
    if what == "sparse":
        assert found <= 8 << 20
    else:
        told(found, UnreachableError, "is not a regular file")
    assert store.has_content(STATEMENT) is False


@pytest.mark.parametrize("folder", ["entries", "entries/pack", "blobs", "blobs/sha256"])
def test_a_folder_of_a_shared_cache_is_no_link(shared: Path, tmp_path: Path, folder: str) -> None:
    (shared / folder).rename(tmp_path / "moved")
    (shared / folder).symlink_to(tmp_path / "moved")
    store = place.opened(str(shared))
    content = tmp_path / "content"
    content.write_bytes(b"whole")
    told(in_time(lambda: store.put(STATEMENT, content, b"{}", replace=True)), ConfigError, "is a link")
    before = sorted(tmp_path.rglob("*"))
    told(in_time(lambda: store.remove(NAME)), ConfigError, "is a link")
    told(in_time(lambda: store.sweep(frozenset(), time.time() + 9)), ConfigError, "is a link")
    if "entries" in folder:
        told(in_time(store.names), UnreachableError, "cannot be read")
        assert store.written(NAME) is None
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="macOS has no path to an open folder")
@pytest.mark.parametrize("folder", ["entries", "entries/pack", "blobs", "blobs/sha256"])
@pytest.mark.parametrize("what", ["put", "replace", "remove", "sweep"])
def test_a_link_that_comes_after_the_look_leads_nowhere(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, what: str
) -> None:
    """Whoever may write to the shared cache swaps a folder for a link while a push or a gc is at work."""
    victim = tmp_path / "victim"
    for path in (NAME.path, blob_path(STATEMENT.sha256)):
        (victim / path).parent.mkdir(parents=True)
        (victim / path).write_bytes(b"mine")
    before = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    content = tmp_path / "content"
    content.write_bytes(b"other")
    store = FolderStore(shared)
    look = store._refuse_links  # noqa: SLF001 - the moment after it is what this is about

    def swapped() -> None:
        look()
        if not (shared / folder).is_symlink():
            (shared / folder).rename(tmp_path / "moved")
            (shared / folder).symlink_to(victim / folder)
        monkeypatch.undo()

    monkeypatch.setattr(store, "_refuse_links", swapped)
    with contextlib.suppress(ConfigError):
        if what == "remove":
            store.remove(NAME)
        elif what == "sweep":
            store.sweep(frozenset(), time.time() + 9)
        else:
            store.put(STATEMENT, content, b"{}", replace=what == "replace")

    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == before


def test_signatures_of_strangers_without_end_hold_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("key", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "signers").write_text(f"site {(tmp_path / 'key.pub').read_text()}")
    (tmp_path / "signers").chmod(0o600)
    (envelope,) = signing.Signer(str(tmp_path / "stranger")).sign([b"{}"])
    for kind in ("lock", "pack"):
        (tmp_path / "cache" / "entries" / kind).mkdir(parents=True)
        for number in range(300):
            (tmp_path / "cache" / "entries" / kind / f"a-{number}.json").write_bytes(envelope.to_bytes())
    monkeypatch.setattr(exchange, "_LOOK_S", 0.5)
    told: list[str] = []
    observer = SimpleNamespace(phase=told.append)
    began = time.monotonic()
    shared = exchange.SharedCache(str(tmp_path / "cache"), str(tmp_path / "signers"))
    assert shared.at_hand(observer) == snapshots.cached()  # type: ignore[arg-type]
    assert time.monotonic() - began < 5
    assert told[-1].startswith("the shared cache is left out: ")
