"""A file system that a user mounts under a name of ours, and that never answers, is not asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import brought
from ansible_collections.clusterctl.hpc.plugins.modules import leftovers


def _never(_path: Path) -> NoReturn:
    pytest.fail("it was asked")


@pytest.mark.parametrize("name", ["ansible_clusterctl.hpc.x_payload_abcdefgh"])
def test_a_file_system_that_is_mounted_there_is_not_asked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(brought, "mount_points", lambda: {str(tmp_path / name)})
    monkeypatch.setattr(leftovers, "_places", lambda _root: [])
    monkeypatch.setattr(Path, "lstat", _never)
    assert leftovers.of_unfinished([], [], str(tmp_path / "root"), str(tmp_path)) == []


def test_packs_and_builds_that_are_mounts_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    for pattern in ("_PUSHED", "_BUILD"):
        monkeypatch.setattr(brought, pattern, re.compile("x"))
    monkeypatch.setattr(brought, "mount_points", lambda: {str(tmp_path / "x")})
    monkeypatch.setattr(Path, "lstat", _never)
    assert brought.left_in(str(tmp_path)) == []


def test_mounts_are_known() -> None:
    assert "/" in brought.mount_points()
