"""A job that a planted node stops is started again without it and ends well; a search finds the node on real nodes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from validated import CLUSTERCTL, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]

BAD = "node3"
# The ranks wait for each other without a processor, so nothing but the bad rank's own state tells them apart. On the
# bad node, a rank stops itself ("stops", which is seen in /proc), or it waits as all others do ("waits").
PROGRAM = """\
import os, signal, socket, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
bad, how = sys.argv[1:]
for step in range(30):
    if step == 5 and socket.gethostname().partition(".")[0] == bad:
        if how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(900)
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.05)
    if world.rank == 0:
        print("step", step, flush=True)
    time.sleep(0.05)
if world.rank == 0:
    print("ended with", world.size, flush=True)
"""


def run(cluster: Cluster, folder: Path, how: str, *options: str) -> subprocess.CompletedProcess[str]:
    code = folder / "again"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    words = (*options, "--stall-after", "8", "--sync", str(code), "--", "python", "train.py", BAD, how)
    try:
        return subprocess.run(
            [*CLUSTERCTL, "run", str(cluster.box.inventory), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    finally:
        for node in cluster.box.nodes:
            cluster.on(node.name, "rm", "-rf", "/home/cluster/clusterctl")


def is_clean(cluster: Cluster) -> bool:
    return cluster.is_clean(tuple(node.name for node in cluster.box.nodes))


def ended_with(cluster: Cluster, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether the last run had the ranks of all nodes but one."""
    whole, left = len(cluster.box.nodes), len(cluster.box.nodes) - 1
    found = re.findall(r"^ended with (\d+)$", done.stdout, re.MULTILINE)
    return bool(found) and int(found[-1]) % left == 0 and int(found[-1]) // left * whole > int(found[-1])


def test_a_job_goes_on_without_the_node_that_was_named(mpi_cluster: Cluster, tmp_path: Path) -> None:
    done = run(mpi_cluster, tmp_path, "stops", "--restart-without-suspects", "1")
    assert done.returncode == 0, done.stderr
    assert f"{BAD} rank" in done.stderr
    assert "is stopped (a signal, such as SIGSTOP)" in done.stderr or "are stopped" in done.stderr
    assert f"Starting again without {BAD}; 0 more restarts are allowed." in done.stderr
    assert ended_with(mpi_cluster, done), done.stdout
    assert is_clean(mpi_cluster)


def test_a_search_finds_the_node_that_no_evidence_names(mpi_cluster: Cluster, tmp_path: Path) -> None:
    done = run(mpi_cluster, tmp_path, "waits", "--search", "--restart-without-suspects", "1")
    assert done.returncode == 0, done.stderr
    assert "the cause is not known" in done.stderr
    assert f"Search: the program stops on {BAD}. To run without it: --exclude {BAD}." in done.stderr
    assert f"Starting again without {BAD}; 0 more restarts are allowed." in done.stderr
    assert ended_with(mpi_cluster, done), done.stdout
    assert is_clean(mpi_cluster)
