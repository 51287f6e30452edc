"""Allreduce with Horovod and PyTorch: sums and averages over all processes, on all of them.

Shows hvd.allreduce, and hvd.grouped_allreduce, which moves many tensors in one go.

    clusterctl run inventory.ini --sync examples -- python horovod/allreduce_pytorch.py
"""

import sys

import horovod.torch as hvd
import torch

hvd.init()
rank, size = hvd.rank(), hvd.size()
device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")

mine = torch.full((4,), rank + 1.0, device=device)
total = hvd.allreduce(mine, op=hvd.Sum, name="total")
mean = hvd.allreduce(mine, op=hvd.Average, name="mean")
group = hvd.grouped_allreduce([mine, 10 * mine], op=hvd.Sum, name="group")

expected = torch.full((4,), size * (size + 1) / 2, device=device)  # 1 + 2 + ... + size
right = torch.equal(total, expected) and torch.equal(group[1], 10 * expected)
right = right and torch.allclose(mean, expected / size)
right = all(hvd.allgather_object(right))
if rank == 0:
    verdict = "right" if right else "WRONG"
    print(f"sum {total[0]:g} and average {mean[0]:g} on each of {size} processes: {verdict}")
sys.exit(0 if right else 1)
