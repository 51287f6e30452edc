"""Overlayfs renames no folder of a container's image: what would be put aside is then removed at its place."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import tree_removal
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_collect, uninstall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("remove", [artifact_collect.remove, lambda path: uninstall.remove_tree(str(path))])
def test_a_tree_of_an_image_goes_at_its_place(
    remove: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_paths: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    tree = tmp_path / "openmpi-5.0.7-0123456789abcdef"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib" / "libmpi.so").write_bytes(b"a library")
    (tree / ".clusterctl.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(tree_removal.Path, "replace", refuse)

    remove(tree)

    assert list(tmp_path.iterdir()) == []
