"""Planted truth: real nodes with a real fault, and the verdict has to name the right node or the right pair."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import planting
import pytest
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.validation.checks import registry
from validated import Cluster, result

pytestmark = pytest.mark.cluster

LOOKS = 3
SLOW = "50mbit"  # a node of the sandbox has a hundred times as much


@pytest.fixture
def cluster(mpi_cluster: Cluster) -> Iterator[Cluster]:
    yield mpi_cluster
    assert mpi_cluster.is_clean()


def look(cluster: Cluster, check: str, kind: str = "") -> CheckResult:
    """Run one check as the suite smoke has it.

    Other tests use the same two cores. So it looks again where nobody is named, or no culprit of this kind: the second
    of two runs may not tell the direction of a link.
    """
    for _ in range(LOOKS):
        found = result(cluster.validate(check, suite=registry.builtin("smoke"), search=False), check)
        if found.verdict is Verdict.FAIL and kind in {"", *(one.kind for one in found.culprits)}:
            break
    return found


def test_a_node_with_a_slow_link_is_named(cluster: Cluster) -> None:
    with planting.slow_link(cluster, "node3", SLOW):
        found = look(cluster, "pairs")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",)), found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("node", ("node3",))]
    assert "node3" in found.reason
    assert "bandwidth" in found.reason
    assert found.culprits[0].ratio is not None
    assert found.culprits[0].ratio < 0.5


def test_a_link_that_is_slow_one_way_is_named_with_sender_and_receiver(cluster: Cluster) -> None:
    with planting.slow_link(cluster, "node2", SLOW, to="node4"):
        found = look(cluster, "pairs", "one_way")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2", "node4")), found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("one_way", ("node2", "node4"))]
    assert found.culprits[0].ratio is not None
    assert found.culprits[0].ratio < 0.2  # the average of both ways would be half


@pytest.mark.long
def test_a_node_that_loses_packets_is_named(cluster: Cluster) -> None:
    with planting.lossy(cluster, "node2", 5):
        found = look(cluster, "pairs")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",)), found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("node", ("node2",))]
    assert "node2: packets are lost" in found.reason
    assert "of the TCP segments to it from node[1,3-4]" in found.reason


@pytest.mark.long
def test_a_few_packets_that_are_lost_one_way_are_named_as_lost(cluster: Cluster) -> None:
    """Of some thousand segments that node2 sends to node4, three in a hundred are lost."""
    with planting.lossy(cluster, "node4", 3, source="node2"):
        found = look(cluster, "pairs", "one_way")
    assert found.verdict is Verdict.FAIL, found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("one_way", ("node2", "node4"))]
    assert "node2 to node4: packets are lost" in found.reason


def test_a_node_whose_processors_are_throttled_is_named(cluster: Cluster) -> None:
    with planting.quota(cluster, "node4", 10):
        found = look(cluster, "node_speed")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node4",)), found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("node", ("node4",))]
    assert re.match(r"node4 was held back \d+\.\d s .*quota 0\.1 of a core for 2 slots", found.reason)
    assert "CPU quota" in found.culprits[0].cure


def test_what_a_pass_must_not_hide_is_named_beside_the_checks(cluster: Cluster) -> None:
    """A flipped bit in the libmpi of node1, another mpirun on node3, a wrong name on node2, another MTU on node4."""
    folder = "/opt/planted-mpi"
    with contextlib.ExitStack() as faults:
        faults.enter_context(planting.flipped(cluster, "node1"))
        faults.enter_context(planting.foreign_mpirun(cluster, "node3", folder))
        cluster.on(
            "node2", "sh", "-c", "cp -a /etc/hosts /root/hosts; sed '1i 127.0.1.1 node2' /root/hosts > /etc/hosts"
        )
        faults.callback(cluster.on, "node2", "sh", "-c", "cat /root/hosts > /etc/hosts; rm /root/hosts")
        cluster.in_network_of("node4", "ip", "link", "set", "eth0", "mtu", "1400")
        faults.callback(cluster.in_network_of, "node4", "ip", "link", "set", "eth0", "mtu", "1500")
        record = cluster.validate("hello", search=False)
    hello, provisioned = result(record, "hello"), result(record, "provisioned")
    assert (hello.verdict, hello.hosts) == (Verdict.FAIL, ("node1",)), hello.reason
    assert "on node1 is not the file that was installed" in hello.reason
    assert [(one.kind, one.nodes) for one in hello.culprits] == [("node", ("node1",))]
    assert "clusterctl provision" in hello.culprits[0].cure
    assert (provisioned.verdict, set(provisioned.hosts)) == (Verdict.FAIL, {"node2", "node3"}), provisioned.reason
    assert f"mpirun of a session is {folder}/mpirun" in provisioned.reason
    assert "first in PATH" in provisioned.reason
    assert "node2: its own name leads to 127.0.1.1" in provisioned.reason
    notes = "\n".join(record.notes)
    assert "Doctor finds on node4: the MTU" in notes
    assert folder not in notes
