"""All links of all nodes change in one step: a node that is not ready, or that cannot run it, leaves every link."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import planting
import pytest
from validated import NODES, Cluster

pytestmark = pytest.mark.cluster

OTHER = ("-e", "openmpi_version=4.1.4", "--tags", "openmpi,mpi4py")  # with an mpi4py of its own
SETTINGS = "/usr/local/etc/openmpi/openmpi-mca-params.conf"


def upgraded(cluster: Cluster, *options: str) -> tuple[int, dict[str, Any]]:
    """Provision the other version; the exit code, and the record with its hosts by name."""
    done, _ = cluster.run("provision", "--yes", "--format", "json", *OTHER, *options)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, {**record, "hosts": {host["host"]: host for host in record["hosts"]}}


def links(cluster: Cluster) -> dict[str, set[str]]:
    """Return the target of each link on all nodes; all nodes agree where each set has one member."""
    found: dict[str, set[str]] = {}
    for node in NODES:
        for name in ("openmpi", "mpi4py", "python_env"):
            found.setdefault(name, set()).add(cluster.on(node, "readlink", f"/usr/local/{name}"))
    return found


def folders(cluster: Cluster, node: str) -> str:
    """Return the names below /usr/local of another version of Open MPI and of anything unfinished."""
    return cluster.on(node, "sh", "-c", "cd /usr/local; ls -d openmpi-4* .[a-z]* 2>/dev/null; true")


@contextlib.contextmanager
def rank(cluster: Cluster, node: str) -> Iterator[None]:
    """Let a process of root run that has a rank's environment."""
    argv = ["sh", "-c", "OMPI_COMM_WORLD_RANK=0 setsid sleep 997 > /dev/null 2>&1 & echo $!"]
    pid = cluster.engine.text("exec", cluster.box.node(node).container, *argv)
    try:
        yield
    finally:
        cluster.on(node, "kill", pid)


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Cluster) -> Cluster:
    return fresh_cluster


def test_a_node_that_cannot_install_keeps_all_links_and_is_named(cluster: Cluster) -> None:
    before = links(cluster)
    forth = "mount --bind /usr/local /usr/local && mount -o remount,ro,bind /usr/local"
    with planting.changed(cluster, "node3", forth, "umount /usr/local"):
        code, record = upgraded(cluster)
    assert code == 2, record
    assert "read-only" in record["hosts"]["node3"]["message"]
    assert record["hosts"]["node3"]["failed_stage"] == "openmpi"
    for name in ("node1", "node2", "node4"):
        assert "No link is switched, because node3 is not ready" in record["hosts"][name]["message"]
    assert links(cluster) == before
    assert "openmpi-4.1.4-" in folders(cluster, "node1")


def test_ranks_are_named_and_no_link_changes(cluster: Cluster) -> None:
    before = links(cluster)
    with rank(cluster, "node2"):
        code, record = upgraded(cluster)
    assert (code, record["outcome"]) == (2, "failed"), record
    (problem,) = record["problems"]
    assert (problem["host"], problem["subject"]) == ("node2", "jobs")
    assert "sleep 997" in problem["problem"]
    assert "--while-busy" in problem["cure"]
    assert "node2" in record["hosts"]["node1"]["message"]
    assert links(cluster) == before


def test_a_proof_that_fails_on_one_node_brings_back_the_links_of_all(cluster: Cluster) -> None:
    before = links(cluster)
    broken = f"cp {SETTINGS} /root/settings && echo 'btl = missing' >> {SETTINGS}"
    with planting.changed(cluster, "node2", broken, f"cp /root/settings {SETTINGS}; rm /root/settings"):
        code, record = upgraded(cluster)
    assert code == 2, record
    failed = record["hosts"]["node2"]["message"]
    assert "openmpi: '/usr/local/openmpi/bin/mpirun" in failed
    assert "Every link leads where it led before." in failed
    others = {record["hosts"][name]["message"] for name in ("node1", "node3", "node4")}
    assert others == {"node2 failed or cannot be reached. Every link leads where it led before."}
    assert links(cluster) == before
    assert folders(cluster, "node2").startswith("openmpi-4.1.4-"), "the new version waits beside the old one"


@pytest.mark.long
def test_an_upgrade_changes_all_links_beside_a_running_rank_where_that_is_asked_for(cluster: Cluster) -> None:
    before = links(cluster)
    with rank(cluster, "node1"):
        code, record = upgraded(cluster, "--while-busy")
        assert code == 0, record
        now = links(cluster)
        assert {name for name in now if now[name] != before[name]} == {"openmpi", "mpi4py"}
        assert all(len(targets) == 1 for targets in now.values())
        assert f"/usr/local/openmpi -> {next(iter(now['openmpi']))}" in record["hosts"]["node3"]["changes"]
        code, record = upgraded(cluster)
    assert code == 0, "a run that switches nothing is not refused"
    assert [folders(cluster, name) for name in NODES] == [next(iter(now["openmpi"]))] * len(NODES)
