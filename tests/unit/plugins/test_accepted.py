"""A node's tree is compared with the digests that lie outside the cache."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, artifact_pack
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import accepted as a
from clusterctl.state import paths
from clusterctl.state.files import zstd

if TYPE_CHECKING:
    from pathlib import Path

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
    assert a.default_folder() == paths.accepted_dir() == tmp_path / "clusterctl" / "artifacts"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert a.default_folder() == paths.accepted_dir()
