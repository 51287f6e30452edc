"""Point to point with MPI: a token visits every rank in turn and comes back with all their numbers.

Shows Send and Recv of a numpy array. Start it with two processes or more:

    clusterctl run inventory.ini --sync examples -- python mpi/point_to_point.py
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
if size == 1:
    sys.exit("One process has nobody to send to; start two or more.")

token = np.full(size, -1, dtype=np.int64)
if rank == 0:
    token[0] = 0
    comm.Send(token, dest=1)
    comm.Recv(token, source=size - 1)
else:
    comm.Recv(token, source=rank - 1)
    token[rank] = rank  # everybody writes at its own place
    comm.Send(token, dest=(rank + 1) % size)

if rank == 0:
    right = np.array_equal(token, np.arange(size))
    print(f"the token came back from {size - 1} ranks with {token}: {'right' if right else 'WRONG'}")
    sys.exit(0 if right else 1)
