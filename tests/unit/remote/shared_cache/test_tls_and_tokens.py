"""A shared cache behind TLS, and in a real OCI registry with tokens, as most registries of vendors have them."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import os
import ssl
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from registries import registry
from shared_caches import Site, refused, round_trip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.programs

LARGE = os.urandom(33 << 20)  # goes up in parts
GOOD = {"CLUSTERCTL_CACHE_USER": "user", "CLUSTERCTL_CACHE_PASSWORD": "secret"}


class Certificate:
    """A key and a certificate for 127.0.0.1 that is its own authority."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "site")])
        now = dt.datetime.now(dt.timezone.utc)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.path, self.key_path = folder / "certificate.pem", folder / "key.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        self.key_path.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def signed(self, claims: dict[str, Any]) -> str:
        """Return a JSON web token, as the distribution's specification of token authentication wants it."""
        chain = base64.b64encode(self.certificate.public_bytes(serialization.Encoding.DER)).decode()
        header = {"typ": "JWT", "alg": "RS256", "x5c": [chain]}
        body = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        return b".".join([body, _encoded(self.key.sign(body, padding.PKCS1v15(), hashes.SHA256()))]).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class TokenServer(ThreadingHTTPServer):
    """Gives each user the access that is asked for, and nobody else any."""

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.certificate = certificate
        self.asked: list[str] = []


class _Answer(BaseHTTPRequestHandler):
    server: TokenServer

    def do_GET(self) -> None:
        """Answer one request for a token."""
        asked = parse_qs(urlsplit(self.path).query)
        expected = f"Basic {base64.b64encode(b'user:secret').decode()}"
        if self.headers.get("Authorization") != expected:
            self.send_error(401)
            return
        self.server.asked += asked.get("scope", [])
        access = []
        for word in asked.get("scope", []):
            kind, name, actions = word.split(":")
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
        now = int(time.time())
        claims = {"iss": "site", "sub": "user", "aud": "packs", "exp": now + 300, "nbf": now - 5, "iat": now}
        told = json.dumps({"token": self.server.certificate.signed({**claims, "access": access})}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *_arguments: object) -> None:  # noqa: A002 - the name of the base class
        """Be silent."""


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[TokenServer]:
    server = TokenServer(Certificate(tmp_path / "issuer"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def first(tmp_path: Path) -> Site:
    site = Site(tmp_path / "first")
    site.has("openmpi", LARGE)
    site.has("mpi4py", b"small" * 1000)
    site.has_lock()
    return site


@pytest.fixture
def second(tmp_path: Path, first: Site) -> Site:
    return Site(tmp_path / "second").trusts(first)


def with_tokens(server: TokenServer, realm: str = "") -> dict[str, str]:
    own = f"http://127.0.0.1:{server.server_address[1]}/token"
    return {
        "realm": realm or own,
        "service": "packs",
        "issuer": "site",
        "rootcertbundle": str(server.certificate.path),
    }


def test_a_registry_that_gives_a_token_for_each_access(
    first: Site, second: Site, tokens: TokenServer, tmp_path: Path
) -> None:
    with registry(tmp_path / "registry", token=with_tokens(tokens)) as port:
        where = f"oci+http://127.0.0.1:{port}/site/packs"
        refused(second, where, "refused the login (401)", 4)
        first.environment |= GOOD
        second.environment |= GOOD
        round_trip(first, second, where)
    asked = {frozenset(scope.removeprefix("repository:site/packs:").split(",")) for scope in tokens.asked}
    assert {frozenset({"pull"}), frozenset({"pull", "push"})} <= asked  # a registry names actions in any order


def test_a_registry_with_tls_and_an_authority_of_the_site(first: Site, second: Site, tmp_path: Path) -> None:
    own = Certificate(tmp_path / "tls")
    tls = {"certificate": str(own.path), "key": str(own.key_path)}
    with registry(tmp_path / "registry", tls=tls, login=True) as port:
        where = f"oci://127.0.0.1:{port}/packs"
        refused(second, where, "certificate is not trusted; name the file of its authority in SSL_CERT_FILE", 4, **GOOD)
        for site in (first, second):
            site.environment |= GOOD | {"SSL_CERT_FILE": str(own.path)}
        round_trip(first, second, where)


def test_a_password_goes_to_no_token_server_in_clear_text(second: Site, tokens: TokenServer, tmp_path: Path) -> None:
    own = Certificate(tmp_path / "tls")
    tls = {"certificate": str(own.path), "key": str(own.key_path)}
    asking = with_tokens(tokens, "http://tokens.example.org/token")
    with registry(tmp_path / "registry", tls=tls, token=asking) as port:
        trusting = {**GOOD, "SSL_CERT_FILE": str(own.path)}
        refused(second, f"oci://127.0.0.1:{port}/packs", "tokens.example.org in clear text", 1, **trusting)


def test_a_web_server_with_tls_and_an_authority_of_the_site(first: Site, second: Site, tmp_path: Path) -> None:
    own = Certificate(tmp_path / "tls")
    assert first.run("push", tmp_path / "shared").returncode == 0
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "shared"))
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.path, own.key_path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        where = f"https://127.0.0.1:{server.server_address[1]}"
        refused(second, where, "certificate is not trusted; name the file of its authority in SSL_CERT_FILE", 4)
        done = second.run("pull", where, SSL_CERT_FILE=str(own.path))
        assert (done.returncode, "3 pulled" in done.stderr) == (0, True), done.stderr
    finally:
        server.shutdown()
        server.server_close()
