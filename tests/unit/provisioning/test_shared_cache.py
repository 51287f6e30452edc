"""The shared cache of a run: by option or inventory, and the pull in place of a compile."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import SharedCache as OfTheCollection
from clusterctl.model.hosts import Host
from clusterctl.remote.shared_cache.exchange import SharedCache
from clusterctl.support.errors import ConfigError
from shared_caches import PLATFORM, PROGRAM, Site

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen (package openssh-client)"),
]


class Phases:
    """Hears of phases."""

    def __init__(self) -> None:
        """Nothing is heard yet."""
        self.heard: list[str] = []

    def phase(self, text: str) -> None:
        self.heard.append(text)

    def event(self, _event: object) -> None:
        raise AssertionError

    def stopping(self, _requests: int) -> None:
        raise AssertionError


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A controller that trusts the one that pushed to ``shared``; this process is that controller."""
    first = Site(tmp_path / "first")
    first.has("openmpi", b"whole")
    first.has_lock()
    assert first.run("push", tmp_path / "shared").returncode == 0
    site = Site(tmp_path / "second").trusts(first)
    for name, value in site.variables().items():
        monkeypatch.setenv(name, value)
    return site


def host(name: str, **variables: str) -> Host:
    return Host(name, name, variables=dict(variables))


def test_the_option_stands_above_the_inventory(second: Site, tmp_path: Path) -> None:
    hosts = [host("node1", cluster_cache="/from/inventory"), host("node2", cluster_cache="/from/inventory")]
    assert SharedCache().of(hosts).where == "/from/inventory"
    assert SharedCache(str(tmp_path)).of(hosts).where == str(tmp_path)
    assert SharedCache().of([host("node1")]).variables == {}
    with pytest.raises(ConfigError, match="cluster_cache is '/a' on node1 and '' on node2"):
        SharedCache().of([host("node1", cluster_cache="/a"), host("node2")])
    second.signers.unlink()
    with pytest.raises(ConfigError, match="file of allowed signers"):
        SharedCache("/a").of(hosts)


def test_locks_come_first_and_packs_count_as_built(second: Site, tmp_path: Path) -> None:
    phases = Phases()
    assert SharedCache(str(tmp_path / "shared")).at_hand(phases) == {("openmpi", PLATFORM)}
    assert [path.name for path in second.cache.glob("locks/*.json")] == ["python_env-b0edc0a9ee959033.json"]
    assert list(second.cache.glob("artifacts/*")) == []


@pytest.mark.usefixtures("second")
def test_a_shared_cache_that_does_not_answer_is_left_out() -> None:
    phases = Phases()
    assert SharedCache("http://127.0.0.1:9/x").at_hand(phases) == frozenset()
    assert phases.heard[-1].startswith("the shared cache is left out: http://127.0.0.1:9/x cannot be reached")


def test_the_collection_takes_a_pack_or_says_why_not(second: Site, tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    variables = {**SharedCache(shared).variables}
    assert variables["cluster_cache_program"] == [sys.executable, "-m", "clusterctl"]
    cache = OfTheCollection.of(lambda name: variables.get(name, ""))
    assert cache is not None
    tree = next(second.root.parent.glob("first/cache/clusterctl/artifacts/*.json")).stem
    assert cache.pull("openmpi-9.9-0123456789abcdef", second.cache) == ""
    assert second.litter() == []
    second.trusts(second)
    assert "does not allow" in cache.pull(tree, second.cache)
    assert second.litter() == []
    second.signers.write_text(
        f"first {(tmp_path / 'first/config/clusterctl/signing_key.pub').read_text('utf-8')}", encoding="utf-8"
    )
    assert cache.pull(tree, second.cache) == ""
    assert (second.cache / "artifacts" / f"{tree}.tar.zst").read_bytes() == b"whole"
    assert "no program 'clusterctl'" in dataclasses.replace(cache, program=()).pull(tree, second.cache)
    assert OfTheCollection.of(lambda _name: "") is None


def test_an_address_with_a_password_reaches_no_record(second: Site, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1 ansible_host=127.0.0.1 ansible_port=9\n", encoding="utf-8")
    argv = [PROGRAM, "provision", str(inventory), "--yes", "--cache", "https://user:hidden@cache.example.org/x"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=second.variables())
    assert (done.returncode, "carries a user, a password or a query" in done.stderr) == (1, True), done.stderr
    kept = [path for path in second.root.rglob("*") if path.is_file() and b"hidden" in path.read_bytes()]
    assert (kept, "hidden" in done.stderr) == ([], False)


BROKEN: dict[str, tuple[int, bytes]] = {
    "garbage": (200, b"\x00\xffgarbage"),
    "another schema": (200, b'{"schema": 99, "entries": []}'),
    "names that climb": (200, b'{"schema": 1, "entries": ["pack/../../etc/passwd"]}'),
    "deep": (200, b"[" * 100_000),
    "no index": (404, b""),
    "a page": (200, b"<!doctype html><title>Sign in</title>"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_server_answers_stops_no_run_and_the_command_says_it(second: Site, name: str) -> None:
    code, body = BROKEN[name]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        where = f"http://127.0.0.1:{server.server_address[1]}/x"
        phases = Phases()
        assert SharedCache(where).at_hand(phases) == frozenset()
        assert phases.heard[-1].startswith(f"the shared cache is left out: {where}")
        assert "\n" not in phases.heard[-1]
        asked = second.run("list", where)
        assert asked.returncode == 1, asked.stderr
        assert "index" in asked.stderr
        server.shutdown()


def test_a_missing_folder_is_left_out_and_a_wrong_address_stops_the_run(second: Site, tmp_path: Path) -> None:
    phases = Phases()
    assert SharedCache(str(tmp_path / "unmounted")).at_hand(phases) == frozenset()
    assert phases.heard[-1].startswith(f"the shared cache is left out: There is no folder {tmp_path}/unmounted")
    assert second.run("list", tmp_path / "unmounted").returncode == 1
    with pytest.raises(ConfigError, match="give a folder"):
        SharedCache("gopher://cache.example.org/x").of([host("node1")])
