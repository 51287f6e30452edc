"""Nodes with addresses of IPv6 alone: provision, prove, run, and look at them, with a docker0 of IPv4 in the way.

Long: a cluster of its own, and one node of IPv4 that fills the cache, since nodes of IPv6 alone reach no IPv4 mirror.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import planting
import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.inventory import ansible_inventory
from clusterctl.model import fabric
from clusterctl.remote import facts
from validated import CLUSTERCTL, Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MEMBERS = ("node1", "node2", "node3")


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox]) -> Cluster:
    Cluster(sandbox("ipv6-cache", nodes=1)).provision()
    made = Cluster(sandbox("ipv6", nodes=len(MEMBERS), ipv6=True))
    planting.docker0(made, MEMBERS)
    made.last = made.provision()
    return made


def test_the_cluster_is_proven_over_ipv6_and_a_second_run_changes_nothing(cluster: Cluster) -> None:
    for node in cluster.box.nodes:
        addresses = json.loads(cluster.in_network_of(node.name, "ip", "-4", "-json", "address", "show", "dev", "eth0"))
        assert not any(entry.get("addr_info") for entry in addresses), "nothing would be proven"
        record = json.loads(cluster.on(node.name, "cat", "/etc/clusterctl/fabric.json"))
        assert (record["cidrs"], record["address"]) == ([cluster.box.subnet], node.address)
        assert f"{node.address} {node.name}" in cluster.on("node1", "cat", "/etc/hosts").splitlines()
    record = cluster.validate("hello", "allreduce", "network")
    assert record.verdict == "PASS", record
    assert result(record, "hello").reason.startswith(f"{2 * len(MEMBERS)} ranks on {len(MEMBERS)} nodes")
    again, _ = cluster.provision()
    assert [host["changed"] for host in again["hosts"]] == [0] * len(MEMBERS)


def test_a_program_runs_on_all_nodes_and_doctor_finds_nothing_wrong(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "name.py").write_text("import socket\nprint(socket.gethostname())\n", encoding="utf-8")
    argv = ["run", str(cluster.box.inventory), "--prefix", "none", "--sync", str(tmp_path), "--", "python", "name.py"]
    ran = subprocess.run([*CLUSTERCTL, *argv], capture_output=True, text=True, check=False)
    assert sorted(ran.stdout.split()) == sorted(MEMBERS * 2), ran.stderr
    looked, _ = cluster.run("doctor")
    assert looked.returncode == 0, looked.stderr + looked.stdout
    assert "nothing wrong was found" in looked.stdout


def test_a_privacy_address_is_not_taken_for_the_node(cluster: Cluster) -> None:
    """The kernel makes one from a template; it is another one the next day."""
    prefix = cluster.box.subnet.partition("::/")[0]
    cluster.in_network_of("node2", "sysctl", "-qw", "net.ipv6.conf.eth0.use_tempaddr=2")
    cluster.in_network_of("node2", "ip", "address", "add", f"{prefix}::7:0:0:1/64", "dev", "eth0", "mngtmpaddr")
    hosts = ansible_inventory.load(cluster.box.inventory).hosts
    nodes = facts.gather(hosts).facts
    passing = [one for link in nodes["node2"].interfaces for one in link.addresses if one.temporary]
    assert passing, "the kernel made none"
    (network,) = fabric.candidates(nodes).networks
    assert network.addresses["node2"] not in {one.address for one in passing}
