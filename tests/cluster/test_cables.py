"""Direct cables, rails and link-local networks between three real nodes: used, and the one that fails is named."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import planting
import pytest
from clusterctl.model.job_outcome import TIMED_OUT
from clusterctl.model.results import Verdict
from clusterctl.sandbox import Sandbox
from validated import CLUSTERCTL, Cluster, result
from waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MEMBERS = ("node1", "node2", "node3")
RANK = "from mpi4py import MPI; print(MPI.Get_processor_name(), MPI.COMM_WORLD.allreduce(1))"


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., Sandbox]) -> Cluster:
    found = Cluster(sandbox("cables", nodes=len(MEMBERS)))
    found.provision()
    return found


def chosen(cluster: Cluster, *tags: str) -> str:
    """Choose the network anew; what was said."""
    done, _unused = cluster.run("provision", "--yes", "--no-validate", "--format", "json", "--tags", ",".join(tags))
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def on_record(cluster: Cluster, node: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(cluster.on(node, "cat", "/etc/clusterctl/fabric.json"))
    return read


def looked(cluster: Cluster) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Return the causes that doctor finds, by their nodes, and its notes."""
    said = json.loads(cluster.run("doctor", "--format", "json")[0].stdout)
    return {tuple(one["hosts"]): one["cause"] for one in said["findings"]}, said["notes"]


def put_down(cluster: Cluster, node: str, interface: str) -> None:
    cluster.in_network_of(node, "ip", "link", "set", interface, "down")


@pytest.fixture
def ring(cluster: Cluster) -> Iterator[Cluster]:
    """Give each two nodes a cable: cx1 between node1 and node2, cx2 between 1 and 3, cx3 between 2 and 3."""
    with contextlib.ExitStack() as stack:
        for number, ends in enumerate(itertools.combinations(MEMBERS, 2), start=1):
            stack.enter_context(cluster.cable(dict.fromkeys(ends, f"cx{number}"), f"10.76.{number}.0/30"))
        chosen(cluster, "openmpi", "mpi4py", "fabric")
        yield cluster
    chosen(cluster, "openmpi", "mpi4py", "fabric")
    assert cluster.is_clean(MEMBERS)


def test_a_ring_of_three_carries_the_messages_and_a_slow_edge_is_named(ring: Cluster) -> None:
    assert [one["interface"] for one in on_record(ring, "node2")["carriers"]] == ["cx1", "cx3"]
    carried = result(ring.validate("network"), "network")
    assert carried.verdict is Verdict.PASS, carried.reason
    assert "cx1 and cx3 on node2" in carried.reason
    with planting.slow_link(ring, "node2", "40mbit", interface="cx3"):
        slow = result(ring.validate("network"), "network")
    assert (slow.verdict, slow.hosts) == (Verdict.FAIL, ("node2", "node3")), slow.reason
    assert "node[2-3]: the cable cx3 10.76.3.0/30 is slow" in slow.reason
    assert "from node2 to node3" in slow.reason


def test_a_dead_edge_of_a_ring_is_named_and_the_lan_takes_over(ring: Cluster) -> None:
    put_down(ring, "node2", "cx3")
    dead = ring.validate("network")
    assert (result(dead, "network").verdict, set(result(dead, "network").hosts)) == (Verdict.FAIL, {"node2", "node3"})
    words = "cx3 is down, the cable in 10.76.3.0/30 that carries messages to"
    assert looked(ring)[0] == {("node2",): f"{words} node3", ("node3",): f"{words} node2"}
    chosen(ring, "fabric")
    assert "carriers" not in on_record(ring, "node2")
    assert result(ring.validate("network"), "network").verdict is Verdict.PASS


def test_a_rail_that_is_dead_between_two_nodes_is_named_by_both(cluster: Cluster) -> None:
    with cluster.second_network("eth1", "10.79.0.0/24", MEMBERS):
        chosen(cluster, "fabric")
        assert [one["interface"] for one in on_record(cluster, "node3")["carriers"]] == ["eth0", "eth1"]
        chain = "type filter hook input priority 0; policy accept;\niifname eth1 ip saddr 10.79.0.1 drop;"
        cluster.in_network_of("node3", "nft", f"table inet planted {{ chain input {{ {chain} }}\n }}")
        try:
            dead = result(cluster.validate("network"), "network")
        finally:
            cluster.in_network_of("node3", "nft", "delete", "table", "inet", "planted")
    assert (dead.verdict, set(dead.hosts)) == (Verdict.FAIL, {"node1", "node3"}), dead.reason
    assert "connections between node1 and node3 in 10.79.0.0/24 time out" in dead.reason
    chosen(cluster, "fabric")


def test_a_link_local_network_of_one_slow_node_and_of_one_without_it(cluster: Cluster) -> None:
    with cluster.second_network("eth1", "169.254.0.0/16", MEMBERS, mtu=9000):
        chosen(cluster, "fabric")
        assert on_record(cluster, "node1")["cidrs"] == ["169.254.0.0/16"]
        assert result(cluster.validate("network"), "network").verdict is Verdict.PASS
        with planting.slow_link(cluster, "node3", "40mbit", interface="eth1"):
            slow = result(cluster.validate("network"), "network")
        assert (slow.verdict, slow.hosts) == (Verdict.FAIL, ("node3",)), slow.reason
        assert "node3: the rail eth1 169.254.0.0/16 is slow" in slow.reason
        put_down(cluster, "node3", "eth1")
        assert "eth1 is down, the rail in 169.254.0.0/16" in looked(cluster)[0]["node3",]
        said = chosen(cluster, "fabric")
        assert on_record(cluster, "node1")["interface"] == "eth0"
        assert "eth1 169.254.0.0/16 rejected: " in said
        (note,) = [one for one in looked(cluster)[1] if "169.254.0.0/16" in one]
        assert note.startswith("eth1 169.254.0.0/16 on node[1-3] is link-local, and carries no jobs: ")
    chosen(cluster, "fabric")


@contextlib.contextmanager
def cable_of_ipv6(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Join two nodes by a cable that has the addresses of its link alone, those that the kernel makes."""
    with cluster.cable(dict.fromkeys(nodes, "cx1"), "10.76.9.0/30"):
        for node in nodes:
            cluster.in_network_of(node, "ip", "-4", "address", "flush", "dev", "cx1")
        assert eventually(lambda: all(has_a_usable_link_address(cluster, node) for node in nodes))
        yield


def has_a_usable_link_address(cluster: Cluster, node: str) -> bool:
    text = cluster.in_network_of(node, "ip", "-6", "address", "show", "dev", "cx1")
    return "fe80" in text and "tentative" not in text


def test_a_cable_with_ipv6_of_its_link_alone_is_told_and_jobs_take_the_lan(cluster: Cluster) -> None:
    """Open MPI is asked as well: without another interface, its TCP transport does not start."""
    why = "has link-local addresses of IPv6 alone on node[1-2], over which Open MPI sends nothing; give it addresses of"
    with cable_of_ipv6(cluster, "node1", "node2"):
        said = chosen(cluster, "fabric")
        assert f"cx1 rejected: {why} IPv4" in said
        assert on_record(cluster, "node1")["interface"] == "eth0"
        carried = result(cluster.validate("network"), "network")
        assert carried.verdict is Verdict.PASS, carried.reason
        assert "eth0" in carried.reason
        assert f"cx1 on node[1-2] is link-local, and carries no jobs: {why} IPv4." in looked(cluster)[1]
        words = ("--mca", "btl_tcp_if_include", "cx1", "--mca", "btl_tcp_disable_family", "4")
        options = ("--limit", "node1,node2", "--timeout", "120", *words, str(cluster.box.inventory))
        argv = ["run", *options, "--", "python", "-m", "mpi4py", "-c", RANK]  # a rank that fails ends the others
        ran = subprocess.run([*CLUSTERCTL, *argv], capture_output=True, text=True, check=False)
        assert ran.returncode not in {0, TIMED_OUT}, ran.stdout + ran.stderr
    with cluster.cable(dict.fromkeys(("node1", "node2"), "cx1"), "169.254.0.0/16"):
        why = "joins node[1-2] alone, and node1 and node3, node2 and node3 have no such link."
        assert f"cx1 169.254.0.0/16 rejected: {why}" in chosen(cluster, "fabric")


def test_a_node_that_the_controller_reaches_by_a_link_local_address(cluster: Cluster, tmp_path: Path) -> None:
    """Its scope is an interface of this machine, and the other nodes need another address."""
    own = cluster.box.node("node1").address
    link = re.search(r"fe80:[0-9a-f:]+", cluster.in_network_of("node1", "ip", "-6", "address", "show", "dev", "eth0"))
    way = subprocess.run(["ip", "-json", "route", "get", own], capture_output=True, check=True).stdout
    assert link is not None
    strict = "StrictHostKeyChecking=yes"
    known = cluster.box.inventory.read_text(encoding="utf-8").replace(strict, strict.replace("yes", "accept-new"))
    known = re.sub(r"UserKnownHostsFile=\S+", f"UserKnownHostsFile={tmp_path}/known_hosts", known)
    path = tmp_path / "inventory.ini"
    path.write_text(known.replace(f"={own}", f"={link[0]}%{json.loads(way)[0]['dev']} cluster_address={own}"))
    looked_at = subprocess.run([*CLUSTERCTL, "doctor", str(path)], capture_output=True, text=True, check=False)
    assert looked_at.returncode == 0, looked_at.stdout + looked_at.stderr
    assert "3 hosts: nothing wrong was found" in looked_at.stdout
