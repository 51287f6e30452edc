"""Pi by mpi4py: each rank integrates its part of a circle, and a reduction adds them up."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
steps = 100_000
part = sum(4 / (1 + ((i + 0.5) / steps) ** 2) for i in range(world.rank, steps, world.size)) / steps
total = world.reduce(part, op=MPI.SUM)
if world.rank == 0:
    sys.stdout.write(f"pi {total:.8f} of {world.size}\n")
