"""The check ``network`` on four nodes with two networks: it tells which one carried a job, and names the wrong one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from clusterctl.model.results import CheckResult, Verdict
from validated import NODES, Cluster, result

pytestmark = pytest.mark.cluster

SECOND = "10.213.7.0/24"
RECORD = "/etc/clusterctl/fabric.json"
PARAMETERS = "/home/cluster/.openmpi/mca-params.conf"  # go before what is written for the whole node


@pytest.fixture(scope="module")
def cluster(mpi_cluster: Cluster) -> Iterator[Cluster]:
    with mpi_cluster.second_network("eth1", SECOND):
        yield mpi_cluster


@contextlib.contextmanager
def fabric_is(cluster: Cluster, interface: str, network: str) -> Iterator[None]:
    record = {"schema_version": 1, "cidrs": [network], "interface": interface, "address": ""}
    with cluster.with_file(RECORD, json.dumps(record)):
        yield


def first(cluster: Cluster) -> str:
    return cluster.box.node("node1").address.rpartition(".")[0] + ".0/24"


def look(cluster: Cluster) -> CheckResult:
    found = result(cluster.validate("network"), "network")
    assert cluster.is_clean()
    return found


def test_the_network_that_carried_a_job_is_told_and_a_wrong_one_is_named(cluster: Cluster) -> None:
    with cluster.with_file(PARAMETERS, f"btl_tcp_if_include = {SECOND}\n", owner="cluster"):
        with fabric_is(cluster, "eth1", SECOND):
            right = look(cluster)
        with fabric_is(cluster, "eth0", first(cluster)):
            wrong = look(cluster)
    assert right.verdict is Verdict.PASS
    assert right.reason.endswith("64 MiB from each node went over eth1, the fabric")
    carried = next(figure.value for figure in right.measurements if figure.name == "carried")
    assert 1 <= carried < 1.05
    assert (wrong.verdict, wrong.hosts) == (Verdict.FAIL, NODES)
    assert f"node[1-4]: not all of what was sent went over the fabric, eth0 ({first(cluster)})" in wrong.reason
    assert "by eth0 0.0 and 0.0, by eth1 6" in wrong.reason
    assert [line.partition(":")[0] for line in wrong.evidence] == list(NODES)


def test_a_job_that_uses_both_networks_is_found_out(cluster: Cluster) -> None:
    both = f"btl_tcp_if_include = {first(cluster)},{SECOND}\n"
    with cluster.with_file(PARAMETERS, both, owner="cluster"), fabric_is(cluster, "eth1", SECOND):
        found = look(cluster)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, NODES)
    assert f"not all of what was sent went over the fabric, eth1 ({SECOND})" in found.reason
    assert ", by eth0 3" in found.reason
