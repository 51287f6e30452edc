"""The fabric on real nodes that all carry a docker0 of the same address, as machines with Docker do."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import planting
import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.inventory import ansible_inventory
from clusterctl.model import fabric
from clusterctl.model.results import Verdict
from clusterctl.remote import facts, network_probe
from validated import NODES, Cluster, result

pytestmark = pytest.mark.cluster

HELLO = "/usr/local/openmpi/libexec/clusterctl-hello"
SETTINGS = "/usr/local/etc/openmpi"
RECORD = "/etc/clusterctl/fabric.json"
TWIN = "docker0 172.17.0.0/16"
SAME = "carries the same address 172.17.0.1 on node[1-4]"


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Cluster) -> Cluster:
    """Four nodes; each has a docker0 with a carrier before its network is chosen."""
    for node in NODES:
        fresh_cluster.on(node, "rm", "-r", RECORD, SETTINGS)
    planting.docker0(fresh_cluster, NODES)
    code, _, said = provision(fresh_cluster, "fabric")
    assert code == 0, said
    ssh(fresh_cluster, "node1", "sh", "-c", "".join(f"echo {node} slots=2 >> hosts; " for node in NODES))
    return fresh_cluster


def ssh(cluster: Cluster, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = sandboxes.ssh_command(cluster.box, cluster.box.node(node), argv)
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=240)


def mpirun(cluster: Cluster, within_s: float, *options: str) -> tuple[bool, str, float]:
    """Run eight ranks on four nodes as a user would; whether all of them were done in time, with what they said."""
    began = time.monotonic()
    argv = ["mpirun", *options, "-np", "8", "--hostfile", "hosts", HELLO]
    # By a file: what a killed mpirun leaves behind would hold the connection open.
    script = 'out=$(mktemp); timeout --kill-after=5 "$0" "$@" > "$out" 2>&1; code=$?; cat "$out"; rm "$out"; exit $code'
    done = ssh(cluster, "node1", "sh", "-c", script, str(round(within_s)), *argv)
    said = done.stdout + done.stderr
    return done.returncode == 0 and said.count("library_version") == 8, said, time.monotonic() - began


def provision(cluster: Cluster, *tags: str, **variables: Any) -> tuple[int, dict[str, Any], str]:
    """Run some roles; the exit code, the record and what was said."""
    options = ("--yes", "--no-validate", "--format", "json", "--tags", ",".join(tags), "-e", json.dumps(variables))
    done, _ = cluster.run("provision", *options)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def cable_all(cluster: Cluster, stack: contextlib.ExitStack) -> None:
    """Give each pair of nodes a cable: node1 has cx1, cx2 and cx3, node2 cx1, cx4 and so on."""
    for number, (one, other) in enumerate(itertools.combinations(NODES, 2), start=1):
        stack.enter_context(cluster.cable({one: f"cx{number}", other: f"cx{number}"}, f"10.76.{number}.0/30"))


def causes(cluster: Cluster) -> list[str]:
    """Return what doctor finds."""
    done, _ = cluster.run("doctor", "--format", "json")
    return [one["cause"] for one in json.loads(done.stdout)["findings"]]


def record(cluster: Cluster, node: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(cluster.on(node, "cat", RECORD))
    return read


def look(cluster: Cluster) -> tuple[fabric.Candidates, fabric.Decision]:
    hosts = ansible_inventory.load(cluster.box.inventory).hosts
    found = fabric.candidates(facts.gather(hosts).facts)
    return found, fabric.decide(found, network_probe.probe(hosts, found))


@contextlib.contextmanager
def without_settings(cluster: Cluster) -> Iterator[None]:
    for node in NODES:
        cluster.on(node, "mv", SETTINGS, f"{SETTINGS}.aside")
    try:
        yield
    finally:
        for node in NODES:
            cluster.on(node, "mv", f"{SETTINGS}.aside", SETTINGS)


def mop_up(cluster: Cluster) -> None:
    """Take away what a job leaves that hung until it was killed."""
    script = "pkill -KILL -u cluster 'mpirun|orted|prte|clusterctl'; find /tmp /dev/shm -user cluster -delete; true"
    for node in NODES:
        cluster.on(node, "sh", "-c", script)
    assert cluster.is_clean()


@pytest.mark.parametrize("version", ["5.0.7", pytest.param("4.1.4", marks=pytest.mark.long)])
def test_a_bare_mpirun_works_and_without_the_role_it_does_not(cluster: Cluster, version: str) -> None:
    code, _, said = provision(cluster, "openmpi", "fabric", openmpi_version=version)
    assert code == 0, said
    works, said, seconds = mpirun(cluster, 120)
    assert works, said
    assert version in said
    assert "WARNING" not in said
    with without_settings(cluster):
        works, _, _ = mpirun(cluster, max(15, 5 * seconds))
    mop_up(cluster)
    assert not works, "docker0 is no fault here, so nothing was proven"


def test_daemons_start_ranks_without_threads_that_would_lose_a_short_one(cluster: Cluster) -> None:
    """A rank's parent is the daemon of its node; prterun has three threads, and a daemon with a pool has 18."""
    count = "set -- /proc/$PPID/task/*; echo $#"
    done = ssh(cluster, "node1", "mpirun", "-np", "8", "--hostfile", "hosts", "sh", "-c", count)
    assert done.returncode == 0, done.stderr
    threads = [int(number) for number in done.stdout.split()]
    assert len(threads) == 8
    assert max(threads) < 8


def test_the_twin_is_rejected_in_words_and_a_second_run_changes_nothing(cluster: Cluster) -> None:
    subnet = record(cluster, "node1")["cidrs"]
    for number, node in enumerate(NODES, start=1):
        said = record(cluster, node)
        assert said["interface"] == "eth0"
        assert said["address"] == cluster.box.nodes[number - 1].address
        assert said["rejected"] == {TWIN: SAME}
        assert said["cidrs"] == subnet
    assert cluster.on("node2", "cat", "/etc/nccl.conf").splitlines()[1] == "NCCL_SOCKET_IFNAME==eth0"
    code, again, _ = provision(cluster, "fabric")
    assert code == 0
    assert [host["changed"] for host in again["hosts"]] == [0] * 4
    found, decision = look(cluster)
    assert found.rejected == (fabric.Rejection(TWIN, NODES, SAME),)
    assert decision.network is not None
    assert "12 connections came through" in decision.reason


def test_a_network_that_one_node_lacks_is_rejected_with_its_name(cluster: Cluster) -> None:
    with cluster.second_network("eth1", "10.77.0.0/24", NODES[:3]):
        found, decision = look(cluster)
        assert ("eth1 10.77.0.0/24", "node4 has no address in it") in [
            (one.network, one.reason) for one in found.rejected
        ]
        assert set(decision.network.interfaces.values()) == {"eth0"}
        code, refused, said = provision(cluster, "fabric", fabric_cidr="10.77.0.0/24")
    assert code == 1, said
    (problem,) = refused["problems"]
    assert problem["host"] == "node4"
    assert "fabric_cidr 10.77.0.0/24: node4 has no address of its own there" in problem["problem"]


def test_two_equal_networks_share_the_messages_until_one_is_slow_or_fails(cluster: Cluster) -> None:
    with cluster.second_network("eth1", "10.79.0.0/24"):
        code, _, said = provision(cluster, "fabric")
        assert code == 0, said
        assert [one["interface"] for one in record(cluster, "node2")["carriers"]] == ["eth0", "eth1"]
        shared = result(cluster.validate("network"), "network")
        assert shared.verdict is Verdict.PASS, shared.reason
        assert "went over eth0 and eth1, the fabric" in shared.reason
        with planting.slow_link(cluster, "node3", "200mbit", interface="eth1"):
            slow = result(cluster.validate("network"), "network")
        assert (slow.verdict, slow.hosts) == (Verdict.FAIL, ("node3",)), slow.reason
        assert "node3: the rail eth1 10.79.0.0/24 is slow" in slow.reason
        cluster.in_network_of("node3", "ip", "link", "set", "eth1", "down")
        assert "eth1 is down, the rail in 10.79.0.0/24 that carries messages to node[1-2,4]" in causes(cluster)
        code, _, said = provision(cluster, "fabric")
        assert code == 0, said
        assert "carriers" not in record(cluster, "node2")
        works, said, _ = mpirun(cluster, 120)
        assert works, said
    code, _, said = provision(cluster, "fabric")
    assert code == 0, said
    assert cluster.is_clean()


def test_a_link_local_network_that_is_faster_carries_the_jobs(cluster: Cluster) -> None:
    with cluster.second_network("eth1", "169.254.0.0/16", mtu=9000):
        code, _, said = provision(cluster, "fabric")
        assert code == 0, said
        assert record(cluster, "node1")["cidrs"] == ["169.254.0.0/16"]
        works, said, _ = mpirun(cluster, 120)
        assert works, said
        assert "WARNING" not in said
    code, _, said = provision(cluster, "fabric")
    assert code == 0, said
    assert record(cluster, "node1")["interface"] == "eth0"


def test_cables_are_left_alone_where_open_mpi_cannot_tell_them_apart(cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        cable_all(cluster, stack)
        code, told, said = provision(cluster, "fabric")
        assert code == 0, said
        assert "Open MPI of node[1-4] cannot tell which of them leads to which node" in json.dumps(told) + said
        works, said, _ = mpirun(cluster, 120)
        assert works, said
    assert "carriers" not in record(cluster, "node1")


@pytest.mark.long
def test_a_mesh_of_cables_carries_the_messages_and_a_dead_one_is_named(cluster: Cluster) -> None:
    """Open MPI is built anew for it, with libnl."""
    with contextlib.ExitStack() as stack:
        cable_all(cluster, stack)
        code, _, said = provision(cluster, "openmpi", "mpi4py", "fabric")
        assert code == 0, said
        carriers = record(cluster, "node2")["carriers"]
        assert [one["interface"] for one in carriers] == ["cx1", "cx4", "cx5"]
        assert record(cluster, "node2")["interface"] == "eth0"
        carried = result(cluster.validate("network"), "network")
        assert carried.verdict is Verdict.PASS, carried.reason
        assert "cx" in carried.reason
        assert "eth0" not in carried.reason
        cluster.in_network_of("node2", "ip", "link", "set", "cx4", "down")
        assert "cx4 is down, the cable in 10.76.4.0/30 that carries messages to node3" in causes(cluster)
        code, _, said = provision(cluster, "fabric")
        assert code == 0, said
        assert "carriers" not in record(cluster, "node2")
    code, _, said = provision(cluster, "openmpi", "mpi4py", "fabric")
    assert code == 0, said
    assert cluster.is_clean()


@pytest.mark.long
def test_a_pinned_interface_is_the_only_one_that_is_used(cluster: Cluster) -> None:
    """Behind docker0 and a veth without IPv4, PRRTE 3.0 does not find this network in its CIDR form."""
    with cluster.second_network("eth1", "10.78.0.0/25"):
        code, _, said = provision(cluster, "openmpi", "fabric", openmpi_version="5.0.7", fabric_interfaces=["eth1"])
        assert code == 0, said
        works, said, _ = mpirun(cluster, 120, "--prtemca", "oob_base_verbose", "10")
    assert works, said
    assert "WARNING" not in said
    used = [line.rpartition(" adding ")[2].split()[0] for line in said.splitlines() if "our list of V4" in line]
    assert used == ["10.78.0.1"], "and not docker0, to which the other daemons would connect"
    code, _, said = provision(cluster, "fabric")
    assert code == 0, said
    assert record(cluster, "node4")["interface"] == "eth0"


def test_ports_that_are_dropped_between_two_nodes_are_named_by_pair(cluster: Cluster) -> None:
    rule = f"ip saddr {cluster.box.node('node1').address} tcp dport 1024-65535 tcp flags & (syn | ack) == syn drop"
    chain = f"chain input {{\n type filter hook input priority 0; policy accept;\n {rule}\n }}"
    cluster.in_network_of("node2", "nft", f"table inet planted {{\n {chain}\n}}")
    try:
        _, decision = look(cluster)
        assert decision.network is None
        assert [(one.source, one.target, one.kind) for one in decision.failures] == [("node1", "node2", "timeout")]
        cluster.on("node3", "rm", RECORD)  # what all have on record is not proven again
        code, failed, said = provision(cluster, "fabric")
        assert code == 2, said
        (problem,) = failed["problems"]
        assert problem["host"] == "node1"
        assert problem["problem"].startswith("node1 to node2: timed out; node2 can be reached by other nodes")
    finally:
        cluster.in_network_of("node2", "nft", "delete", "table", "inet", "planted")
    code, _, said = provision(cluster, "fabric")
    assert code == 0, said
    assert cluster.is_clean()


@pytest.mark.long
def test_a_node_that_joined_by_limit_is_not_proven_until_all_have_tried_it(cluster: Cluster) -> None:
    cluster.on("node4", "rm", RECORD)
    options = ("--yes", "--no-validate", "--format", "json", "--tags", "fabric", "--limit", "node4")
    done, _ = cluster.run("provision", *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert any("node4 and node[1-3]" in warning and "not proven" in warning for warning in told["warnings"]), told
    assert record(cluster, "node4")["proven"] == []
    rule = f"ip saddr {cluster.box.node('node1').address} tcp dport 1024-65535 tcp flags & (syn | ack) == syn drop"
    chain = f"chain input {{\n type filter hook input priority 0; policy accept;\n {rule}\n }}"
    cluster.in_network_of("node4", "nft", f"table inet planted {{\n {chain}\n}}")
    try:
        code, failed, said = provision(cluster, "fabric")
        assert code == 2, said
        assert [problem["problem"].partition(";")[0] for problem in failed["problems"]] == ["node1 to node4: timed out"]
    finally:
        cluster.in_network_of("node4", "nft", "delete", "table", "inet", "planted")
    code, again, said = provision(cluster, "fabric")
    assert code == 0, said
    assert again["warnings"] == []
    assert record(cluster, "node4")["proven"] == ["node1", "node2", "node3"]
