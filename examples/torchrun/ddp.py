"""A plain PyTorch script with DistributedDataParallel, as torchrun starts it anywhere; nothing in it is ours.

It learns known weights from noisy samples, of which every process draws its own: gloo on CPUs, NCCL on GPUs.

    clusterctl run inventory.ini --launcher torchrun --sync examples -- python torchrun/ddp.py
"""

import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

STEPS = 100
SAMPLES = 64  # of every process in a step
WEIGHTS = torch.tensor([2.0, -1.0, 0.5])

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl")
else:
    device = torch.device("cpu")
    distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()

torch.manual_seed(rank)  # other samples for everybody
model = DistributedDataParallel(torch.nn.Linear(len(WEIGHTS), 1, bias=False).to(device))  # rank 0's weights for all
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    inputs = torch.randn(SAMPLES, len(WEIGHTS), device=device)
    wanted = inputs @ WEIGHTS.to(device) + 0.1 * torch.randn(SAMPLES, device=device)
    loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()  # averages the gradients over all processes
    optimizer.step()
    if rank == 0 and step % 25 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)

learnt = model.module.weight.detach()[0]
everybodys = [torch.empty_like(learnt) for _unused in range(size)]
distributed.all_gather(everybodys, learnt)
right = all(torch.equal(other, learnt) for other in everybodys) and torch.allclose(learnt.cpu(), WEIGHTS, atol=0.05)
if rank == 0:
    weights = [round(value, 3) for value in learnt.tolist()]
    print(f"weights {weights} on each of {size} processes: {'right' if right else 'WRONG'}", flush=True)
distributed.barrier()  # nobody closes its connections before all are done
distributed.destroy_process_group()
os._exit(0 if right else 1)  # an orderly end now and then aborts in Gloo's threads (pytorch/pytorch issue 190489)
