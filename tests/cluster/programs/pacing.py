"""A training loop with MPI whose rank CULPRIT begins to load three times as slowly as the others at step AT."""

import os
import sys
import time

from clusterctl import pace
from mpi4py import MPI

CULPRIT, AT, STEPS = int(os.environ["CULPRIT"]), int(os.environ.get("AT", "50")), int(os.environ.get("STEPS", "2000"))
BATCH_S = 0.1
world = MPI.COMM_WORLD

for step in range(STEPS):
    slow = world.rank == CULPRIT and step >= AT
    time.sleep(3 * BATCH_S if slow else BATCH_S)
    pace.step()
    if world.rank == 0 and step == AT:
        sys.stdout.write("slow from now on\n")
        sys.stdout.flush()
    with pace.waiting():
        world.allreduce(1.0)
