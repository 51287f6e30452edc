"""``clusterctl run --pace`` on four real nodes: the rank with the slow data loader is named, and no other is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

# Every rank reads its batch in 20 ms, the slow one in three times that; then all exchange what they computed.
# The steps take 13 seconds and more: twice the reports that a comparison takes, also where the machine stands still.
PROGRAM = """\
import sys, time
from clusterctl import pace
from mpi4py import MPI
world, slow = MPI.COMM_WORLD, int(sys.argv[1])

def batches():
    for _ in range(650 if slow < 0 else 220):
        time.sleep(0.06 if world.rank == slow else 0.02)
        yield float(world.rank)

for batch in batches():
    pace.step()
    with pace.waiting():
        total = world.allreduce(batch)
if world.rank == 0:
    print("sum", total, pace.__file__)
"""


def ran(cluster: Cluster, code: Path, program: str, slow: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Return a run of a program that ended well; the nodes keep nothing of its folder."""
    code.mkdir()
    (code / "train.py").write_text(program)
    words = (*options, "--sync", str(code), "--timeout", "90", "--", "python", "train.py", str(slow))
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    finally:
        for node in cluster.box.nodes:
            cluster.on(node.name, "rm", "-rf", "/home/cluster/clusterctl")
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
@pytest.mark.parametrize("slow", [5, -1])
def test_the_rank_with_the_slow_data_loader_is_named_and_no_other(
    mpi_cluster: Cluster, tmp_path: Path, slow: int
) -> None:
    done = ran(mpi_cluster, tmp_path / "paced", PROGRAM, slow, "--pace")
    assert done.stdout == "sum 28.0 /usr/local/libexec/clusterctl/pace/clusterctl/pace.py\n"
    print(done.stderr)  # noqa: T201 - what the user sees
    assert "clusterctl-pace" not in done.stderr, "the reports are not for the user"
    told = [line for line in done.stderr.splitlines() if line.startswith("clusterctl: Pace: ")]
    assert re.match(r"clusterctl: Pace: 8 ranks, \d+(\.\d+)? ms a step, ", told[-1])
    named = {(rank, node) for line in told for rank, node in re.findall(r"rank (\d+) on (node\d)", line)}
    assert named == (set() if slow < 0 else {("5", "node3")}), told
    assert mpi_cluster.is_clean()


# The same loop without clusterctl.pace: each rank prints what its steps took, and how long of that it waited.
PRINTING = """\
import sys, time
from mpi4py import MPI
world, slow = MPI.COMM_WORLD, int(sys.argv[1])
for step in range(220):
    begin = time.monotonic()
    time.sleep(0.06 if world.rank == slow else 0.02)
    waiting = time.monotonic()
    total = world.allreduce(float(world.rank))
    end = time.monotonic()
    print(f"step {step} took {end - begin:.6f} s, waited {end - waiting:.6f} s", flush=True)
"""
WHOLE, WAITED = r"step (?P<step>\d+) took (?P<seconds>[\d.]+) s", r", waited (?P<waiting>[\d.]+) s"


@pytest.mark.long
@pytest.mark.parametrize(("pattern", "named"), [(WHOLE + WAITED, {("5", "node3")}), (WHOLE, set())])
def test_the_slow_rank_is_named_by_the_steps_that_ranks_print_with_their_waiting(
    mpi_cluster: Cluster, tmp_path: Path, pattern: str, named: set[tuple[str, str]]
) -> None:
    done = ran(mpi_cluster, tmp_path / "printing", PRINTING, 5, "--pace-pattern", pattern)
    assert len(done.stdout.splitlines()) == 8 * 220, "the user sees every line"
    assert done.stdout.startswith("step 0 took ")
    print(done.stderr)  # noqa: T201 - what the user sees
    told = [line for line in done.stderr.splitlines() if line.startswith("clusterctl: Pace: ")]
    found = {(rank, node) for line in told for rank, node in re.findall(r"rank (\d+) on (node\d)", line)}
    assert found == named, told
    assert ("so nobody is named" in told[-1]) == (not named)
    assert mpi_cluster.is_clean()
