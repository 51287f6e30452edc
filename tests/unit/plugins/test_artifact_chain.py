"""The controller's part of a chain of nodes: when it is made, with whom, and what it believes of the first host."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_chain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import CachedArtifact
from clusterctl.support import content

if TYPE_CHECKING:
    from conftest import RunModule

HOSTS = ["a", "b", "c", "d"]


@pytest.fixture
def artifact(tmp_path: Path) -> CachedArtifact:
    pack = tmp_path / "demo-1.0-0123456789abcdef.tar.zst"
    pack.write_bytes(b"x" * 600_000)
    return CachedArtifact(pack, "5", 600_000, {})


def variables(**changed: Any) -> dict[str, Any]:
    members = [{"name": name, "platform": "other" if name == "d" else "same"} for name in HOSTS]
    return {"preflight_members": members, "ansible_play_hosts": HOSTS, "hostvars": {}, **changed}


KNOWN: dict[str, Any] = {"brought": {}, "tried": [], "heads": 0, "pack": {}}


def test_the_defaults_are_those_that_the_role_documents() -> None:
    documented = yaml.safe_load((content.root() / "roles/preflight/defaults/main.yml").read_text(encoding="utf-8"))
    names = ("preflight_chain_min_hosts", "preflight_chain_min_bytes", "preflight_chain_bytes_per_s")
    defaults = artifact_chain.Settings.of({}, lambda value: value)
    assert [documented[name] for name in names] == [defaults.min_hosts, defaults.min_bytes, defaults.bytes_per_s]


def test_a_chain_needs_enough_hosts_and_bytes(artifact: CachedArtifact) -> None:
    settings = artifact_chain.Settings(3, 600_000, 0)
    assert settings.suffice(artifact.path, HOSTS)
    assert not settings.suffice(artifact.path, HOSTS[:2])
    assert not artifact_chain.Settings(3, 600_001, 0).suffice(artifact.path, HOSTS)
    assert not settings.suffice(artifact.path.with_suffix(".none"), HOSTS)


def test_the_chain_has_the_hosts_of_the_platform_that_take_part(artifact: CachedArtifact) -> None:
    def names(given: dict[str, Any], **known: Any) -> list[str]:
        return [node.name for node in artifact_chain.nodes_of("a", given, {**KNOWN, **known}, artifact)]

    assert names(variables()) == ["b", "c"]
    assert names(variables(ansible_play_hosts=["a", "c", "d"])) == ["c"]
    assert names(variables(), tried=["b"], brought={"c": "/x"}) == []
    assert names(variables(preflight_members=[])) == []


def test_every_host_has_a_name_of_its_own_for_its_copy(artifact: CachedArtifact) -> None:
    given = variables(hostvars={"b": {"ansible_python_interpreter": "/opt/python"}, "c": {}})
    nodes = artifact_chain.nodes_of("a", given, KNOWN, artifact)
    assert len({node.file for node in nodes}) == 2
    assert all(node.file.endswith(f"-{artifact.path.name}") for node in nodes)
    assert [node.python for node in nodes] == ["/opt/python", "python3"]


def test_the_sums_are_of_the_pieces(artifact: CachedArtifact) -> None:
    piece, sums = artifact_chain.sums_of(artifact)
    data = artifact.path.read_bytes()
    expected = [hashlib.sha256(data[at : at + piece]).digest() for at in range(0, len(data), piece)]
    assert base64.b64decode(sums) == b"".join(expected)
    assert len(expected) == 3


@pytest.mark.parametrize(
    ("given", "user"),
    [
        ({}, "login"),
        ({"ansible_user": "admin"}, "admin"),
        ({"ansible_user": "admin", "cluster_user": "mpi"}, "mpi"),
        ({"cluster_user": "mpi", "__ssh_mesh_key": {"user": "jobs"}}, "jobs"),
    ],
)
def test_the_user_is_that_of_the_mesh(given: dict[str, Any], user: str) -> None:
    assert artifact_chain.mesh_user(given, "login") == user


def test_a_host_can_not_choose_a_path_or_another_host() -> None:
    nodes = [artifact_chain.Node(name, "python3", f"file-{name}") for name in ("b", "c")]
    said = {
        "delivered": {"b": 1, "c": "/etc/shadow", "z": 0, "../x": 0},
        "reasons": {"c": "two\nlines", "z": "stranger"},
        "slow": ["z", "b"],
        "seconds": "long",
    }
    told = artifact_chain.told(said, nodes, ["/one", "/two"])
    assert told.brought == {"b": "/two/file-b"}
    assert (told.left_out, told.failed, told.slow, told.seconds) == (["c"], {"c": "two lines"}, ["b"], 0.0)
    assert artifact_chain.told({"delivered": [1], "reasons": 3}, nodes, ["/one"]).left_out == ["b", "c"]


def test_one_worker_at_a_time_holds_the_meeting(tmp_path: Path) -> None:
    order: list[str] = []

    def work(name: str) -> None:
        with artifact_chain.Meeting(tmp_path, "demo").held() as known:
            order.append(f"{name} in")
            known["tried"].append(name)
            order.append(f"{name} out")

    threads = [threading.Thread(target=work, args=(name,)) for name in HOSTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.split()[1] for line in order] == ["in", "out"] * len(HOSTS)
    (path,) = tmp_path.iterdir()
    assert sorted(json.loads(path.read_text())["tried"]) == HOSTS


def test_a_copy_that_failed_is_raised_where_its_path_is_asked_for() -> None:
    def fail() -> str:
        raise OSError("the disk is full")

    assert artifact_chain.Copying(lambda: "/path").path() == "/path"
    with pytest.raises(OSError, match="the disk is full"):
        artifact_chain.Copying(fail).path()


@pytest.mark.parametrize("copied", ["missing", "changed", "link"])
def test_a_copy_of_another_node_that_is_not_whole_installs_nothing_and_is_told_apart(
    tmp_path: Path, run_module: RunModule, copied: str
) -> None:
    pack, root = tmp_path / "clusterctl-push-1", tmp_path / "root"
    root.mkdir()
    if copied == "changed":
        pack.write_bytes(b"half of a pack")
    elif copied == "link":
        pack.symlink_to("/etc/passwd")
    result = run_module(
        "artifact_install",
        name="demo",
        version="1",
        key="0123456789abcdef",
        cache_dir=str(tmp_path),
        root=str(root),
        phase="apply",
        host="n1",
        pack={"path": str(pack), "sha256": "0" * 64, "compression": "gz", "manifest_sha256": "0", "inputs": {}},
    )
    assert result["failed"]
    assert result["not_whole"]
    assert list(root.iterdir()) == []
    assert Path("/etc/passwd").exists()
