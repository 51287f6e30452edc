"""Nodes with two networks: a setting that sends a job over the wrong one is named with its node and its file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import planting
import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.model.results import CheckResult, Verdict
from validated import Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.long]  # a sandbox of its own with PyTorch

ROOT = Path(__file__).resolve().parents[2]
NODES = ("node1", "node2", "node3")
# Of two ranks of Gloo, that with the lower address listens and the other one connects. Traffic takes the network of the
# listener, so this one is lower than the sandbox's.
OTHER, CIDR = "eth1", "10.3.79.0/24"
RECORD = "/etc/clusterctl/fabric.json"
ENVIRONMENT = "/etc/environment"


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox]) -> Iterator[Cluster]:
    """Three provisioned nodes with a second network, which came after they were provisioned."""
    box = sandbox("proof", nodes=len(NODES), stack=True)
    variables = box.inventory.parent / "group_vars" / "all.yml"
    variables.parent.mkdir(exist_ok=True)
    variables.write_text(json.dumps({"nccl_install": "never", "horovod_install": "never"}), encoding="utf-8")
    found = Cluster(box)
    found.provision()
    with found.second_network(OTHER, CIDR, NODES):
        yield found


def planted(cluster: Cluster, node: str, line: str) -> contextlib.AbstractContextManager[None]:
    """Add a line to the environment file of a node."""
    name = line.partition("=")[0]
    back = f"sed -i '/^{name}=/d' {ENVIRONMENT}"
    return planting.changed(cluster, node, f"echo '{line}' >> {ENVIRONMENT}", back)


def refused(found: CheckResult, node: str, setting: str) -> None:
    """Hold a check to a FAIL that names this node alone, the interface, and the setting with its file."""
    assert (found.verdict, found.hosts) == (Verdict.FAIL, (node,)), found.reason
    assert OTHER in found.reason
    assert "eth0" in found.reason
    assert f"by {setting} of {ENVIRONMENT}" in found.reason


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_validate_names_the_setting_that_sends_mpi_elsewhere(cluster: Cluster, node: str) -> None:
    """On the launch node, which is the first, mpirun hands the setting on to all ranks."""
    assert result(cluster.validate("network", search=False), "network").verdict is Verdict.PASS
    setting = f"OMPI_MCA_btl_tcp_if_include={OTHER}"
    with planted(cluster, node, setting):
        refused(result(cluster.validate("network", search=False), "network"), node, setting)


def test_validate_names_the_setting_that_sends_gloo_elsewhere(cluster: Cluster) -> None:
    assert result(cluster.validate("torchrun", search=False), "torchrun").verdict is Verdict.PASS
    setting = f"GLOO_SOCKET_IFNAME={OTHER}"
    with planted(cluster, "node2", setting):
        refused(result(cluster.validate("torchrun", search=False), "torchrun"), "node2", setting)
