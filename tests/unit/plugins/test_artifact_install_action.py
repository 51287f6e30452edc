"""When a host need not be asked for the state of an artifact before it gets its pack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import artifact_install
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts

if TYPE_CHECKING:
    from pathlib import Path

BASE = {"name": "openmpi", "version": "5.0.7", "key": "0123456789abcdef"}
TREE = "openmpi-5.0.7-0123456789abcdef"
FRESH: dict[str, Any] = {"prefix": {"path": "/usr/local", "trees": []}, "tools": {"zstd": False, "libzstd": True}}


@pytest.mark.parametrize(
    ("change", "asks"),
    [
        ({}, False),
        ({"prefix": {"path": "/usr/local", "trees": ["openmpi-5.0.6-0123456789abcdef"]}}, False),
        ({"prefix": {"path": "/usr/local", "trees": [TREE]}}, True),
        ({"prefix": {"path": "/usr/local", "trees": None}}, True),
        ({"prefix": {"path": "/opt/cluster", "trees": []}}, True),
        ({"prefix": None}, True),
        ({"tools": {}}, True),
        ({"tools": {"zstd": True}}, False),
    ],
)
def test_a_host_is_asked_unless_its_facts_rule_the_artifact_out(change: dict[str, Any], asks: bool) -> None:
    said = artifact_install.lacks_tree(BASE, FRESH | change)
    assert (said is None) is asks
    if said:
        assert said == {"needs_pack": True, "needs_link": True, "lost": [], "needs_packages": [], "zstd": True}


def test_without_facts_a_host_is_asked() -> None:
    assert artifact_install.lacks_tree(BASE, {}) is None


def test_the_probe_names_the_folders_of_artifacts_whole_or_not(tmp_path: Path) -> None:
    for name in (TREE, "bin", "openmpi-notes", f".{TREE}.x"):
        (tmp_path / name).mkdir()
    assert artifacts.installed_trees(str(tmp_path)) == [TREE]
    assert artifacts.has_software(str(tmp_path)) is False
    (tmp_path / TREE / artifacts.MARKER).write_text("{}", encoding="utf-8")
    assert artifacts.has_software(str(tmp_path)) is True
