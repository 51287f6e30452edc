"""Broadcast with MPI: what only rank 0 knows reaches everybody.

Shows Bcast of a numpy array; whoever receives must have room of the same size and type.

    clusterctl run inventory.ini --sync examples -- python mpi/broadcast.py
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

squares = np.arange(6.0) ** 2
values = squares.copy() if rank == 0 else np.empty_like(squares)
comm.Bcast(values, root=0)

right = comm.allreduce(np.array_equal(values, squares), op=MPI.LAND)  # everybody looks at its own
if rank == 0:
    print(f"{values} on each of {size} ranks: {'right' if right else 'WRONG'}")
sys.exit(0 if right else 1)
