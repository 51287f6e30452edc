"""Nodes whose /usr/local is read-only: the software lies below another prefix, and nothing is left of it at the end."""

# Long: another prefix is another build of Open MPI, which an empty cache has to compile.

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from validated import CLUSTERCTL, Cluster

if TYPE_CHECKING:
    from conftest import Start

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NODES = ("node1", "node2")
PREFIX = "/opt/cluster"
# Of the mount namespace alone: with this machine's /proc, mount finds its own process.
READ_ONLY = "mount --bind /usr/local /usr/local && mount -o remount,ro,bind /usr/local"


def on(cluster: Cluster, node: str, *argv: str) -> str:
    return cluster.engine.text("exec", cluster.box.node(node).container, *argv)


def said(cluster: Cluster, *command: str) -> tuple[int, dict[str, Any], str]:
    """Run a verb; its exit code, its record and its words."""
    argv = [*CLUSTERCTL, command[0], "--format", "json", *command[1:], str(cluster.box.inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.fixture(scope="module")
def bare(sandbox: Start) -> Cluster:
    cluster = Cluster(sandbox("prefix", nodes=len(NODES)))
    for node in NODES:
        command = ["nsenter", "--target", cluster.first_process(node), "--mount", "sh", "-c", READ_ONLY]
        subprocess.run([*cluster.engine.prefix, *command], check=True)
        refused = on(cluster, node, "sh", "-c", "touch /usr/local/x 2>&1 || true")
        assert "Read-only file system" in refused
    return cluster


def test_a_read_only_folder_is_refused_with_its_cure(bare: Cluster) -> None:
    code, record, _ = said(bare, "provision", "--yes", "--no-validate")
    assert code == 1
    assert {one["problem"] for one in record["problems"]} == {"/usr/local is on a read-only file system"}
    assert all("set cluster_prefix to a folder" in one["cure"] for one in record["problems"])


@pytest.fixture(scope="module")
def cluster(bare: Cluster) -> Cluster:
    variables = bare.box.inventory.parent / "group_vars" / "all.yml"
    variables.write_text(json.dumps({**json.loads(variables.read_text()), "cluster_prefix": PREFIX}))
    bare.provision()
    return bare


def test_the_cluster_passes_and_a_second_provision_changes_nothing(cluster: Cluster) -> None:
    record, _ = cluster.provision()
    assert record["outcome"] == "nothing to do"
    code, found, words = said(cluster, "validate", "--checks", "hello,allreduce")
    assert (code, found["verdict"]) == (0, "PASS"), words
    links = on(cluster, "node1", "readlink", f"{PREFIX}/openmpi", f"{PREFIX}/mpi4py", f"{PREFIX}/python_env").split()
    assert [link.partition("-")[0] for link in links] == ["openmpi", "mpi4py", "python_env"]


def test_every_command_finds_the_software_there(cluster: Cluster) -> None:
    done = subprocess.run(
        [*CLUSTERCTL, "run", str(cluster.box.inventory), "--", "hostname"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(NODES)
    code, found, words = said(cluster, "doctor")
    assert code == 0, words
    assert not [one for one in found["findings"] if one["severity"] == "error"]
    code, _, words = said(cluster, "drift")
    assert code == 0, words
    code, found, words = said(cluster, "gc", "--check")
    assert code == 0, words
    checked = on(cluster, "node1", "python3", "-I", f"{PREFIX}/libexec/clusterctl/check_node.py", "--quick")
    assert checked.startswith("node1: fit")


def test_another_prefix_is_refused_until_the_first_is_gone(cluster: Cluster) -> None:
    code, record, _ = said(cluster, "provision", "--yes", "--no-validate", "-e", "cluster_prefix=/srv/cluster")
    assert code == 1
    problem = f"its software of clusterctl is in {PREFIX}, and cluster_prefix is /srv/cluster"
    assert {one["problem"] for one in record["problems"]} == {problem}


def test_uninstall_leaves_nothing(cluster: Cluster) -> None:
    """Also where the inventory names another prefix by now: the node tells where its software is."""
    code, _, words = said(cluster, "uninstall", "--yes", "-e", "cluster_prefix=/srv/cluster")
    assert code == 0, words
    for node in NODES:
        assert on(cluster, node, "find", "/opt", "/srv", "-mindepth", "1") == ""
        assert PREFIX not in on(cluster, node, "cat", "/etc/environment")
