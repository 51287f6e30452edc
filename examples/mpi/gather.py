"""Gather with MPI: rank 0 collects what everybody has, from each as much as it has.

Shows Gatherv of numpy arrays of different lengths: rank r gives r + 1 values. Equal lengths need Gather alone.

    clusterctl run inventory.ini --sync examples -- python mpi/gather.py
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

mine = np.full(rank + 1, rank, dtype=np.int64)
counts = comm.gather(len(mine), root=0)
everything = np.empty(sum(counts), dtype=np.int64) if rank == 0 else None
comm.Gatherv(mine, (everything, counts), root=0)

if rank == 0:
    right = np.array_equal(everything, np.repeat(np.arange(size), np.arange(1, size + 1)))
    print(f"{len(everything)} values of {size} ranks: {everything}: {'right' if right else 'WRONG'}")
    sys.exit(0 if right else 1)
