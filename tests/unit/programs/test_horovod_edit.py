"""Horovod's sources get exactly the edits that their versions need, or none and a sentence."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from node_programs import load

REPOSITORY = Path(__file__).parents[3]
PIECES = REPOSITORY / "tests/data/horovod/horovod-0.28.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusterctl/sources"
RELEASE = CACHE / "horovod-0.28.1-92a43f5a94c43907.tar.gz"


edit_source: Any = load("edit_source", "horovod")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PIECES, tmp_path / "source"))


def contents(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


def names(edits: Iterable[Any]) -> set[str]:
    return {edit.name for edit in edits}


def due(
    framework: str, version: str, *, horovod: str = "0.28.1", python: str = "3.11", skip: set[str] | None = None
) -> set[str]:
    return names(edit_source.due_edits(horovod, framework, version, python, skip or set()))


def test_every_edit_is_made_once_and_nothing_else_changes(tree: Path) -> None:
    before = contents(tree)
    assert edit_source.main([str(tree), "pytorch", "2.13.0+cpu", "--expect", "0.28.1"]) == 0
    after = contents(tree)
    for edit in edit_source.EDITS:
        assert before[edit.file].count(edit.expected) == 1
        before[edit.file] = before[edit.file].replace(edit.expected, edit.replacement)
    assert after == before
    assert "distutils" not in "".join(after.values())
    assert "CXX_STANDARD 14" not in "".join(after.values())


@pytest.mark.skipif(not RELEASE.is_file(), reason="no run has fetched the release yet")
@pytest.mark.parametrize(("framework", "version"), [("pytorch", "2.13.0+cpu"), ("tensorflow", "2.12.0")])
def test_the_release_is_what_the_edits_were_written_for(tmp_path: Path, framework: str, version: str) -> None:
    with tarfile.open(RELEASE) as archive:
        archive.extractall(tmp_path, filter="data")
    tree = tmp_path / "horovod-0.28.1"
    for name, piece in contents(PIECES).items():
        assert set(piece.splitlines()) <= set((tree / name).read_text().splitlines()), f"{name} is not of the release"
    edits = edit_source.due_edits("0.28.1", framework, version, "3.11", set())
    assert len(edit_source.apply(tree, edits)) == len(edits) > 1


def test_an_edit_is_for_its_versions_only() -> None:
    for_pytorch = {"pytorch-standard", "gloo-standard", "adapter-headers", "operations-headers"}
    assert for_pytorch <= due("pytorch", "2.1.0")
    assert not for_pytorch & due("pytorch", "2.0.1")
    assert not for_pytorch & due("tensorflow", "2.12.0")
    assert "jsrun-import" in due("tensorflow", "2.12.0")
    assert due("pytorch", "2.13.0", horovod="0.29.0") == set()
    assert due("pytorch", "2.13.0", horovod="0.28.0") == set()


@pytest.mark.parametrize("edit", edit_source.EDITS, ids=lambda edit: edit.name)
def test_a_text_that_is_not_there_is_named_and_nothing_is_written(
    tree: Path, edit: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree / edit.file
    path.write_text(path.read_text().replace(edit.expected, "somebody was here\n"))
    before = contents(tree)
    assert edit_source.main([str(tree), "pytorch", "2.13.0+cpu"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{edit.file} holds the text that the edit '{edit.name}' expects 0 times instead of once")
    assert f"add {edit.name} to horovod_skip_edits" in said
    assert said.count("\n") == 1
    assert contents(tree) == before


def test_a_text_that_is_there_twice_is_no_less_wrong(tree: Path) -> None:
    path = tree / "horovod/runner/js_run.py"
    path.write_text(path.read_text() * 2)
    with pytest.raises(
        edit_source.EditError, match=r"js_run\.py holds the text that the edit 'jsrun-import' expects 2 times"
    ):
        edit_source.apply(tree, list(edit_source.EDITS))


def test_an_edit_that_the_tree_has_already_can_be_skipped(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree / "horovod/runner/js_run.py"
    path.write_text(path.read_text().replace("from distutils.spawn import find_executable", "from shutil import which"))
    assert edit_source.main([str(tree), "pytorch", "2.13.0", "--skip", "jsrun-import"]) == 0
    assert edit_source.main([str(tree), "pytorch", "2.13.0", "--skip", "js"]) == 1
    assert "horovod_skip_edits names js, which is no edit; " in capsys.readouterr().err


def test_a_tree_of_another_version_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert edit_source.main([str(tree), "pytorch", "2.13.0", "--expect", "0.27.0"]) == 1
    assert "of Horovod 0.28.1, not of 0.27.0; set horovod_version to 0.28.1" in capsys.readouterr().err


def test_another_tree_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert edit_source.main([str(tmp_path), "pytorch", "2.13.0"]) == 1
    assert "is no tree of Horovod: it has no horovod/__init__.py" in capsys.readouterr().err


def test_an_unknown_release_is_built_as_it_is(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "horovod/__init__.py").write_text("__version__ = '0.30.0'\n")
    before = contents(tree)
    assert edit_source.main([str(tree), "pytorch", "2.13.0"]) == 0
    assert capsys.readouterr().out == "No edit is known for Horovod 0.30.0; it is built as it is.\n"
    assert contents(tree) == before


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.13.0a0+git1", (2, 13, 0)), ("3.12", (3, 12)), ("dev", ())],
)
def test_versions_are_read_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert edit_source.version_tuple(text) == numbers
