"""A folder that is deeper than Python can follow stops no run, whoever made it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import file_stage, file_transaction, tree_removal
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    ArtifactError,
    forget_leftovers,
    parse_manifest,
)

_DEPTH = 1500
_STRANGER = 1234
_PUSHED = "clusterctl-push-????????????????-*"
_NAME = "clusterctl-push-0123456789abcdef-x"


def _as(uid: int, work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        try:
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _deep(path: Path) -> None:
    path.mkdir()
    os.chdir(path)
    for _unused in range(_DEPTH):
        os.mkdir("d")  # noqa: PTH102 - deeper than a path is long
        os.chdir("d")
    os.utime(path, (1, 1))


@pytest.fixture
def common(reachable: Path) -> Iterator[Path]:
    """A folder of all users, emptied also of what pytest cannot remove."""
    folder = reachable / "common"
    folder.mkdir()
    folder.chmod(0o1777)
    yield folder
    tree_removal.remove(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as two users")
def test_a_strangers_folder_with_the_name_of_a_pack_stays_and_stops_no_run(common: Path) -> None:
    _as(_STRANGER, lambda: _deep(common / _NAME))
    (common / f"{_NAME}y").write_text("a pack")
    os.chown(common / f"{_NAME}y", _STRANGER, _STRANGER)
    os.utime(common / f"{_NAME}y", (1, 1))
    forget_leftovers(str(common), [_PUSHED])
    assert [path.name for path in common.iterdir()] == [_NAME]


def test_our_own_deep_folder_goes(common: Path) -> None:
    _as(0, lambda: _deep(common / _NAME))
    forget_leftovers(str(common), [_PUSHED])
    assert not list(common.iterdir())


def test_a_deep_folder_in_the_place_of_a_file_goes(common: Path) -> None:
    _as(0, lambda: _deep(common / "x"))
    outcome = file_stage.apply([file_transaction.Entry(path=str(common / "x"), state="absent")], is_noted=False)
    assert outcome.changes
    assert not list(common.iterdir())


def test_a_manifest_with_deep_folders_is_refused() -> None:
    paths = ["/".join("d" * depth) for depth in range(1, _DEPTH)]
    manifest = {"schema": 1, "files": [[path, "d", 0, "", "0755"] for path in paths]}
    with pytest.raises(ArtifactError, match="deep"):
        parse_manifest(json.dumps(manifest).encode())
    assert len(parse_manifest(json.dumps({**manifest, "files": manifest["files"][:100]}).encode())) == 100  # type: ignore[index]
