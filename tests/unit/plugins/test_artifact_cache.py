"""The controller's cache trusts nothing that lies in it."""

from __future__ import annotations

import gzip
import json
import os
import threading
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import DamagedPackError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import ArtifactCache, CachedArtifact
from clusterctl.state.files import zstd

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = b"a tar's bytes" * 1000
NAME = ("demo", "1.0", "0123456789abcdef")
RECORD = {"name": "demo", "version": "1.0", "key": NAME[2], "inputs": {"a": 1}, "manifest_sha256": "f" * 64}


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path)


def stored(cache: ArtifactCache) -> CachedArtifact:
    with cache.staging() as staged:
        staged.write_bytes(zstd.compress(PLAIN))
        return cache.store(staged, RECORD)


def test_what_was_stored_is_found(cache: ArtifactCache) -> None:
    assert cache.lookup(*NAME).artifact is None
    artifact = stored(cache)
    assert cache.lookup(*NAME).artifact == artifact
    assert artifact.path.name == "demo-1.0-0123456789abcdef.tar.zst"
    assert sorted(path.suffix for path in cache.folder.iterdir()) == [".json", ".zst"], "no temporary file is left"


def test_damage_is_noticed_and_thrown_away(cache: ArtifactCache) -> None:
    artifact = stored(cache)
    data = artifact.path.read_bytes()
    os.truncate(artifact.path, len(data) - 1)
    assert "bytes instead of" in cache.lookup(*NAME).damaged
    artifact.path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert cache.lookup(*NAME).damaged == f"the content of {artifact.path} has changed"
    cache.throw_away(*NAME)
    assert not [path for path in cache.folder.iterdir() if path.name.startswith("demo")]
    found = cache.lookup(*NAME)
    assert (found.artifact, found.damaged) == (None, "")
    assert stored(cache) == artifact


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1, "name": "other", "version": "1", "key": "k"}'])
def test_a_strange_record_is_no_record(cache: ArtifactCache, text: str) -> None:
    stored(cache)
    cache.record_path(*NAME).write_text(text)
    found = cache.lookup(*NAME)
    assert found.artifact is None
    assert found.damaged


def test_a_record_without_a_manifest_is_no_record(cache: ArtifactCache) -> None:
    stored(cache)
    record = json.loads(cache.record_path(*NAME).read_bytes())
    del record["manifest_sha256"]
    cache.record_path(*NAME).write_text(json.dumps(record))
    assert "not readable" in cache.lookup(*NAME).damaged


def test_a_pack_that_one_host_refused_is_removed_and_its_successor_stays(cache: ArtifactCache) -> None:
    bad = stored(cache)
    cache.refuse(bad, print)
    assert cache.lookup(*NAME).artifact is None
    with cache.staging() as staged:
        staged.write_bytes(zstd.compress(b"made anew"))
        good = cache.store(staged, RECORD)
    cache.refuse(bad, print)
    assert cache.lookup(*NAME).artifact == good


def test_a_pack_that_cannot_be_unpacked_is_named(cache: ArtifactCache) -> None:
    with cache.staging() as staged:
        staged.write_bytes(b"not zstd")
        artifact = cache.store(staged, RECORD)
    with pytest.raises(DamagedPackError, match=r"demo-1\.0-0123456789abcdef\.tar\.zst cannot be unpacked"):
        cache.gzip_of(artifact, print)


def test_a_pack_that_unpacks_to_more_than_any_is_refused(cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_LEAST_UNPACKED", 1 << 10)
    monkeypatch.setattr(artifact, "_RATIO", 2)
    pack = stored(cache)

    with pytest.raises(DamagedPackError, match=rf"{pack.path.name} unpacks to more than"):
        cache.gzip_of(pack, print)

    assert not pack.path.with_suffix(".gz").exists()


def test_a_pack_without_its_record_was_never_finished(cache: ArtifactCache) -> None:
    stored(cache)
    cache.record_path(*NAME).unlink()
    assert cache.lookup(*NAME).artifact is None


def test_the_gzip_twin_is_made_once_and_again_when_damaged(cache: ArtifactCache) -> None:
    artifact = stored(cache)
    twin = cache.gzip_of(artifact, print)
    assert gzip.decompress(twin.path.read_bytes()) == PLAIN
    made = twin.path.stat().st_mtime_ns
    assert cache.gzip_of(artifact, print) == twin
    assert twin.path.stat().st_mtime_ns == made
    os.truncate(twin.path, 10)
    assert gzip.decompress(cache.gzip_of(artifact, print).path.read_bytes()) == PLAIN


def test_a_builder_without_zstd_gets_its_pack_compressed_here(cache: ArtifactCache, tmp_path: Path) -> None:
    (tmp_path / "pack.tar.gz").write_bytes(gzip.compress(PLAIN))
    with cache.staging() as staged:
        cache.compress(tmp_path / "pack.tar.gz", staged)
        artifact = cache.store(staged, RECORD)
    with artifact.path.open("rb") as stream:
        assert zstd.decompress(stream.read()) == PLAIN


def test_what_a_builder_without_zstd_packed_is_not_packed_again(cache: ArtifactCache) -> None:
    artifact = stored(cache)
    with cache.staging() as staged:
        staged.write_bytes(gzip.compress(PLAIN, compresslevel=1))
        theirs = staged.read_bytes()
        kept = cache.keep_gzip(artifact, staged)
    assert cache.gzip_of(artifact, print) == kept
    assert kept.path.read_bytes() == theirs


def test_a_second_run_waits_for_the_first(cache: ArtifactCache) -> None:
    notes: list[str] = []
    entered = threading.Event()

    def second() -> None:
        with cache.lock(*NAME, notes.append):
            entered.set()

    with cache.lock(*NAME, notes.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.5)
    thread.join(10)
    assert entered.is_set()
    assert notes == [f"waiting for another run that builds demo 1.0 (process {os.getpid()})"]


def test_the_record_says_what_shaped_it(cache: ArtifactCache) -> None:
    artifact = stored(cache)
    record = json.loads(cache.record_path(*NAME).read_text())
    assert record["inputs"] == {"a": 1}
    assert (record["sha256"], record["size"]) == (artifact.sha256, artifact.size)
