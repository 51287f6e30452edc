"""The faults that are planted one after the other on six nodes, each with the nodes that have to be named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import planting
from validated import Cluster

NODES = tuple(f"node{number}" for number in range(1, 7))
START = ("hello", "allreduce")  # what launches and talks
LAUNCHER, PORTS, MEMORY = "launcher", "ports", "memory and files"
CPU, NETWORK, ANSWERS = "CPU", "network", "wrong answers"

# One rank of the node computes a wrong number.
WRONG = """
import os, sys
if "gather" in sys.argv and os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") == "1":
    import numpy
    right = numpy.arange
    numpy.arange = lambda count: right(count) + (right(count) == 2)
"""
# Both ranks of the node go on giving signs of life and never enter the collective.
NEVER_ENTERS = """
import sys
if "allreduce" in sys.argv:
    import time, numpy
    def never_enters(*_):
        time.sleep(1e6)
    numpy.arange = never_enters
"""
SILENT = "import sys, time\nif 'allreduce' in sys.argv:\n    time.sleep(1e6)\n"
DIES = "import os, sys\nif 'allreduce' in sys.argv:\n    os.kill(os.getpid(), 11)\n"


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    ``named`` are the nodes that the run has to name, no more and no fewer; of a pair both ends. ``at`` is
    the check at whose first ranks ``act`` happens. ``not_by_slurm`` says why a fault does not matter to a run inside an
    allocation of Slurm, where it does not.
    """

    family: str
    words: str
    named: tuple[str, ...]
    plant: Callable[[Cluster], AbstractContextManager[None]] = planting.nothing
    checks: tuple[str, ...] = START
    at: str = ""
    act: Callable[[Cluster], object] | None = field(default=None)
    search: bool = False
    not_by_slurm: str = ""


def _of(
    make: Callable[..., AbstractContextManager[None]], *given: object, **more: object
) -> Callable[[Cluster], AbstractContextManager[None]]:
    return lambda cluster: make(cluster, *given, **more)


def _run(verb: str, node: str) -> Callable[[Cluster], object]:
    return lambda cluster: cluster.engine.run(verb, cluster.box.node(node).container)


def _shell(cluster: Cluster, node: str) -> AbstractContextManager[None]:
    return planting.changed(cluster, node, "usermod -s /bin/false cluster", "usermod -s /bin/bash cluster")


def _mesh_keys_gone(cluster: Cluster, node: str) -> AbstractContextManager[None]:
    forth = f"cp -a {AUTHORIZED} {AUTHORIZED}.aside && sed -i '/ clusterctl:/d' {AUTHORIZED}"
    return planting.changed(cluster, node, forth, f"mv {AUTHORIZED}.aside {AUTHORIZED}")


def _stop(cluster: Cluster, node: str, check: str) -> AbstractContextManager[None]:
    cluster.when_a_rank_runs(node, check, 'kill -STOP "$rank"')
    return planting.nothing(cluster)


AUTHORIZED = "/home/cluster/.ssh/authorized_keys"
LIBEXEC = "/usr/local/libexec/clusterctl"

FAULTS = (
    Fault(
        LAUNCHER,
        "prted on node4 is not executable",
        ("node4",),
        _of(planting.not_executable, "node4", "prted"),
        search=True,
    ),
    Fault(
        LAUNCHER,
        "mpirun on node1, the launch node, is not executable",
        ("node1",),
        _of(planting.not_executable, "node1", "mpirun"),
    ),
    Fault(
        LAUNCHER,
        "node3 accepts the controller's key and no node's",
        ("node3",),
        _of(_mesh_keys_gone, "node3"),
        not_by_slurm="srun starts the daemons of mpirun, and no node logs in to another",
    ),
    Fault(
        LAUNCHER,
        "the cluster user's shell on node2 is /bin/false",
        ("node2",),
        _of(_shell, "node2"),
        not_by_slurm="a step of srun starts its program without a login shell",
    ),
    Fault(
        LAUNCHER,
        "libprrte is missing on node6",
        ("node6",),
        lambda cluster: planting.changed(
            cluster,
            "node6",
            "cd /usr/local/openmpi/lib && mv libprrte.so.3 libprrte.aside",
            "cd /usr/local/openmpi/lib && mv libprrte.aside libprrte.so.3",
        ),
    ),
    Fault(
        LAUNCHER,
        "a foreign mpirun comes first in PATH on node5",
        ("node5",),
        _of(planting.foreign_mpirun, "node5", "/opt/foreign/bin"),
    ),
    Fault(
        LAUNCHER,
        "the link /usr/local/openmpi is missing on node2",
        ("node2",),
        _of(planting.away, "node2", "/usr/local/openmpi"),
    ),
    Fault(PORTS, "node2 drops connections to high ports", ("node2",), _of(planting.closed, "node2")),
    Fault(
        PORTS,
        "node5 refuses connections to high ports",
        ("node5",),
        _of(planting.closed, "node5", verdict="reject with tcp reset"),
    ),
    Fault(
        PORTS,
        "node2 drops what node1, the launch node, opens",
        ("node1", "node2"),
        _of(planting.closed, "node2", source="node1"),
    ),
    Fault(
        PORTS,
        "node5 drops what node3 opens",
        ("node3", "node5"),
        _of(planting.closed, "node5", source="node3"),
        (*START, "pairs"),
    ),
    Fault(
        PORTS, "node6 may open no connection to high ports", ("node6",), _of(planting.closed, "node6", hook="output")
    ),
    Fault(MEMORY, "/tmp is full on node3", ("node3",), _of(planting.full, "node3", "/tmp")),
    Fault(MEMORY, "/tmp is read-only on node4", ("node4",), _of(planting.read_only, "node4", "/tmp")),
    Fault(MEMORY, "/dev/shm is full on node5", ("node5",), _of(planting.full, "node5", "/dev/shm")),
    Fault(MEMORY, "/dev/shm is read-only on node2", ("node2",), _of(planting.read_only, "node2", "/dev/shm")),
    Fault(
        MEMORY,
        "sessions on node3 may open 24 files",
        ("node3",),
        _of(planting.few_files, "node3", 24),
        not_by_slurm="the limit is one of sshd; steps have those of slurmd and of the submitter",
    ),
    Fault(MEMORY, "a file of mpi4py is missing on node1", ("node1",), _of(planting.damaged_artifact, "node1")),
    Fault(
        MEMORY,
        "a program of the checks was changed on node2",
        ("node2",),
        lambda cluster: planting.changed(
            cluster,
            "node2",
            f"cp -a {LIBEXEC}/mpi_checks.py /root/kept && echo '# changed' >> {LIBEXEC}/mpi_checks.py",
            f"mv /root/kept {LIBEXEC}/mpi_checks.py",
        ),
    ),
    Fault(
        CPU,
        "node4 has a tenth of a core",
        ("node4",),
        _of(planting.quota, "node4", 10),
        ("node_speed",),
    ),
    Fault(CPU, "node2 has 15 % of a core", ("node2",), _of(planting.quota, "node2", 15), ("node_speed",)),
    Fault(CPU, "node6 has half a core", ("node6",), _of(planting.quota, "node6", 50), ("node_speed",)),
    Fault(
        CPU,
        "a rank on node3 is stopped",
        ("node3",),
        _of(_stop, "node3", "allreduce"),
        ("allreduce",),
    ),
    Fault(
        CPU,
        "node6 freezes in a check",
        ("node6",),
        _of(planting.lost_in_a_collective, "node6", NEVER_ENTERS, back="unpause"),
        ("allreduce", "gather"),
        at="allreduce",
        act=lambda cluster: planting.freeze(cluster.engine, cluster.box.node("node6").container),
    ),
    Fault(
        CPU,
        "node6 is killed in a check",
        ("node6",),
        _of(planting.lost_in_a_collective, "node6", NEVER_ENTERS, back="start"),
        ("allreduce", "gather"),
        at="allreduce",
        act=_run("kill", "node6"),
    ),
    Fault(NETWORK, "node3 sends at 50 Mbit/s", ("node3",), _of(planting.slow_link, "node3", "50mbit"), ("pairs",)),
    Fault(
        NETWORK,
        "node2 sends to node4 at 50 Mbit/s",
        ("node2", "node4"),
        _of(planting.slow_link, "node2", "50mbit", to="node4"),
        ("pairs",),
    ),
    Fault(
        NETWORK,
        "node4 sends to node6 at a quarter of the others",
        ("node4", "node6"),
        _of(planting.slow_link, "node4", "1gbit", to="node6"),
        ("pairs",),
    ),
    Fault(
        NETWORK,
        "node2 loses 5 % of what it gets",
        ("node2",),
        _of(planting.lossy, "node2", 5),
        ("pairs",),
    ),
    Fault(
        NETWORK,
        "node5 loses 3 % of what node1 sends",
        ("node1", "node5"),
        _of(planting.lossy, "node5", 3, "node1"),
        ("pairs",),
    ),
    Fault(NETWORK, "the cable of node6 is out", ("node6",), _of(planting.link_down, "node6")),
    Fault(ANSWERS, "a bit flips in an allreduce on node3", ("node3",), _of(planting.preloaded, "node3")),
    Fault(
        ANSWERS,
        "one in 10,000 large copies on node5 has a flipped bit",
        ("node5",),
        _of(planting.preloaded, "node5", planting.FLIP_COPIES),
        ("copies",),
    ),
    Fault(
        ANSWERS,
        "a bit of the mapped libmpi on node4 is flipped",
        ("node4",),
        _of(planting.flipped, "node4"),
        ("hello",),
    ),
    Fault(ANSWERS, "node3 maps another copy of libmpi", ("node3",), _of(planting.another_libmpi, "node3"), ("hello",)),
    Fault(
        ANSWERS,
        "a rank on node2 sends a wrong number",
        ("node2",),
        lambda cluster: cluster.in_every_python_of("node2", WRONG),
        ("gather",),
    ),
    Fault(
        ANSWERS,
        "the ranks on node5 die of SIGSEGV",
        ("node5",),
        lambda cluster: cluster.in_every_python_of("node5", DIES),
        ("allreduce",),
    ),
    Fault(
        ANSWERS,
        "the ranks on node2 never start",
        ("node2",),
        lambda cluster: cluster.in_every_python_of("node2", SILENT),
        ("allreduce",),
    ),
    Fault(
        ANSWERS,
        "the ranks on node3 never enter the allreduce",
        ("node3",),
        lambda cluster: cluster.in_every_python_of("node3", NEVER_ENTERS),
        ("allreduce",),
        search=True,
    ),
)
