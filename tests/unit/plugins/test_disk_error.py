"""What a node's disk refuses is one sentence with the host, the path and the cure."""

from __future__ import annotations

import errno
import os
import subprocess
from types import SimpleNamespace
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


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("[Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']", "full or read-only; make room"),
        (
            "OSError: [Errno 28] No space left on device: '/tmp/ansible_payload_1'",
            "the disk is full; make room",
        ),
        ("OSError: [Errno 30] Read-only file system: '/tmp/ansible_file_set_payload_1'", "read-only; make it writable"),
    ],
)
def test_a_disk_that_keeps_a_module_from_starting_is_named(said: str, cause: str) -> None:
    text = f'Traceback (most recent call last):\n  File "<stdin>", line 266, in <module>\n{said}'
    found = disk_error.before_a_module("node1", text)
    assert found.startswith("node1: ")
    assert cause in found


def test_a_module_that_started_and_another_traceback_keep_their_words() -> None:
    assert disk_error.before_a_module("node1", "node1: /usr/local: No space left on device; run again.") == ""
    assert disk_error.before_a_module("node1", "Traceback (most recent call last):\nKeyError: 'disk'") == ""


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
    given = {
        "name": "demo",
        "version": "1",
        "key": "0123456789abcdef",
        "host": "node1",
        "root": str(small),
        "link": "",
        "content": False,
        "lost": [],
        "push_dir": str(tmp_path),
        "closure": False,
        "pack": {**pack, "path": pack["pack"]},
    }
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(small)], check=True)
    try:
        with pytest.raises(ArtifactError, match="node1: the disk is full") as caught:
            artifact_install.Install(SimpleNamespace(params=given, check_mode=False)).apply()
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert not isinstance(caught.value, BadPackError)
