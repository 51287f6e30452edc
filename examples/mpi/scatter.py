"""Scatter with MPI: rank 0 has a table and deals it out, a row to each rank.

Shows Scatter of a numpy array; for shares of different sizes see Scatterv, the counterpart of gather.py's Gatherv.

    clusterctl run inventory.ini --sync examples -- python mpi/scatter.py
"""

import sys

import numpy as np
from mpi4py import MPI

COLUMNS = 3

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

table = np.arange(size * COLUMNS, dtype=np.float64).reshape(size, COLUMNS) if rank == 0 else None
row = np.empty(COLUMNS)
comm.Scatter(table, row, root=0)

right = comm.allreduce(np.array_equal(row, rank * COLUMNS + np.arange(COLUMNS)), op=MPI.LAND)
sums = comm.gather(float(row.sum()), root=0)  # lower case: any Python object, for what is small
if rank == 0:
    print(f"sums of the rows of {size} ranks: {sums}: {'right' if right else 'WRONG'}")
sys.exit(0 if right else 1)
