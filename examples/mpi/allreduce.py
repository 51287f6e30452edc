"""Allreduce with MPI: the sum over all ranks, on all ranks. It is what data-parallel training is made of.

Shows Allreduce in place, where the result takes the place of what was given.

    clusterctl run inventory.ini --sync examples -- python mpi/allreduce.py
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

ones = np.ones(5)
values = (rank + 1) * ones
comm.Allreduce(MPI.IN_PLACE, values, op=MPI.SUM)

right = np.array_equal(values, size * (size + 1) / 2 * ones)  # 1 + 2 + ... + size
right = comm.allreduce(right, op=MPI.LAND)
if rank == 0:
    print(f"1 + ... + {size} on each of {size} ranks: {values}: {'right' if right else 'WRONG'}")
sys.exit(0 if right else 1)
