"""Who stops a job: causes planted on a sandbox's nodes, and whether ``clusterctl run`` names them rightly and how soon.

python benchmarks/stopped_jobs.py SANDBOX [--host node7] [--rank 6] [--rows "mpi:SIGSTOP,torch:firewall"]

The sandbox is provisioned with the training stack. Each row is one job; the table is Markdown. The seconds count from
the moment the stall was noticed until the sentence was there. For a rank that the kernel killed, they count from the
last output of the job, and for ``--pace`` from the first slow step. The load is that of this machine when the sentence
came. A healthy job "in silence" is named rightly where nothing is said of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))

import stalled_jobs
from clusterctl import sandbox
from validated import Cluster

NAMES = {"mpi": "MPI (mpi4py)", "torch": "PyTorch (Gloo)", "horovod": "Horovod (MPI)"}
PACED = "slow loader (--pace)"
LIMIT_S = 30.0  # what is to be reached


def planted(cluster: Cluster, stack: str, fault: str, *, host: str, rank: int, limit_s: float) -> stalled_jobs.Told:
    """Run one row; a job of which nothing is said in time is not known."""
    try:
        if fault in stalled_jobs.HEALTHY:
            return stalled_jobs.run_healthy(cluster, stack, fault, limit_s=limit_s)
        if fault == PACED:
            return stalled_jobs.run_paced(cluster, host=host, rank=rank, limit_s=limit_s)
        return stalled_jobs.run(cluster, stack, fault, host=host, rank=rank, limit_s=limit_s)
    except AssertionError as error:
        print(f"{stack}, {fault}: nothing was said\n{error}", file=sys.stderr, flush=True)
        return stalled_jobs.Told(stack, fault, "nothing was said", limit_s, host)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sandbox")
    parser.add_argument("--host", default="node7")
    parser.add_argument("--rank", type=int, default=6, help="a rank on that host")
    causes = (*stalled_jobs.FAULTS, *stalled_jobs.HEALTHY)
    every = ",".join(f"{stack}:{fault}" for stack in NAMES for fault in causes) + f",mpi:{PACED}"
    parser.add_argument("--rows", default=every, help="PROGRAM:CAUSE, with commas; by default all")
    parser.add_argument("--timeout", type=float, default=300)
    given = parser.parse_args()
    cluster = Cluster(sandbox.load(given.sandbox))
    rows: list[stalled_jobs.Told] = []
    with tempfile.TemporaryDirectory() as folder, stalled_jobs.py_spy(cluster, Path(folder)):
        print(
            f"{len(cluster.box.nodes)} nodes, {os.cpu_count()} cores; the culprit: rank {given.rank} on {given.host}\n"
        )
        print("| program | planted cause | named | seconds | load | sentence |\n|---|---|---|---|---|---|", flush=True)
        for row in given.rows.split(","):
            told = planted(cluster, *row.split(":"), host=given.host, rank=given.rank, limit_s=given.timeout)
            rows.append(told)
            words = told.sentence.partition(". To run without")[0]
            timed = f"{told.seconds:.1f} | {os.getloadavg()[0]:.0f}"
            print(f"| {NAMES[told.stack]} | {told.fault} | {told.verdict} | {timed} | {words} |", flush=True)
            cluster.remove_torch_litter()
    rightly = [one for one in rows if one.verdict == "rightly"]
    wrongly = sum(one.verdict == "wrongly" for one in rows)
    late = sum(one.seconds > LIMIT_S for one in rightly)
    print(f"\n{len(rightly)} of {len(rows)} named rightly, {wrongly} wrongly; {late} took more than {LIMIT_S:.0f} s")


if __name__ == "__main__":
    main()
