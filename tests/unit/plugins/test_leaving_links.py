"""A link of an artifact leads where the kernel would lead it, not where its text seems to lead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import Entry, leaving_link

ROOT = "/usr/local"
_SELF = ("d", ".")
HOSTILE = {
    "up from a link": [_SELF, ("x", "d/d/../../tmp/f")],
    "up from a link to a folder above": [("a/b/d", "../.."), ("x", "a/b/d/../../tmp/f")],
    "up from a link, by the whole path": [_SELF, ("x", f"{ROOT}/demo-1-0123456789abcdef/d/../../../tmp/f")],
    "up from a link to the root of artifacts": [("d", ROOT), ("x", "a/../d/../../tmp/f"), ("y", "d/../tmp/f")],
    "up from what is missing": [("x", "later/../tmp/f")],
    "the old name of /var/tmp": [("x", "/usr/tmp/f")],
}
FRIENDLY = [("x", "a/b"), ("a/x", "../a/b"), ("a/b/x", "../../a"), ("y", "a/../a/b"), ("z", "/usr/lib/x.so"), _SELF]


def _entries(links: list[tuple[str, str]]) -> list[Entry]:
    folders = [Entry("a", "d", 0, "", "0755"), Entry("a/b", "d", 0, "", "0755")]
    return [*folders, *(Entry(path, "l", 0, target, "") for path, target in links)]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_link_that_leaves_by_another_link_is_refused(name: str) -> None:
    assert "outside" in leaving_link(_entries(HOSTILE[name]), ROOT)


def test_links_within_an_artifact_and_to_files_of_root_stay() -> None:
    assert leaving_link(_entries(FRIENDLY), ROOT) == ""


def test_links_lead_to_a_folder_of_the_user_that_was_named_and_not_beside_it() -> None:
    links = [("bin", "/data/venvs/x/bin/python")]
    assert leaving_link(_entries(links), ROOT, ["/data/venvs/x"]) == ""
    for beside in ([], ["/"], ["/data/venvs/xx"], ["/data/venvs/x/bin/python3"]):
        assert "outside" in leaving_link(_entries(links), ROOT, beside)
    assert "outside" in leaving_link(_entries([("up", "/data/venvs/x/../y")]), ROOT, ["/data/venvs/x"])


def test_what_is_refused_would_have_left(tmp_path: Path) -> None:
    tree = tmp_path / "a" / "b" / "tree"
    tree.mkdir(parents=True)
    for path, target in HOSTILE["up from a link"]:
        (tree / path).symlink_to(target)
    assert Path(os.path.realpath(tree / "x")) == tmp_path / "a" / "tmp" / "f"
