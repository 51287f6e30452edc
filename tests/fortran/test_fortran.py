"""A Fortran program across two nodes, compiled by the wrapper that ``openmpi_fortran`` brings.

Not part of ``make test``: without a cache, Open MPI is compiled once more, which takes minutes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterctl import sandbox as sandboxes
from validated import CLUSTERCTL, Cluster, mpi_alone

HERE = Path(__file__).parent
COPIED = f"/home/cluster/clusterctl/{HERE.name}"
RANKS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with Fortran's wrapper, of which the first has the compiler."""
    name = f"fortran-{os.getpid()}"
    try:
        box = sandboxes.up(sandboxes.SandboxSpec(name=name, nodes=2))
        mpi_alone(box)
        found = Cluster(box)
        done, _ = found.run("provision", "--yes", "--no-validate", "-e", "openmpi_fortran=true")
        assert done.returncode == 0, done.stderr[-6000:]
        found.on("node1", "sh", "-c", "apt-get -q update && apt-get -q install -y --no-install-recommends gfortran")
        yield found
    finally:
        sandboxes.down(name)


def run(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


def test_fortran_compiles_on_one_node_and_runs_on_both(cluster: Cluster) -> None:
    build = ("--", "mpifort", "-O2", "-o", "sum_of_ranks", "sum_of_ranks.f90")
    made = run(cluster, "--sync", str(HERE), "--limit", "node1", "-np", "1", *build)
    assert made.returncode == 0, made.stderr
    cluster.on("node1", "su", "-l", "cluster", "-c", f"ssh node2 mkdir -p {COPIED}")
    cluster.on("node1", "su", "-l", "cluster", "-c", f"scp -q {COPIED}/sum_of_ranks node2:{COPIED}/")
    done = run(cluster, "-np", str(RANKS), "--", f"{COPIED}/sum_of_ranks")
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert [line.partition(" on ")[0] for line in lines] == [f"rank {rank} sum 6" for rank in range(RANKS)]
    assert {line.partition(" on ")[2] for line in lines} == {"node1", "node2"}
