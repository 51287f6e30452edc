"""UCX on four real nodes: built from source, Open MPI on it, and messages that go through it, as its own log tells."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterctl.launch.mpirun import PathOptions, Transport
from clusterctl.model.results import Verdict
from clusterctl.sandbox import Sandbox
from validated import Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CLUSTERCTL = [sys.executable, "-m", "clusterctl"]
NODES = ("node1", "node2", "node3", "node4")
CONF = "/usr/local/etc/ucx/ucx.conf"
HELLO = "/usr/local/openmpi/libexec/clusterctl-hello"
THROUGH = ("-x", "UCX_TLS=tcp,sm,self", "-x", "UCX_LOG_LEVEL=info")
BY_UCX = PathOptions(network=Transport.UCX)


def wish(cluster: Cluster, asked: str, **more: object) -> None:
    """Set openmpi_ucx in the inventory, beside what the sandbox has."""
    variables = cluster.box.inventory.parent / "group_vars" / "all.yml"
    known = json.loads(variables.read_text(encoding="utf-8"))
    variables.write_text(json.dumps({**known, "openmpi_ucx": asked, **more}), encoding="utf-8")


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., Sandbox]) -> Iterator[Cluster]:
    found = Cluster(sandbox("ucx", nodes=len(NODES)))
    wish(found, "always")
    found.provision()
    with found.second_network("eth1", "10.213.9.0/24", NODES):
        yield found


def test_a_ucx_that_cannot_be_built_is_named_with_its_step_and_leaves_nothing(
    sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """Its source is an archive of our own, whose configure ends as that of a UCX that lacks something."""
    (source := tmp_path / "ucx-1.13.1").mkdir()
    (source / "configure").write_text("#!/bin/sh\necho 'configure: error: verbs are not usable'\nexit 1\n")
    (source / "configure").chmod(0o755)
    with tarfile.open(tmp_path / "ucx.tar.gz", "w:gz") as archive:
        archive.add(source, arcname=source.name)
    digest = hashlib.sha256((tmp_path / "ucx.tar.gz").read_bytes()).hexdigest()
    made = Cluster(sandbox("ucx-broken", nodes=2))
    wish(made, "always", ucx_sources=[{"path": str(tmp_path / "ucx.tar.gz"), "sha256": digest}])
    done, _unused = made.run("provision", "--yes", "--no-validate", "--format", "json")
    assert done.returncode == 2, done.stderr
    failed = {host["host"]: host["message"] for host in json.loads(done.stdout)["hosts"]}
    words = " ".join(failed["node1"].split())
    assert "the step 'configure' of building ucx 1.13.1 ended with 1" in words
    assert "configure: error: verbs are not usable" in words
    for node in ("node1", "node2"):
        assert made.on(node, "sh", "-c", "ls -d /usr/local/ucx* /usr/local/openmpi* 2>/dev/null; true") == ""


def logged(cluster: Cluster) -> set[str]:
    """Return the transports for messages that UCX's log names in a run of one rank on each node."""
    inventory = str(cluster.box.inventory)
    words = ("--network", "ucx", *THROUGH, "-np", str(len(NODES)), "--map-by", "node", inventory, "--", HELLO)
    done = subprocess.run([*CLUSTERCTL, "run", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r'"rank": \d', done.stdout)) == len(NODES)
    return {word for words in re.findall(r"\btag\(([^)]*)\)", done.stdout + done.stderr) for word in words.split()}


def test_the_checks_of_mpi_pass_through_ucx_and_its_log_names_the_fabric(cluster: Cluster) -> None:
    record = cluster.validate("hello", "point_to_point", "allreduce", "network", path=BY_UCX)
    assert {one.verdict for one in record.checks} == {Verdict.PASS}
    network = result(record, "network")
    assert re.search(r"went over eth0, the fabric, by UCX over .*tcp/eth0", network.reason), network.reason
    assert "eth1" not in network.reason
    assert cluster.is_clean(NODES)


def test_the_interface_reaches_ucx_by_its_file(cluster: Cluster) -> None:
    assert "UCX_NET_DEVICES=eth0" in cluster.on("node1", "cat", CONF)
    assert {one for one in logged(cluster) if one.startswith("tcp/")} == {"tcp/eth0"}
    with cluster.with_file(CONF, "UCX_NET_DEVICES=eth1\n", nodes=NODES):
        assert {one for one in logged(cluster) if one.startswith("tcp/")} == {"tcp/eth1"}
        wrong = result(cluster.validate("network", path=BY_UCX), "network")
    assert (wrong.verdict, wrong.hosts) == (Verdict.FAIL, NODES)
    assert "not all of what was sent went over the fabric, eth0" in wrong.reason


def test_without_ucx_its_settings_go_and_a_rollback_brings_it_back(cluster: Cluster) -> None:
    with_it = cluster.on("node2", "readlink", "/usr/local/openmpi")
    wish(cluster, "never")
    cluster.provision()
    without = cluster.on("node2", "readlink", "/usr/local/openmpi")
    assert without != with_it
    assert "UCX_NET_DEVICES" not in cluster.on("node2", "sh", "-c", f"cat {CONF} 2>/dev/null; true")
    words = ("--network", "ucx", str(cluster.box.inventory), "--", HELLO)
    refused = subprocess.run([*CLUSTERCTL, "run", *words], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "was built without UCX; set openmpi_ucx to always" in " ".join(refused.stderr.split())
    back, _unused = cluster.run("rollback", "--yes")
    assert back.returncode == 0, back.stderr
    assert cluster.on("node2", "readlink", "/usr/local/openmpi") == with_it
    assert [one for one in logged(cluster) if one.startswith("tcp/")]


def test_an_uninstall_leaves_nothing_of_it(cluster: Cluster) -> None:
    done, _unused = cluster.run("uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    left = cluster.on("node1", "sh", "-c", "ls -d /usr/local/ucx* /usr/local/etc/ucx 2>/dev/null; true")
    assert left == ""
