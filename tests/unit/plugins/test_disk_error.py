"""What a node's disk refuses is one sentence with the host, the path and the cure."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    artifact_pack,
    disk_error,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MANIFEST,
    ArtifactError,
    BadPackError,
    make_manifest,
    manifest_bytes,
)
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_install

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "the file system is read-only"), (errno.EIO, "'dmesg'")],
)
def test_the_host_the_path_and_the_cure_are_named(number: int, cause: str) -> None:
    said = disk_error.sentence("node1", OSError(number, os.strerror(number), "/usr/local/.openmpi"))
    assert said.startswith("node1: /usr/local/.openmpi: ")
    assert cause in said


def test_another_error_keeps_its_own_words() -> None:
    assert disk_error.sentence("node1", OSError(errno.EPERM, "Operation not permitted")) == (
        "node1: [Errno 1] Operation not permitted"
    )


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("size", [1_000_000, 3_000_000, 3_000_001, 7_654_321])
def test_a_disk_that_fills_while_a_pack_unpacks_is_full_and_the_pack_is_not_blamed(tmp_path: Path, size: int) -> None:
    source, small = tmp_path / "source", tmp_path / "small"
    source.mkdir()
    small.mkdir()
    (source / "file").write_bytes(os.urandom(size))
    (source / MANIFEST).write_bytes(manifest_bytes(make_manifest(str(source))))
    pack = artifact_pack.Packs(str(tmp_path), "demo").make(source)
    install = artifact_install.Install.__new__(artifact_install.Install)
    install.p, install.host, install.base = {"root": str(small)}, "node1", "demo"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(small)], check=True)
    try:
        given = {"path": pack["pack"], "sha256": pack["sha256"], "compression": pack["compression"]}
        with pytest.raises(ArtifactError, match="node1: the disk is full") as caught:
            install._extract(given, str(small))  # noqa: SLF001 - the step that fills the disk
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert not isinstance(caught.value, BadPackError)
