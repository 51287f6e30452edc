"""A shared cache in S3-compatible storage (moto)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_caches import Site, refused, round_trip

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen (package openssh-client)"),
]

CONTENT = os.urandom(40 << 20)  # more than one part of an upload
SMALL = b"small" * 1000


@pytest.fixture
def first(tmp_path: Path) -> Site:
    """A controller with two packs and a lock."""
    site = Site(tmp_path / "first")
    site.has("openmpi", CONTENT)
    site.has("mpi4py", SMALL)
    site.has_lock()
    return site


@pytest.fixture
def second(tmp_path: Path, first: Site) -> Site:
    """A controller that trusts the first and has nothing."""
    return Site(tmp_path / "second").trusts(first)


@pytest.fixture
def bucket(first: Site, second: Site) -> Iterator[tuple[str, int]]:
    """A bucket on a server of this machine: its address as a shared cache, and the server's port."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        base = f"http://127.0.0.1:{port}"
        told(f"{base}/moto-api/reset")
        told(f"{base}/packs", method="PUT")
        for site in (first, second):
            site.environment |= {
                "AWS_ENDPOINT_URL": base,
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "hidden-secret",
                "AWS_REGION": "us-east-1",
            }
        yield "s3://packs/site/one", port
    finally:
        server.stop()


def told(url: str, data: bytes = b"", method: str = "POST") -> None:
    """Tell moto's server something."""
    asked = urllib.request.Request(url, data, {"Content-Type": "text/plain"}, method=method)  # noqa: S310 - of this machine
    urllib.request.urlopen(asked).close()  # noqa: S310 - of this machine


@contextlib.contextmanager
def dropping(port: int, answers: int) -> Iterator[int]:
    """Pass connections on to a port, and cut each of them after so many bytes of answers."""
    listening = socket.create_server(("127.0.0.1", 0))

    def carry(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            _copy(server, client, answers)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=carry, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()


def _copy(source: socket.socket, target: socket.socket, most: int = sys.maxsize) -> None:
    seen = 0
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
            seen += len(data)
            if seen > most:
                break
        for side in (source, target):
            side.shutdown(socket.SHUT_RDWR)


def test_s3_carries_packs_and_serves_readers_over_http(first: Site, second: Site, bucket: tuple[str, int]) -> None:
    where, port = bucket
    round_trip(first, second, where)
    shutil.rmtree(second.cache)
    everybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::packs/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [everybody]}).encode()
    told(f"http://127.0.0.1:{port}/packs?policy", policy, "PUT")
    assert second.run("pull", f"http://127.0.0.1:{port}/packs/site/one").returncode == 0


def test_s3_entries_are_collected(first: Site, second: Site, bucket: tuple[str, int]) -> None:
    where, _ = bucket
    first.run("push", where)
    assert first.trusts(first).run("gc", where, "--keep", "1", "--yes").returncode == 0
    assert len(json.loads(first.run("list", where, "--format", "json").stdout)["entries"]) == 3
    assert second.run("pull", where).returncode == 0


def test_s3_that_drops_the_line_leaves_nothing(first: Site, second: Site, bucket: tuple[str, int]) -> None:
    where, port = bucket
    first.run("push", where)
    with dropping(port, 2 << 20) as cut:
        refused(second, where, "broke off after", 4, AWS_ENDPOINT_URL=f"http://127.0.0.1:{cut}")


def test_s3_that_refuses_the_keys_is_told(second: Site, bucket: tuple[str, int]) -> None:
    where, port = bucket
    told(f"http://127.0.0.1:{port}/moto-api/reset-auth", b"0")
    try:
        for there in (where, f"{where}-401"):  # the status is not read from the address
            refused(second, there, "refused the login (403); set AWS_ACCESS_KEY_ID", 4)
    finally:
        told(f"http://127.0.0.1:{port}/moto-api/reset-auth", b"1000000000")


@pytest.mark.parametrize(
    ("where", "code", "words", "variables"),
    [
        ("s3://nowhere/x", 1, "does not exist; make it, or correct its name", {}),
        ("s3://packs/x", 4, "cannot be used", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}),
        ("s3://packs/x", 1, "has no TLS", {"AWS_ENDPOINT_URL": "http://storage.example.org:9000"}),
        ("s3://packs/x", 1, "has no TLS", {"AWS_ENDPOINT_URL": "http://localhost:80@storage.example.org"}),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_s3_that_is_not_there_is_told(
    second: Site, where: str, code: int, words: str, variables: dict[str, str]
) -> None:
    refused(second, where, words, code, **variables)


def test_a_library_that_is_missing_is_named(second: Site, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "obstore"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError\n", encoding="utf-8")
    path = f"{hidden.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    refused(second, "s3://packs/x", "needs the library obstore; install clusterctl[cache]", 1, PYTHONPATH=path)
