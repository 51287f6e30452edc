"""The folder of the cluster's software: which values of ``cluster_prefix`` are refused, and by what words."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    artifact,
    brought,
    origins,
    prefix_rules,
    preflight_rules,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts as node_artifacts
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import record
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_install, uninstall

KEY = "0123456789abcdef"


@pytest.mark.parametrize(
    "path", ["/usr/local", "/opt/cluster", "/opt", "/srv/hpc-2.0/a_b+c", "/home/shared", "/export/sw"]
)
def test_a_folder_for_software_is_taken(path: str) -> None:
    assert prefix_rules.problem(path) == ""


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("opt/cluster", "not an absolute path"),
        ("", "not an absolute path"),
        (5, "not an absolute path"),
        (["/opt"], "not an absolute path"),
        ("~/sw", "not an absolute path"),
        ("/opt/cluster/", "not a normal path; write '/opt/cluster'"),
        ("//opt/cluster", "not a normal path; write '/opt/cluster'"),
        ("/opt/../etc", "not a normal path; write '/etc'"),
        ("/opt/./cluster", "not a normal path"),
        ("/", "not a folder for software"),
        ("/usr", "not a folder for software"),
        ("/usr/lib/x86_64-linux-gnu", "not a folder for software"),
        ("/etc", "not a folder for software"),
        ("/etc/cluster", "not a folder for software"),
        ("/home", "not a folder for software"),
        ("/tmp/cluster", "not a folder for software"),  # noqa: S108 - a value
        ("/root/sw", "not a folder for software"),
        ("/var/lib/clusterctl/sw", "not a folder for software"),
        ("/opt/my cluster", "take only letters, digits"),
        ("/opt/a:b", "take only letters, digits"),
        ("/opt/a#b", "take only letters, digits"),
        ("/opt/$HOME", "take only letters, digits"),
        ("/opt/caf\u00e9", "take only letters, digits"),
        ("/opt/a\n", "take only letters, digits"),
        ("/opt/-rf", "take only letters, digits"),
        ("/opt/" + "x" * 100, "longer than 100 characters"),
    ],
)
def test_every_other_value_is_refused_in_one_clause(path: Any, words: str) -> None:
    said = prefix_rules.problem(path)
    assert said.startswith("cluster_prefix is ")
    assert words in said
    assert "\n" not in said
    assert len(said) < 300


def test_hosts_of_one_cluster_have_one_prefix() -> None:
    assert prefix_rules.disagreement({"node1": "/opt/a", "node2": "/opt/a"}) == ""
    said = prefix_rules.disagreement({"node1": "/opt/a", "node2": "/opt/b", "node3": "/opt/b"})
    assert said.startswith("cluster_prefix is /opt/a on node1 and /opt/b on node2, ")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose parents belong to root, unlike those of pytest; /tmp itself is taken for one of them."""
    if os.geteuid() != 0:
        pytest.skip("only root can make folders of root and of others")
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-prefix-", dir="/var/lib"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_only_root_may_write_on_the_way_to_the_prefix(place: Path) -> None:
    target = place / "one" / "two"
    assert node_artifacts.prefix_problem(str(target)) == ""  # what is missing root makes
    target.mkdir(parents=True)
    for path in (target.parent, target):
        path.chmod(0o755)
    assert node_artifacts.prefix_problem(str(target)) == ""
    target.parent.chmod(0o777)
    assert f"{target.parent} can be written by others than root (mode 0777)" in node_artifacts.prefix_problem(
        str(target)
    )
    target.parent.chmod(0o775)
    os.chown(target.parent, 0, 50)
    assert "(mode 0775)" in node_artifacts.prefix_problem(str(target))
    os.chown(target.parent, 65534, 0)
    assert node_artifacts.prefix_problem(str(target)).endswith("who could replace the software")
    os.chown(target.parent, 0, 0)
    target.parent.chmod(0o700)
    assert node_artifacts.prefix_problem(str(target)) == f"{target.parent} can be entered by root alone (mode 0700)"
    target.parent.chmod(0o755)
    target.rmdir()
    target.symlink_to("/usr")
    assert f"{target} is a link" in node_artifacts.prefix_problem(str(target))
    target.unlink()
    target.write_text("")
    assert node_artifacts.prefix_problem(str(target)) == f"{target} is not a folder"


def test_software_in_another_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    text = f"# clusterctl: added PATH {old}/openmpi/bin {old}/horovod/bin\n# clusterctl: added LD_LIBRARY_PATH /x/lib\n"
    assert node_artifacts.prefix_candidates(text) == sorted(["/usr/local", str(old)])
    assert not node_artifacts.has_software(str(old))
    tree = old / f"openmpi-5.0.7-{KEY}"
    tree.mkdir(parents=True)
    assert not node_artifacts.has_software(str(old))  # never finished
    (tree / artifact.MARKER).write_text("{}")
    assert node_artifacts.has_software(str(old))
    monkeypatch.setattr(node_artifacts, "read_text", lambda *_unused: text)
    assert str(old) in node_artifacts.prefix(str(new))["prefix"]["others"]
    assert node_artifacts.prefix(str(old))["prefix"]["others"] == [
        p for p in ["/usr/local"] if node_artifacts.has_software(p)
    ]


def test_the_record_is_that_of_the_prefix(tmp_path: Path) -> None:
    tree = tmp_path / f"openmpi-5.0.7-{KEY}"
    (tree / "bin").mkdir(parents=True)
    manifest = json.dumps({"files": [["bin", "d", 0, "", "0755"]]}).encode()
    (tree / artifact.MANIFEST).write_bytes(manifest)
    (tree / artifact.MARKER).write_bytes(artifact.marker_bytes("openmpi", "5.0.7", KEY, {}, ""))
    (tmp_path / "openmpi").symlink_to(tree.name)
    (tmp_path / "etc" / "openmpi").mkdir(parents=True)
    (tmp_path / "etc" / "openmpi" / "openmpi-mca-params.conf").write_text("btl = self\n")
    asked = {"prefix": str(tmp_path), "artifacts": [{"name": "openmpi", "link": "openmpi"}]}
    found = record.collect(asked)
    assert found["prefix"]["path"] == str(tmp_path)
    assert [one["link"] for one in found["artifacts"]] == [f"{tmp_path}/openmpi"]
    assert found["artifacts"][0]["target"] == str(tree)
    assert found["disk"][0]["path"] == str(tmp_path)
    assert {one["own"] for one in found["launch"]} >= {f"{tmp_path}/openmpi/bin/mpirun"}
    ours = [one for one in found["parameters"] if one["source"].startswith(str(tmp_path))]
    assert ours == [{"name": "btl", "value": "self", "source": f"{tmp_path}/etc/openmpi/openmpi-mca-params.conf"}]
    everything = record.collect({"prefix": str(tmp_path), "artifacts": None})["artifacts"]
    assert [one["link"] for one in everything] == [f"{tmp_path}/openmpi"]


def test_preflight_refuses_a_folder_that_is_not_fit() -> None:
    limits = preflight_rules.Limits({}, "3.9", {}, {})

    def said(artifacts: int = 0, **state: Any) -> list[str]:
        node = {"prefix": {"path": "/opt/cluster", **state}, "artifacts": [{}] * artifacts}
        found = preflight_rules.node_problems("node1", node, limits, builder=False)
        assert all(one.as_dict()["kind"] == "configuration" for one in found if one.check == "prefix")
        return [f"{one.problem}; {one.cure}" for one in found if one.check == "prefix"]

    assert said() == []
    (found,) = said(problem="/opt belongs to ann")
    assert found.startswith("/opt belongs to ann; give it to root with mode 755, or ")
    (found,) = said(others=["/usr/local"], read_only=True)
    assert "is in /usr/local, and cluster_prefix is /opt/cluster; run 'clusterctl uninstall' first, or " in found
    assert said(read_only=True)[0].startswith("/opt/cluster is on a read-only file system; set cluster_prefix to")
    assert said(artifacts=1, read_only=True) == []  # what is installed can be used


@pytest.mark.parametrize(
    ("python", "is_refused"),
    [
        ("/opt/cluster/python_env/bin/python", True),
        ("/opt/cluster/python_env-3.11-0123456789abcdef/bin/python3", True),
        ("/usr/bin/python3", False),
        ("/opt/cluster-python/bin/python3", False),
    ],
)
def test_preflight_refuses_to_run_modules_as_root_in_the_clusters_own_python(python: str, is_refused: bool) -> None:
    node = {"prefix": {"path": "/opt/cluster"}, "python": {"version": "3.11.2", "executable": python}}
    found = preflight_rules.node_problems("node1", node, preflight_rules.Limits({}, "3.9", {}, {}), builder=False)
    words = [one.cure for one in found if "the cluster's own Python" in one.problem]
    assert words == ["set ansible_python_interpreter=/usr/bin/python3 in the inventory"] * is_refused


def test_the_folders_on_the_way_are_made_and_uninstall_knows_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_ORIGINS", str(place / "origins.json"))
    assert prefix_rules.folders_to("/usr/local") == []
    assert prefix_rules.folders_to("/opt/a/b") == ["/opt", "/opt/a", "/opt/a/b"]
    before = os.umask(0o077)
    try:
        artifact_install.make_folders(str(place / "one" / "two"))
        artifact_install.make_folders(str(place / "one" / "two"))
    finally:
        os.umask(before)
    assert node_artifacts.prefix_problem(str(place / "one" / "two")) == ""
    known = origins.load()["paths"]
    assert {path: known[path]["kind"] for path in known} == dict.fromkeys(
        (str(place / "one"), str(place / "one" / "two")), "absent"
    )
    assert brought.roots_in([*known, "/opt/a/openmpi", "/opt/b/etc/openmpi", "/opt/c/openmpi"]) == ["/opt/a", "/opt/c"]


def test_uninstall_removes_nothing_from_a_folder_that_a_user_could_change(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_ORIGINS", str(place / "origins.json"))
    target = place / "sw"
    target.mkdir(mode=0o755)
    tree = target / f"openmpi-5.0.7-{KEY}"
    tree.mkdir()
    (tree / artifact.MARKER).write_text("{}")
    (target / "openmpi").symlink_to(tree.name)
    node = uninstall.Node(
        {"prefix": str(target), "paths": [], "host": "node1", "remove_user": False}, really=False, want_diff=False
    )
    roots = node._roots()  # noqa: SLF001
    assert str(target) in roots
    assert node._artifacts([str(target)]) == {str(tree), str(target / "openmpi")}  # noqa: SLF001
    target.chmod(0o777)
    with pytest.raises(uninstall.UninstallError, match="can be written by others than root"):
        node._roots()  # noqa: SLF001
