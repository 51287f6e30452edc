"""Allgather with Horovod and PyTorch: everybody gets the rows of all processes, from each as many as it has.

Shows hvd.allgather with unequal first dimensions: rank r gives r + 1 rows.

    clusterctl run inventory.ini --sync examples -- python horovod/allgather_pytorch.py
"""

import sys

import horovod.torch as hvd
import torch

hvd.init()
rank, size = hvd.rank(), hvd.size()
device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")

mine = torch.full((rank + 1, 2), float(rank), device=device)
rows = hvd.allgather(mine, name="rows")

ranks = torch.arange(size, device=device)
expected = torch.repeat_interleave(ranks, ranks + 1).float()  # 0, 1, 1, 2, 2, 2, ...
right = all(hvd.allgather_object(torch.equal(rows, expected[:, None].expand(-1, 2))))
if rank == 0:
    first = [int(value) for value in rows[:, 0]]
    print(f"{len(rows)} rows on each of {size} processes, by rank {first}: {'right' if right else 'WRONG'}")
sys.exit(0 if right else 1)
