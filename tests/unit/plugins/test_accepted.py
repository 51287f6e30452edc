"""A node's tree is compared with the digests that lie outside the cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, artifact_pack, pack_extract
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import accepted as a
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import DamagedPackError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import ArtifactCache, CachedArtifact
from clusterctl.state import paths
from clusterctl.state.files import zstd

NAME = ("demo", "1.0", "0123456789abcdef")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with each kind of path that a pack may hold."""
    folder = tmp_path / "tree"
    (folder / "bin").mkdir(parents=True)
    (folder / "empty").mkdir(mode=0o750)
    (folder / "bin" / "tool").write_bytes(b"x" * 3_000_000)
    (folder / "bin" / "tool").chmod(0o755)
    os.link(folder / "bin" / "tool", folder / "bin" / "twin")
    (folder / "bin" / "alias").symlink_to("tool")
    (folder / "a-first.txt").write_text("text")
    (folder / artifact.MANIFEST).write_bytes(artifact.manifest_bytes(artifact.make_manifest(str(folder))))
    return folder


def packed(tree: Path, compression: str) -> Path:
    packs = artifact_pack.Packs(str(tree.parent), "demo")
    made = packs.make(tree)
    path = tree.parent / "pack"
    plain = tree.parent / made["pack"]
    if made["compression"] == compression:
        return plain
    data = plain.read_bytes()
    data = gzip.decompress(data) if made["compression"] == "gz" else zstd.decompress(data)
    path.write_bytes(gzip.compress(data) if compression == "gz" else zstd.compress(data))
    return path


@pytest.mark.parametrize("compression", ["zst", "gz"])
def test_a_pack_has_the_digest_of_the_tree_that_it_was_made_of(tree: Path, compression: str) -> None:
    wanted = hashlib.sha256((tree / artifact.MANIFEST).read_bytes()).hexdigest()
    assert a.content_digest(packed(tree, compression), compression, "/usr/local") == wanted


def test_what_came_into_a_tree_later_is_not_packed(tree: Path) -> None:
    wanted = hashlib.sha256((tree / artifact.MANIFEST).read_bytes()).hexdigest()
    (tree / "bin" / "sitecustomize.py").write_text("evil")
    assert a.content_digest(packed(tree, "zst"), "zst", "/usr/local") == wanted


@pytest.mark.parametrize("change", ["content", "mode", "link", "missing"])
def test_a_changed_tree_is_damaged(tree: Path, change: str) -> None:
    if change == "content":
        (tree / "a-first.txt").write_text("else")
    elif change == "mode":
        (tree / "a-first.txt").chmod(0o4755)
    elif change == "link":
        (tree / "bin" / "alias").unlink()
        (tree / "bin" / "alias").symlink_to("/etc/shadow")
    else:
        shutil.rmtree(tree / "empty")
    with pytest.raises(a.DamagedPackError):
        a.content_digest(packed(tree, "zst"), "zst", "/usr/local")


@pytest.mark.parametrize("length", [1, 100, -1])
@pytest.mark.parametrize("compression", ["zst", "gz"])
def test_a_pack_that_ends_too_early_is_damaged(tree: Path, compression: str, length: int) -> None:
    pack = packed(tree, compression)
    os.truncate(pack, length if length > 0 else pack.stat().st_size + length)
    with pytest.raises(a.DamagedPackError):
        a.content_digest(pack, compression, "/usr/local")


def test_a_library_that_is_missing_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = packed(tree, "zst")
    monkeypatch.setattr(a, "zstd", None)
    with pytest.raises(artifact.ArtifactError, match=r"needs the Python package 'backports\.zstd' to unpack"):
        a.content_digest(pack, "zst", "/usr/local")


@pytest.mark.parametrize("data", [b"", b"no pack", zstd.compress(b"no tar" * 500)])
def test_what_is_not_a_pack_is_damaged(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "pack").write_bytes(data)
    with pytest.raises(a.DamagedPackError):
        a.content_digest(tmp_path / "pack", "zst", "/usr/local")


def test_digests_are_kept_in_a_private_folder(tmp_path: Path) -> None:
    known = a.Accepted(tmp_path / "state" / "artifacts")
    assert known.digests(*NAME) == []
    for digest in ("a", "b", "a"):
        known.accept(*NAME, digest)
    assert a.Accepted(tmp_path / "state" / "artifacts").digests(*NAME) == ["a", "b"]
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "state" / "artifacts").iterdir()] == ["demo-1.0-0123456789abcdef.json"]


def test_a_damaged_file_of_digests_holds_none(tmp_path: Path) -> None:
    known = a.Accepted(tmp_path)
    known.accept(*NAME, "a")
    (tmp_path / "demo-1.0-0123456789abcdef.json").write_text("[]")
    assert known.digests(*NAME) == []


def test_a_state_folder_that_cannot_be_written_is_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(artifact.ArtifactError, match="XDG_STATE_HOME"):
        a.Accepted(tmp_path / "state" / "artifacts").accept(*NAME, "a")


def test_digests_lie_in_the_state_folder_of_clusterctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert a.default_folder() == paths.state_dir().value / "artifacts" == tmp_path / "clusterctl" / "artifacts"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert a.default_folder() == paths.state_dir().value / "artifacts"


# --- the controller's cache trusts nothing that lies in it ---


PLAIN = b"a tar's bytes" * 1000
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


# --- A part of a pack that is larger than one portion is read whole, where the portions share one buffer ---


CONTENT = b"".join(bytes([number]) * 1000 for number in range(100))


def in_one_buffer() -> Iterator[memoryview]:
    """Yield portions as libzstd does: each is valid until the next one is taken."""
    buffer = bytearray(1024)
    for place in range(0, len(CONTENT), len(buffer)):
        portion = CONTENT[place : place + len(buffer)]
        buffer[: len(portion)] = portion
        yield memoryview(buffer)[: len(portion)]


def test_a_manifest_of_many_portions_is_read_as_it_is() -> None:
    stream = pack_extract._Stream(in_one_buffer())  # noqa: SLF001 - the part that reads
    stream.limit = len(CONTENT)
    assert stream.read(len(CONTENT)) == CONTENT
