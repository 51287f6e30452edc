"""The link of an artifact is switched by one rename, and only a link is switched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_links

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_is_switched_without_a_moment_in_between(tmp_path: Path) -> None:
    link = tmp_path / "demo"
    artifact_links.switch(str(link), f"{tmp_path}/demo-1")
    artifact_links.switch(str(link), f"{tmp_path}/demo-2")
    assert str(link.readlink()) == "demo-2"
    assert artifact_links.tree_of(str(link)) == f"{tmp_path}/demo-2"
    assert list(tmp_path.iterdir()) == [link]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        artifact_links.switch(str(tmp_path / "folder"), f"{tmp_path}/demo-2")
    assert names(tmp_path) == ["demo", "folder"], "no temporary link is left"


def test_a_folder_elsewhere_is_named_by_its_whole_path(tmp_path: Path) -> None:
    link = tmp_path / "demo"
    artifact_links.switch(str(link), "/opt/demo-1")
    assert str(link.readlink()) == artifact_links.tree_of(str(link)) == "/opt/demo-1"


def test_a_link_that_a_killed_run_staged_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".demo.abcdefgh").symlink_to("nowhere")
    (tmp_path / ".demo.folder").mkdir()
    (tmp_path / ".other.abcdefgh").symlink_to("nowhere")
    artifact_links.switch(str(tmp_path / "demo"), f"{tmp_path}/demo-1")
    assert names(tmp_path) == [".demo.folder", ".other.abcdefgh", "demo"]


def test_a_link_is_removed(tmp_path: Path) -> None:
    artifact_links.switch(str(tmp_path / "demo"), f"{tmp_path}/demo-1")
    artifact_links.put(str(tmp_path / "demo"), "")
    assert names(tmp_path) == []
    assert artifact_links.tree_of(str(tmp_path / "demo")) == ""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_not_a_link_is_named_with_the_cure(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "demo"
    assert artifact_links.problem(str(place)) == ""
    if kind == "file":
        place.write_text("mine")
    else:
        place.mkdir()
    said = artifact_links.problem(str(place))
    assert f"{place} is not a link" in said
    assert "move it away and run again" in said
    place.rename(tmp_path / "aside")
    place.symlink_to("gone")
    assert artifact_links.problem(str(place)) == ""
