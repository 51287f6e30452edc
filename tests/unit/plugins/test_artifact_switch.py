"""Links of artifacts are switched together: all of them, or none."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, artifact_links
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_switch

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunModule

KEY = "0123456789abcdef"


def install(root: Path, name: str, version: str, *, linked: bool = False) -> str:
    """Install an artifact with one file below a folder."""
    tree = root / f"{name}-{version}-{KEY}"
    tree.mkdir()
    (tree / "program").write_text(version, encoding="utf-8")
    manifest = artifact.manifest_bytes(artifact.make_manifest(str(tree)))
    (tree / artifact.MANIFEST).write_bytes(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    (tree / artifact.MARKER).write_bytes(artifact.marker_bytes(name, version, KEY, {}, digest))
    if linked:
        (root / name).symlink_to(tree.name)
    return str(tree)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two artifacts in two versions, the second one linked, and a third one that the old set lacks."""
    for name in ("mpi", "python"):
        install(tmp_path, name, "1")
        install(tmp_path, name, "2", linked=True)
    install(tmp_path, "extra", "1", linked=True)
    return tmp_path


def back(root: Path) -> dict[str, str]:
    return {
        f"{root}/mpi": f"{root}/mpi-1-{KEY}",
        f"{root}/python": f"{root}/python-1-{KEY}",
        f"{root}/extra": "",
    }


def links(root: Path) -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in root.iterdir() if path.is_symlink()}


def test_all_links_are_switched_and_watched(root: Path, run_module: RunModule) -> None:
    before = links(root)
    shown = run_module("artifact_switch", check=True, diff=True, links=back(root))
    assert (shown["changed"], links(root)) == (True, before)
    assert f"{root}/mpi -> {root}/mpi-1-{KEY}\n" in shown["diff"]["after"]
    done = run_module("artifact_switch", links=back(root))
    assert links(root) == {"mpi": f"mpi-1-{KEY}", "python": f"python-1-{KEY}"}
    assert done["changes"] == [
        f"{root}/mpi -> mpi-1-{KEY}",
        f"{root}/python -> python-1-{KEY}",
        f"removed {root}/extra",
    ]
    assert done["before"][f"{root}/extra"] == f"{root}/extra-1-{KEY}"
    watched = {(entry["path"], entry["kind"]) for entry in done["watch"]}
    assert (f"{root}/mpi", "link") in watched
    assert (f"{root}/mpi-1-{KEY}", "artifact") in watched
    assert run_module("artifact_switch", links=back(root))["changed"] is False
    run_module("artifact_switch", links=done["before"])
    assert links(root) == before, "and back again"


def test_what_a_killed_run_staged_is_removed(root: Path, run_module: RunModule) -> None:
    (root / ".mpi.abcdefgh").symlink_to("nowhere")
    run_module("artifact_switch", links=back(root))
    assert not [path.name for path in root.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("phase", ["check", "switch"])
@pytest.mark.parametrize("how", ["gone", "damaged", "unfinished", "no link"])
def test_nothing_is_switched_where_one_folder_is_not_whole(
    root: Path, run_module: RunModule, how: str, phase: str
) -> None:
    tree = root / f"python-1-{KEY}"
    if how == "gone":
        tree.rename(root / "elsewhere")
    elif how == "damaged":
        (tree / "program").write_text("longer than before", encoding="utf-8")
    elif how == "unfinished":
        (tree / artifact.MARKER).unlink()
    else:
        (root / "python").unlink()
        (root / "python").mkdir()
    before = links(root)
    result = run_module("artifact_switch", links=back(root), phase=phase, host="node7")
    assert result["failed"]
    assert result["msg"].startswith("node7: ")
    words = {"gone": "is missing", "damaged": "is damaged", "unfinished": "never finished", "no link": "is not a link"}
    assert words[how] in result["msg"]
    assert links(root) == before


def test_the_check_changes_nothing(root: Path, run_module: RunModule) -> None:
    before = links(root)
    assert run_module("artifact_switch", links=back(root), phase="check")["changed"] is False
    assert links(root) == before


def test_a_rename_that_fails_takes_the_others_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = links(root)
    put = artifact_switch.artifact_links.put

    def fails(link: str, staged: str) -> None:
        if link.endswith("/extra"):
            raise OSError(5, "Input/output error")
        put(link, staged)

    monkeypatch.setattr(artifact_switch.artifact_links, "put", fails)
    with pytest.raises(OSError, match="Input/output"):
        artifact_switch.run(back(root), really=True)
    assert links(root) == before
    assert not [path.name for path in root.iterdir() if path.name.startswith(".")]


def test_a_link_of_another_user_on_the_way_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_switch.path_state, "link_of_another", lambda _path: "/home/other/link")
    before: Any = links(root)
    with pytest.raises(artifact_switch.SwitchError, match="/home/other/link is a link that another user"):
        artifact_switch.run(back(root), really=True)
    assert links(root) == before


def test_a_full_disk_is_named_with_the_cure() -> None:
    error = OSError(28, "No space left on device", "/usr/local/.openmpi.abcdefgh")
    said = artifact_switch.refusal("node1", error)
    assert said.startswith("node1: /usr/local/.openmpi.abcdefgh: the disk is full; make room there")
    assert said.endswith("again. Every link leads where it led before.")


# --- the link of an artifact is switched by one rename, and only a link is switched ---


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
