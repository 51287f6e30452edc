"""What a node's disk refuses is one sentence with the host, the path and the cure."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    artifact_links,
    artifact_pack,
    disk_files,
    pack_extract,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MANIFEST,
    ArtifactError,
    BadPackError,
    make_manifest,
    manifest_bytes,
)
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_install


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "the file system is read-only"), (errno.EIO, "'dmesg'")],
)
def test_the_host_the_path_and_the_cure_are_named(number: int, cause: str) -> None:
    said = disk_files.sentence("node1", OSError(number, os.strerror(number), "/usr/local/.openmpi"))
    assert said.startswith("node1: /usr/local/.openmpi: ")
    assert cause in said


def test_another_error_keeps_its_own_words() -> None:
    assert disk_files.sentence("node1", OSError(errno.EPERM, "Operation not permitted")) == (
        "node1: [Errno 1] Operation not permitted"
    )


def packed(tmp_path: Path, root: Path, contents: list[bytes]) -> dict[str, Any]:
    """Return what the module needs to install a pack of these files."""
    source = tmp_path / "source"
    source.mkdir()
    for number, content in enumerate(contents):
        (source / f"file{number}").write_bytes(content)
    (source / MANIFEST).write_bytes(manifest_bytes(make_manifest(str(source))))
    pack = artifact_pack.Packs(str(tmp_path), "demo").make(source)
    return {
        "name": "demo",
        "version": "1",
        "key": "0123456789abcdef",
        "host": "node1",
        "root": str(root),
        "links_to": [],
        "link": "",
        "content": False,
        "lost": [],
        "push_dir": str(tmp_path),
        "closure": False,
        "pack": {**pack, "path": pack["pack"], "inputs": {}},
    }


def install(given: dict[str, Any]) -> Any:
    return artifact_install.Install(given).apply()


def standing(root: Path) -> list[tuple[str, str]]:
    """Put an earlier version and a damaged tree of this one below a root, and return all paths and contents."""
    for name in ("demo-0-0123456789abcdef", "demo-1-0123456789abcdef"):
        (root / name).mkdir()
        (root / name / "file0").write_text("earlier", encoding="ascii")
    (root / "demo").symlink_to("demo-0-0123456789abcdef")
    return everything(root)


def everything(root: Path) -> list[tuple[str, str]]:
    return sorted(
        (str(path), str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "")
        for path in root.rglob("*")
    )


DISKS = {
    "the pack does not fit": ("size=500k", [os.urandom(1_000_000)], "has [0-9]+ bytes free"),
    "a part of it": ("size=500k", [os.urandom(3_000_001)], "has [0-9]+ bytes free"),
    "its files do not fit": ("size=500k", [bytes(7_654_321)], "has [0-9]+ bytes free"),
    "all but the last file": ("size=48k", [b"x" * 4096] * 9, "has [0-9]+ bytes free"),
    "no inode is free": ("size=20m,nr_inodes=12", [b"x"] * 20, "has no inode free"),
}


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("name", DISKS)
def test_a_disk_that_fills_while_a_pack_unpacks_is_full_and_the_pack_is_not_blamed(tmp_path: Path, name: str) -> None:
    options, contents, words = DISKS[name]
    small = tmp_path / "small"
    small.mkdir()
    given = packed(tmp_path, small, contents)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(small)], check=True)
    try:
        before = standing(small)
        with pytest.raises(ArtifactError, match=rf"^node1: the disk is full: {small} {words}[^\n]+$") as caught:
            install(given)
        assert everything(small) == before
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert not isinstance(caught.value, (BadPackError, artifact_install.NotWholeError))


def refusing(number: int) -> Callable[..., Any]:
    def refuse(*_given: Any, **_more: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("step", ["the pack", "a file", "a folder", "the disk", "the name"])
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EDQUOT, "the quota on {root} is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EIO, "the disk reports an error"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes trees of root")
def test_a_disk_that_refuses_a_step_leaves_what_stood_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, words: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    given = packed(tmp_path, root, [b"content"])
    before = standing(root)
    where: dict[str, tuple[Any, str]] = {
        "the pack": (artifact_pack, "_written"),
        "a file": (pack_extract.os, "write"),
        "a folder": (artifact_install.tempfile, "mkdtemp"),
        "the disk": (artifact_links, "files_below"),
        "the name": (Path, "replace"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*where[step], refusing(number))
        with pytest.raises((ArtifactError, OSError)) as caught:
            install(given)
    assert everything(root) == before
    assert not isinstance(caught.value, (BadPackError, artifact_install.NotWholeError))
    said = str(caught.value) if isinstance(caught.value, ArtifactError) else disk_files.sentence("node1", caught.value)
    assert words.format(root=root) in said
    assert said.startswith("node1: ")
    assert "\n" not in said
