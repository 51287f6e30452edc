"""Push and pull between controllers over a folder and a web server, and what is refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import http.client
import http.server
import ipaddress
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterctl.model import shared_cache
from clusterctl.provisioning import collect
from clusterctl.remote.shared_cache.http import HttpStore
from clusterctl.support.errors import UnreachableError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from shared_caches import PLATFORM, Site, refused

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen (package openssh-client)"),
]

CONTENT = os.urandom(3 << 20)


@pytest.fixture
def first(tmp_path: Path) -> Site:
    """A controller with a pack and a lock."""
    site = Site(tmp_path / "first")
    site.has("openmpi", CONTENT)
    site.has_lock()
    return site


@pytest.fixture
def second(tmp_path: Path, first: Site) -> Site:
    """A controller that trusts the first and has nothing."""
    return Site(tmp_path / "second").trusts(first)


@pytest.fixture
def shared(tmp_path: Path, first: Site) -> Path:
    """A folder to which the first controller has pushed."""
    folder = tmp_path / "shared"
    done = first.run("push", folder)
    assert (done.returncode, "2 pushed" in done.stderr) == (0, True), done.stderr
    return folder


@contextlib.contextmanager
def web_server(
    folder: Path, handler: type[http.server.SimpleHTTPRequestHandler] | None = None, certificate: Path | None = None
) -> Iterator[str]:
    kind = handler or http.server.SimpleHTTPRequestHandler

    class Quiet(kind):  # type: ignore[misc, valid-type]
        def log_message(self, *_words: object) -> None:
            pass

    serving = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def certified(folder: Path) -> Path:
    """Return a file with a key and a certificate for 127.0.0.1 that is its own authority."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "site")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = dt.datetime.now(dt.timezone.utc)
    building = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    building = building.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    building = building.add_extension(address, critical=False)
    building = building.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / "certificate.pem"
    path.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    with path.open("ab") as file:
        file.write(building.sign(key, hashes.SHA256()).public_bytes(pem))
    return path


def pack_of(site: Site) -> Path:
    return next(site.cache.glob("artifacts/openmpi-*.tar.zst"))


def changed(shared: Path, edit: Callable[[dict[str, object]], object]) -> None:
    """Change the envelope of the pack."""
    path = next(shared.glob("entries/pack/*.json"))
    envelope = json.loads(path.read_text(encoding="utf-8"))
    edit(envelope)
    path.write_text(json.dumps(envelope), encoding="utf-8")


def test_a_second_controller_has_the_same_bytes_and_record(first: Site, second: Site, shared: Path) -> None:
    done = second.run("pull", shared)
    assert (done.returncode, "2 pulled" in done.stderr) == (0, True), done.stderr
    pack = pack_of(second)
    assert pack.read_bytes() == CONTENT
    record = pack.name.replace(".tar.zst", ".json")
    mine, theirs = (json.loads((site.cache / "artifacts" / record).read_text("utf-8")) for site in (first, second))
    assert mine == theirs
    lock = "locks/python_env-b0edc0a9ee959033.json"
    assert (first.cache / lock).read_bytes() == (second.cache / lock).read_bytes()
    assert pack.stat().st_mode & 0o777 == 0o644


def test_a_repeated_push_and_pull_do_nothing(first: Site, second: Site, shared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in shared.rglob("*") if path.is_file()}
    assert "0 pushed (0 B), 2 there already." in first.run("push", shared).stderr
    assert {path: path.stat().st_mtime_ns for path in shared.rglob("*") if path.is_file()} == before
    second.run("pull", shared)
    inode = pack_of(second).stat().st_ino
    assert "0 pulled (0 B), 2 here already." in second.run("pull", shared).stderr
    assert pack_of(second).stat().st_ino == inode


def test_any_web_server_over_the_folder_will_do(first: Site, second: Site, shared: Path) -> None:
    with web_server(shared) as url:
        done = second.run("pull", url)
        assert done.returncode == 0, done.stderr
        assert pack_of(second).read_bytes() == CONTENT
        refused = first.run("push", url, "--replace")
    assert refused.returncode == 1
    assert "can be read only; push to the folder that this server serves" in refused.stderr


@pytest.mark.usefixtures("shared")
def test_a_signed_statement_goes_with_its_pack(first: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(first.root / "cache"))
    pack = next(file for file in collect.found() if file.kind == "pack")
    assert {path.suffix for path in pack.paths} == {".json", ".zst", ".signed"}
    gone, _ = collect.remove([pack])
    assert (gone, [name for name in first.litter() if name.startswith("openmpi")]) == ([pack], [])


def test_a_pack_of_ones_own_stays(first: Site, second: Site, shared: Path) -> None:
    own = second.has("openmpi", b"another build of the same key")
    assert "1 here already" in second.run("pull", shared, "openmpi").stderr
    assert own.read_bytes() == b"another build of the same key"
    assert second.run("verify").returncode == 0
    assert pack_of(first).read_bytes() == CONTENT


def test_names_and_platforms_choose(first: Site, second: Site, shared: Path) -> None:
    first.has("mpi4py", b"small")
    first.run("push", shared)
    assert second.run("pull", shared, "mpi4py").returncode == 0
    assert [path.read_bytes() for path in second.cache.glob("artifacts/*.tar.zst")] == [b"small"]
    other = second.run("pull", shared, "--platform", "rocky-9-x86_64-glibc2.34-py3.9")
    assert "1 pulled" in other.stderr  # the lock
    assert second.run("pull", shared, "--platform", PLATFORM).returncode == 0
    assert pack_of(second).read_bytes() == CONTENT


# --- what is refused: one sentence, exit 10, and nothing is left ------------------------------------------------------


def test_a_stranger_is_refused(first: Site, second: Site, shared: Path, tmp_path: Path) -> None:
    second.trusts(Site(tmp_path / "somebody"))
    refused(second, shared, "which")
    done = second.run("pull", shared)
    assert "is signed by the key SHA256:" in done.stderr
    assert f"{second.signers} does not allow" in done.stderr
    fingerprint = subprocess.run(
        ["ssh-keygen", "-lf", f"{first.key}.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert fingerprint in done.stderr


def test_what_is_unsigned_is_refused(second: Site, shared: Path) -> None:
    changed(shared, lambda envelope: envelope.pop("signature"))
    refused(second, shared, "carries no signature")


def test_a_changed_statement_is_refused(second: Site, shared: Path) -> None:
    changed(shared, lambda e: e.update(statement=str(e["statement"]).replace("node1", "node2")))
    refused(second, shared, "does not fit its content")


def test_a_signature_for_another_purpose_is_refused(first: Site, second: Site, shared: Path, tmp_path: Path) -> None:
    def resign(envelope: dict[str, object]) -> None:
        text = tmp_path / "text"
        text.write_text(str(envelope["statement"]), encoding="utf-8")
        subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", first.key, "-n", "git", text], check=True)
        envelope["signature"] = (tmp_path / "text.sig").read_text(encoding="utf-8")

    changed(shared, resign)
    refused(second, shared, "does not fit its content")


def test_a_key_that_is_allowed_for_another_purpose_is_refused(first: Site, second: Site, shared: Path) -> None:
    second.signers.write_text(f'first namespaces="git" {first.public}\n', encoding="utf-8")
    refused(second, shared, "does not allow")


def test_a_statement_under_another_name_is_refused(first: Site, second: Site, shared: Path) -> None:
    first.has("evil", b"other")
    first.run("push", shared, "evil")
    evil, good = (next(shared.glob(f"entries/pack/{name}-*.json")) for name in ("evil", "openmpi"))
    shutil.copyfile(evil, good)
    refused(second, shared, "is the signed statement of pack/evil-1.0-")


def test_another_content_is_refused(second: Site, shared: Path) -> None:
    blob = max(shared.glob("blobs/sha256/*"), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    refused(second, shared, "its sha256 differs")
    done = second.run("verify", shared)
    assert (done.returncode, "is not the signed content" in done.stderr) == (10, True)


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_half_a_pack_is_refused(second: Site, shared: Path, size: int) -> None:
    blob = max(shared.glob("blobs/sha256/*"), key=lambda path: path.stat().st_size)
    os.truncate(blob, size)
    refused(second, shared, f"broke off after {size} of {len(CONTENT)} bytes", code=4)
    refused(second, shared, "have its site push it again with --replace", code=4)  # another transfer ends there as well
    assert second.run("verify", shared).returncode == 10


def test_more_than_was_signed_is_refused(second: Site, shared: Path) -> None:
    blob = max(shared.glob("blobs/sha256/*"), key=lambda path: path.stat().st_size)
    with blob.open("ab") as stream:
        stream.write(b"x")
    refused(second, shared, "is not the signed one")


def test_a_line_that_drops_in_the_middle_leaves_nothing(second: Site, shared: Path) -> None:
    class Dropping(http.server.SimpleHTTPRequestHandler):
        def copyfile(self, source: object, outputfile: object) -> None:
            outputfile.write(source.read(1 << 20))  # type: ignore[attr-defined]
            self.connection.close()

    with web_server(shared, Dropping) as url:
        refused(second, url, "broke off after", code=4)
    assert second.run("pull", shared).returncode == 0


def test_a_server_without_a_login_is_told(second: Site, shared: Path) -> None:
    class Denying(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") == "Basic dXNlcjpzZWNyZXQ=":  # user:secret
                super().do_GET()
            else:
                self.send_error(401)

    with web_server(shared, Denying) as url:
        refused(second, url, "refused the login (401); set CLUSTERCTL_CACHE_USER", code=4)
        login = {"CLUSTERCTL_CACHE_USER": "user", "CLUSTERCTL_CACHE_PASSWORD": "secret"}
        done = second.run("pull", url, **login)
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stderr + done.stdout


def test_a_password_goes_nowhere_in_clear_text_and_to_no_other_server(second: Site, shared: Path) -> None:
    login = {"CLUSTERCTL_CACHE_USER": "user", "CLUSTERCTL_CACHE_PASSWORD": "secret"}
    refused(second, "http://cache.example.org", "in clear text", code=1, **login)
    seen: list[str | None] = []

    class Looking(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            super().do_GET()

    with web_server(shared, Looking) as other:

        class Sending(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", f"{other}{self.path}")
                self.end_headers()

        with web_server(shared, Sending) as url:
            assert second.run("pull", url, **login).returncode == 0
    assert set(seen) == {None}


def test_a_password_for_this_machine_goes_to_no_proxy(second: Site, shared: Path) -> None:
    seen: dict[str, list[str | None]] = {"proxy": [], "own": []}

    def asking(name: str) -> type[http.server.SimpleHTTPRequestHandler]:
        class Asking(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                seen[name].append(self.headers.get("Authorization"))
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Asking

    with web_server(shared, asking("proxy")) as proxy, web_server(shared, asking("own")) as own:
        login = {"CLUSTERCTL_CACHE_USER": "user", "CLUSTERCTL_CACHE_PASSWORD": "secret"}
        lines = {"http_proxy": proxy, "all_proxy": proxy, "no_proxy": "", "NO_PROXY": ""}
        second.run("pull", f"{own}/site", **login, **lines)
    assert seen["proxy"] == []
    assert any(seen["own"])


def test_a_web_server_with_tls_and_an_authority_of_the_site(second: Site, shared: Path, tmp_path: Path) -> None:
    own = certified(tmp_path)
    with web_server(shared, certificate=own) as url:
        refused(second, url, "certificate is not trusted; name the file of its authority in SSL_CERT_FILE", 4)
        done = second.run("pull", url, SSL_CERT_FILE=str(own))
    assert (done.returncode, "2 pulled" in done.stderr) == (0, True), done.stderr


def test_an_address_with_a_password_is_refused(second: Site) -> None:
    done = second.run("pull", "https://user:secret@cache.example.org/x")
    assert (done.returncode, "secret" in done.stderr) == (1, False)
    assert "carries a user, a password or a query" in done.stderr


@pytest.mark.parametrize(
    ("where", "code", "words"),
    [
        ("ftp://host/x", 1, "is not the beginning of a shared cache's address"),
        ("http://127.0.0.1:9/x", 4, "cannot be reached"),
        ("http://a..b:x/y", 4, "cannot be reached"),
        ("/nowhere/at/all", 1, "There is no folder /nowhere/at/all"),
    ],
)
def test_a_wrong_place_is_told(second: Site, where: str, code: int, words: str) -> None:
    refused(second, where, words, code)


def test_a_place_that_cannot_be_written_is_told(first: Site, second: Site, shared: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    done = first.run("push", file / "below")
    assert (done.returncode, "cannot be written" in done.stderr) == (1, True), done.stderr
    done = second.run("pull", shared, "--into", file)
    assert (done.returncode, "cannot be written" in done.stderr) == (1, True), done.stderr


def test_a_name_that_does_not_exist_is_told(second: Site, shared: Path) -> None:
    done = second.run("pull", shared, "horovod")
    assert (done.returncode, "has no entry horovod" in done.stderr) == (1, True)
    exact = second.run("pull", shared, "--pack", "horovod-1-0123456789abcdef")
    assert (exact.returncode, "0 pulled" in exact.stderr) == (0, True)


def test_without_ssh_keygen_nothing_is_taken(second: Site, shared: Path, tmp_path: Path) -> None:
    refused(second, shared, "ssh-keygen is not on PATH", code=1, PATH=str(tmp_path))


def test_a_file_of_signers_that_others_can_change_is_refused(second: Site, shared: Path) -> None:
    second.signers.chmod(0o666)
    refused(second, shared, "Other users can change the file of allowed signers", code=1)
    second.signers.unlink()
    refused(second, shared, "cannot be read", code=1)
    second.signers.write_text("# nobody yet\n", encoding="utf-8")
    refused(second, shared, "names nobody", code=1)


def test_a_controller_without_a_key_is_told_how_to_make_one(first: Site, tmp_path: Path) -> None:
    first.key.unlink()
    done = first.run("push", tmp_path / "shared")
    assert (done.returncode, "ssh-keygen -t ed25519 -f" in done.stderr) == (1, True)
    assert not (tmp_path / "shared").exists()


def test_a_damaged_pack_is_not_pushed_and_the_others_are(first: Site, tmp_path: Path) -> None:
    pack = pack_of(first)
    pack.write_bytes(b"x" * pack.stat().st_size)
    done = first.run("push", tmp_path / "shared")
    assert (done.returncode, "is not pushed" in done.stderr, "1 pushed" in done.stderr) == (10, True, True)
    assert first.run("verify").returncode == 10


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_before_anything_is_written(second: Site, shared: Path, small: Path) -> None:
    done = second.run("pull", shared, "openmpi", "--into", small)
    assert (done.returncode, "disk of this machine is full" in done.stderr) == (1, True), done.stderr
    assert [path.name for path in small.glob("*/*") if not path.name.endswith(".lock")] == []


def test_a_push_onto_a_full_disk_leaves_what_is_whole(first: Site, second: Site, small: Path) -> None:
    done = first.run("push", small)
    told = [line for line in done.stderr.splitlines() if line.startswith("clusterctl: ")]
    assert (done.returncode, len(told), "Traceback" in done.stderr) == (1, 1, False), done.stderr
    assert f"The disk of {small} is full; make room there" in told[0]
    assert [path for path in small.rglob("*") if path.name.startswith(".")] == []
    first.run("push", small, "mpi4py")
    done = second.run("pull", small)
    assert (done.returncode, "openmpi" in done.stderr) == (0, False), done.stderr


def test_what_a_stranger_pushed_is_replaced_on_demand_alone(first: Site, shared: Path, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    other.has("openmpi", b"another build")
    done = other.run("push", shared)
    assert (done.returncode, "give --replace" in done.stderr) == (10, True), done.stderr
    assert first.run("verify", shared, "--signers", first.trusts(first).signers).returncode == 0
    assert other.run("push", shared, "--replace").returncode == 0
    assert first.run("list", shared).returncode == 10


# --- several at once, killed, collected -------------------------------------------------------------------------------


def test_pushes_at_once_do_no_harm(second: Site, tmp_path: Path) -> None:
    others = [Site(tmp_path / f"site{number}") for number in range(4)]
    for number, site in enumerate(others):
        site.has("openmpi", b"%d" % number * (1 << 20))  # the same key, other bytes
        site.has(f"own{number}", b"own")
        site.trusts(*others)
    second.trusts(*others)
    shared = tmp_path / "shared"
    running = [
        subprocess.Popen(site.argv("push", shared), env=site.variables(), stderr=subprocess.PIPE, text=True)
        for site in others
    ]
    assert [process.wait(timeout=60) for process in running] == [0] * 4, [
        process.stderr.read() for process in running if process.stderr
    ]
    for process in running:
        assert process.stderr is not None
        process.stderr.close()
    assert second.run("verify", shared).returncode == 0
    assert second.run("pull", shared).returncode == 0
    assert len(list(second.cache.glob("artifacts/*.tar.zst"))) == 5
    names = json.loads((shared / "index.json").read_text(encoding="utf-8"))["entries"]
    assert len(names) == 5
    assert list(shared.rglob(".*")) == []


def test_a_killed_push_and_a_killed_pull_leave_nothing_that_counts(first: Site, second: Site, tmp_path: Path) -> None:
    first.has("large", os.urandom(200 << 20))
    shared = tmp_path / "shared"
    pushing = subprocess.Popen(first.argv("push", shared, "large"), env=first.variables(), stderr=subprocess.DEVNULL)
    _wait_for(lambda: any(shared.glob("blobs/sha256/.*")))
    pushing.kill()
    pushing.wait()
    assert list(shared.glob("blobs/sha256/[0-9a-f]*")) == []
    assert list(shared.glob("entries/*/*")) == []
    assert first.run("push", shared, "large").returncode == 0
    pulling = subprocess.Popen(second.argv("pull", shared), env=second.variables(), stderr=subprocess.DEVNULL)
    _wait_for(lambda: any(path.stat().st_size for path in second.cache.glob("artifacts/.*zst.*")))
    modes = {path.stat().st_mode & 0o777 for path in second.cache.glob("artifacts/.*zst.*")}
    pulling.kill()
    pulling.wait()
    assert modes <= {0o600}
    assert list(second.cache.glob("artifacts/*")) == [] or second.run("verify").returncode == 0
    assert second.run("pull", shared).returncode == 0
    assert list(second.cache.glob("artifacts/.*zst.*")) == []


def _wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_gc_removes_old_entries_and_contents_without_a_name(first: Site, second: Site, shared: Path) -> None:
    second.has("openmpi", b"x")
    old = time.time() - 90000
    stray = shared / "blobs" / "sha256" / ("0" * 64)
    fresh = shared / "blobs" / "sha256" / ("1" * 64)
    for path in (stray, fresh):
        path.write_bytes(b"stray")
    os.utime(stray, (old, old))
    assert first.trusts(first).run("gc", shared).returncode == 1  # nobody to ask
    assert first.run("gc", shared, "--yes").returncode == 0
    assert (stray.exists(), fresh.exists()) == (False, True)
    assert first.run("verify", shared).returncode == 0
    for entry in shared.glob("entries/*/*.json"):
        os.utime(entry, (old, old))
    for blob in shared.glob("blobs/sha256/*"):
        os.utime(blob, (old, old))
    assert first.run("gc", shared, "--keep", "1", "--yes").returncode == 0
    assert len(list(shared.glob("entries/*/*.json"))) == 2


def test_gc_keeps_the_newest_of_each_software(first: Site, shared: Path, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    inputs = {"platform": PLATFORM, "variant": "openmpi", "recipe": 2}
    pack = other.has("openmpi", b"newer")
    key = shared_cache.key_of(inputs)
    record_path = pack.with_name(pack.name.replace(".tar.zst", ".json"))
    record = {**json.loads(record_path.read_text("utf-8")), "inputs": inputs, "key": key}
    record_path.unlink()
    record_path.with_name(f"openmpi-1.0-{key}.json").write_text(json.dumps(record), encoding="utf-8")
    pack.rename(pack.with_name(f"openmpi-1.0-{key}.tar.zst"))
    assert other.trusts(first, other).run("push", shared).returncode == 0
    older = next(path for path in shared.glob("entries/pack/*.json") if key not in path.name)
    past = time.time() - 90000
    os.utime(older, (past, past))
    for blob in shared.glob("blobs/sha256/*"):
        os.utime(blob, (past, past))
    shown = other.run("gc", shared, "--keep", "1", "--check")
    assert (shown.returncode, older.exists(), f"would go: {older.stem}" in shown.stderr) == (0, True, True)
    assert other.run("gc", shared, "--keep", "1", "--yes").returncode == 0
    assert [path.stem for path in shared.glob("entries/pack/*.json")] == [f"openmpi-1.0-{key}"]
    assert sorted(path.read_bytes() == b"newer" for path in shared.glob("blobs/sha256/*")) == [False, True]
    assert other.run("verify", shared).returncode == 0
    assert older.stem not in (shared / "index.json").read_text(encoding="utf-8")


def test_list_tells_who_signed(second: Site, shared: Path) -> None:
    done = second.run("list", shared)
    assert done.returncode == 0
    row = next(line for line in done.stdout.splitlines() if line.startswith("openmpi-"))
    assert row.split()[-1] == "first"
    narrow = second.run("list", shared, COLUMNS="72").stdout.splitlines()
    assert all(len(line) <= 72 and not line.startswith("  first") for line in narrow)
    assert any(line.startswith(" " * 12) for line in narrow), "a long platform goes on below itself"
    answer = json.loads(second.run("list", shared, "--format", "json").stdout)
    assert {entry["kind"] for entry in answer["entries"]} == {"pack", "lock"}
    assert json.loads(second.run("list", "--format", "json").stdout)["entries"] == []


@pytest.mark.parametrize("header", ["Location", "URI"])
def test_a_redirect_to_another_scheme_is_not_followed(header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(urllib.request.FTPHandler, "ftp_open", lambda _self, request: asked.append(request.full_url))

    class Elsewhere(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header(header, "ftp://127.0.0.1:9/index.json")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    with web_server(Path(), Elsewhere) as url, pytest.raises(UnreachableError, match="answered 302"):
        HttpStore(url).names()
    assert asked == []
