"""The controller pins wheels and fetches archives for recipes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import controller
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import WheelWish
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import WheelError
from wheel_files import make_wheel

PLATFORM = "debian-12-x86_64-glibc2.36-py3.11"


@pytest.mark.programs
def test_wheels_are_pinned_and_the_alternative_that_was_taken_is_told(tmp_path: Path) -> None:
    path = make_wheel(tmp_path / "own", "clusterctl_sample", "1.0")

    def pinned(*first_of: str) -> object:
        choice = [[requirement] for requirement in first_of]
        folders = (str(tmp_path / "cache"), str(path.parent))
        wish = WheelWish("sample", PLATFORM, [], "sample_requirements", *folders, choice, "sample_version")
        found = controller.Controller(print).pin(wish)
        return found.wheels[0]["sha256"], found.taken

    assert pinned("clusterctl-sample==2.0", "clusterctl-sample") == (hashlib.sha256(path.read_bytes()).hexdigest(), 1)
    with pytest.raises(WheelError, match="sample_version"):
        pinned("clusterctl-sample==2.0")


def test_an_archive_is_fetched_once_and_each_attempt_is_told(tmp_path: Path) -> None:
    file = tmp_path / "nccl.txz"
    file.write_bytes(b"nccl")
    sources = [{"path": str(file), "sha256": hashlib.sha256(b"nccl").hexdigest()}]
    told: list[str] = []
    fetching = controller.Controller(told.append)
    found = fetching.fetch("nccl", "source", sources, str(tmp_path / "cache"))
    assert (found.path.read_bytes(), found.cached) == (b"nccl", False)
    assert fetching.fetch("nccl", "source", sources, str(tmp_path / "cache")).cached
    assert told == [f"fetching nccl source from {file}"]
