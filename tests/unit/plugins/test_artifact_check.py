"""A proof is believed as long as nothing that it depended on is another one, and a failure is never remembered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_check

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(artifact_check, "_PROOFS", str(tmp_path / "proofs"))
    for name in ("demo", "library"):
        (tmp_path / f"{name}-1").mkdir()
        (tmp_path / name).symlink_to(f"{name}-1")
    return {
        "name": "demo",
        "link": str(tmp_path / "demo"),
        "stands_on": [str(tmp_path / "library")],
        "environment": {},
        "checks": [{"argv": ["true"], "expect": []}],
    }


def test_what_was_proved_is_not_proved_again(asked: dict[str, Any]) -> None:
    digest = artifact_check.circumstances(asked)
    assert artifact_check.recall("demo", digest) is None
    artifact_check.remember("demo", digest, ["said"])
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) == ["said"]


@pytest.mark.parametrize("name", ["demo", "library"])
def test_another_version_is_proved(asked: dict[str, Any], tmp_path: Path, name: str) -> None:
    artifact_check.remember("demo", artifact_check.circumstances(asked), ["said"])
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(f"{name}-2")
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) is None


@pytest.mark.parametrize("change", [{"environment": {"A": "1"}}, {"checks": [{"argv": ["false"], "expect": []}]}])
def test_another_question_is_asked(asked: dict[str, Any], change: dict[str, Any]) -> None:
    artifact_check.remember("demo", artifact_check.circumstances(asked), ["said"])
    assert artifact_check.recall("demo", artifact_check.circumstances({**asked, **change})) is None


def test_a_damaged_proof_is_none(asked: dict[str, Any], tmp_path: Path) -> None:
    digest = artifact_check.circumstances(asked)
    artifact_check.remember("demo", digest, ["said"])
    (proof,) = (tmp_path / "proofs").iterdir()
    proof.write_text("{", encoding="utf-8")
    assert artifact_check.recall("demo", digest) is None


def test_a_write_into_a_file_of_the_artifact_ends_the_proof(asked: dict[str, Any], tmp_path: Path) -> None:
    tree = tmp_path / "library-1"
    library = tree / "libdemo.so"
    library.write_bytes(b"library")
    (tree / artifact.MANIFEST).write_bytes(artifact.manifest_bytes(artifact.make_manifest(str(tree))))
    (tree / "__pycache__").mkdir()
    artifact_check.remember("demo", artifact_check.circumstances(asked), ["said"])
    (tree / "__pycache__" / "x.pyc").touch()
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) == ["said"]
    status = library.stat()
    library.write_bytes(b"librarY")
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert library.stat().st_mtime_ns == status.st_mtime_ns
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) is None
