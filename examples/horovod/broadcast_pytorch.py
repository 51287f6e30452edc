"""Broadcast of variables with Horovod and PyTorch: everybody begins with the model and the optimizer of rank 0.

Shows hvd.broadcast_parameters, hvd.broadcast_optimizer_state and, for any Python object, hvd.broadcast_object. It is
what a job does after it has read a checkpoint, which only rank 0 needs to have.

    clusterctl run inventory.ini --sync examples -- python horovod/broadcast_pytorch.py
"""

import sys

import horovod.torch as hvd
import torch

hvd.init()
rank, size = hvd.rank(), hvd.size()

torch.manual_seed(rank)  # so that every process begins elsewhere
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (rank + 1), momentum=0.9)
epoch = 7 if rank == 0 else 0

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
epoch = hvd.broadcast_object(epoch, root_rank=0)

torch.manual_seed(0)
of_rank_0 = torch.nn.Linear(3, 2)
right = all(torch.equal(value, of_rank_0.state_dict()[name]) for name, value in model.state_dict().items())
rate = optimizer.param_groups[0]["lr"]
right = all(hvd.allgather_object(right and (rate, epoch) == (0.1, 7)))
if rank == 0:
    weight = [round(value, 4) for value in model.weight[0].tolist()]
    print(
        f"weight {weight}, rate {rate:g} and epoch {epoch} on each of {size} processes: {'right' if right else 'WRONG'}"
    )
sys.exit(0 if right else 1)
