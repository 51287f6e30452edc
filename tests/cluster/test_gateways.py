"""Hosts that are asked through a gateway, on three real nodes: by the mesh's own keys, and when the gateway dies."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import InventoryOptions
from clusterctl.remote import facts
from validated import CLUSTERCTL, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl import sandbox as sandboxes
    from clusterctl.model.facts import Probe

pytestmark = pytest.mark.cluster

NAMES = {"node1", "node2", "node3"}
THROUGH_FIRST = "node1"
HOPS = "[s]sh -T -a -x"  # a gateway's logins in pgrep's words, which do not find themselves


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox]) -> Cluster:
    made = Cluster(sandbox("gateways", nodes=3))
    done, _ = made.run("provision", "--yes", "--tags", "hosts,ssh_mesh")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture
def _without_direct_way(cluster: Cluster) -> Iterator[None]:
    """Leave the controller no way to node2 and node3: only the mesh reaches them."""
    controller = next(ipaddress.ip_network(cluster.box.subnet).hosts())
    rules = (
        "add table inet planted",
        "add chain inet planted input { type filter hook input priority 0; }",
        f"add rule inet planted input ip saddr {controller} tcp dport 22 reject",
    )
    for node in ("node2", "node3"):
        cluster.in_network_of(node, "nft", "; ".join(rules))
    yield
    for node in ("node2", "node3"):
        cluster.in_network_of(node, "nft", "delete table inet planted")


def look(cluster: Cluster, gateways: str | None, **asked: Any) -> Probe:
    found = ansible_inventory.load(cluster.box.inventory, InventoryOptions(gateways=gateways))
    return facts.gather(found.hosts, timeout_s=30, **asked)


@pytest.mark.usefixtures("_without_direct_way")
def test_hosts_that_the_controller_cannot_reach_answer_through_their_gateway(cluster: Cluster) -> None:
    assert set(look(cluster, "0").failures) == {"node2", "node3"}
    probe = look(cluster, THROUGH_FIRST)
    assert set(probe.facts) == NAMES
    assert {name: node.hostname for name, node in probe.facts.items()} == {name: name for name in NAMES}
    assert probe.notes == ()


def test_doctor_and_its_hardware_look_go_through_gateways(cluster: Cluster) -> None:
    argv = [*CLUSTERCTL, "doctor", "--quick", "--gateways", "1", "--format", "json", str(cluster.box.inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["unreachable"] == []
    assert not [note for note in found["notes"] if "gateway" in note]


def test_a_gateway_that_cannot_log_in_is_named_once_and_the_host_asked_directly(cluster: Cluster) -> None:
    path = "/home/cluster/.ssh/authorized_keys"
    without_mesh = cluster.on("node2", "grep", "-v", "clusterctl:", path)
    with cluster.with_file(path, f"{without_mesh}\n", owner="cluster", nodes=("node2",)):
        probe = look(cluster, THROUGH_FIRST)
    assert set(probe.facts) == NAMES
    (note,) = probe.notes
    assert note.startswith("node2: asked directly, because the gateway node1 could not ask them")
    assert "Permission denied" in note


def test_a_host_with_another_host_key_is_not_asked_by_its_gateway(cluster: Cluster) -> None:
    known = "/etc/ssh/ssh_known_hosts"
    cluster.on("node1", "sh", "-c", f"cp -a {known} {known}.aside; sed -i '/^node3,/d' {known}")
    try:
        probe = look(cluster, THROUGH_FIRST)
    finally:
        cluster.on("node1", "mv", f"{known}.aside", known)
    assert set(probe.facts) == NAMES
    (note,) = probe.notes
    assert note.startswith("node3: asked directly")
    assert "Host key verification failed" in note


def test_when_the_gateway_dies_in_the_middle_its_hosts_are_asked_directly(cluster: Cluster) -> None:
    """The relay is killed while the logins to both hosts wait for an sshd that stands still."""
    for node in ("node2", "node3"):
        cluster.on(node, "pkill", "-STOP", "-o", "-x", "sshd")
    killed: list[str] = []

    def kill() -> None:
        end = time.monotonic() + 9
        while time.monotonic() < end and not killed:
            relays = found(cluster, "gateway_relay$")
            if relays and len(found(cluster, HOPS)) == 2:
                cluster.on("node1", "kill", "-9", *relays)
                killed.extend(relays)
            time.sleep(0.1)
        for node in ("node2", "node3"):
            cluster.on(node, "pkill", "-CONT", "-o", "-x", "sshd")

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        probe = look(cluster, THROUGH_FIRST)
    finally:
        killer.join()
    assert killed
    assert set(probe.facts) == NAMES
    (note,) = probe.notes
    assert note.startswith("node[2-3]: asked directly, because the gateway node1 ended before that")
    end = time.monotonic() + 15
    while found(cluster, HOPS) and time.monotonic() < end:
        time.sleep(0.2)
    assert not found(cluster, HOPS), "its logins end without it"


def found(cluster: Cluster, pattern: str) -> list[str]:
    """Return the processes of the gateway whose command line matches."""
    return cluster.on("node1", "sh", "-c", 'pgrep -f -- "$0" || true', pattern).split()
