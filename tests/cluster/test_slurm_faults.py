"""One planted fault of each family: the run inside an allocation of Slurm names the same node as the run by ssh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import planting
import pytest
from clusterctl.model.results import ValidationRecord
from clusterctl.validation.checks import registry
from slurm_nodes import by_slurm, is_empty, resumed
from validated import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.xdist_group("slurm")]

LOOKS = 3  # other tests use the same two cores, and a figure may be undecided
DEADLINE_S = 40.0
WRONG = """
import os, sys
if "gather" in sys.argv and os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") == "1":
    import numpy
    right = numpy.arange
    numpy.arange = lambda count: right(count) + (right(count) == 2)
"""
DIES = "import os, sys\nif 'allreduce' in sys.argv:\n    os.kill(os.getpid(), 11)\n"
SILENT = "import sys, time\nif 'allreduce' in sys.argv:\n    time.sleep(1e6)\n"
PRRTE = f"{planting.OPENMPI}/lib/libprrte.so.3"
SHM = "/dev/shm"  # noqa: S108 - the folder of a node
SLURMD = 6818  # its port; Slurm takes a node down where this port is closed as well, and no job starts


@dataclass(frozen=True)
class Fault:
    """A fault, the node that has it, and the checks that see it."""

    node: str
    plant: Callable[[Cluster, str], AbstractContextManager[None]]
    checks: tuple[str, ...]


FAULTS = {
    "slow node": Fault("node4", lambda cluster, node: planting.quota(cluster, node, 10), ("node_speed",)),
    "lost packets": Fault("node2", lambda cluster, node: planting.lossy(cluster, node, 5), ("pairs",)),
    "closed ports": Fault("node2", lambda cluster, node: planting.closed(cluster, node, but=SLURMD), ("hello",)),
    "launch daemon": Fault("node4", lambda cluster, node: planting.not_executable(cluster, node, "prted"), ("hello",)),
    "missing library": Fault("node4", lambda cluster, node: planting.away(cluster, node, PRRTE), ("hello",)),
    "full memory": Fault("node3", lambda cluster, node: planting.full(cluster, node, SHM), ("hello",)),
    "bit flip": Fault("node3", planting.preloaded, ("hello",)),
    "wrong number": Fault("node2", lambda cluster, node: cluster.in_every_python_of(node, WRONG), ("gather",)),
    "killed ranks": Fault("node4", lambda cluster, node: cluster.in_every_python_of(node, DIES), ("allreduce",)),
    "silent ranks": Fault("node2", lambda cluster, node: cluster.in_every_python_of(node, SILENT), ("allreduce",)),
}


@pytest.fixture
def cluster(slurm_cluster: Cluster) -> Iterator[Cluster]:
    yield slurm_cluster
    assert is_empty(slurm_cluster)
    resumed(slurm_cluster)
    assert slurm_cluster.is_clean()


def blamed(record: ValidationRecord) -> set[str]:
    bad = [check for check in record.checks if check.is_bad]
    hosts = {host for check in bad for host in check.hosts}
    return hosts | {node for check in bad for culprit in check.culprits for node in culprit.nodes}


@pytest.mark.parametrize("family", FAULTS)
def test_a_fault_is_named_as_by_ssh(cluster: Cluster, family: str) -> None:
    fault = FAULTS[family]
    options = {"suite": registry.builtin("smoke"), "timeout_s": DEADLINE_S if "allreduce" in fault.checks else None}
    ways = {
        "ssh": lambda: cluster.validate(*fault.checks, search=False, **options),
        "Slurm": lambda: by_slurm(cluster, *fault.checks, **options),
    }
    found: dict[str, set[str]] = {}
    reasons: list[str] = []
    with fault.plant(cluster, fault.node):
        for way, look in ways.items():
            for _ in range(LOOKS):
                record = look()
                found[way] = blamed(record)
                reasons += [f"by {way}: {check.check}: {check.reason}" for check in record.checks if check.is_bad]
                if found[way] == {fault.node}:
                    break
    assert found == {"ssh": {fault.node}, "Slurm": {fault.node}}, reasons
