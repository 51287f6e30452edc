"""A training loop with DeepSpeed, as DeepSpeed's own launcher starts it anywhere; nothing in it is ours.

It learns known weights from noisy samples, of which every process draws its own: gloo on CPUs, NCCL on GPUs.

    clusterctl run inventory.ini --launcher deepspeed --sync examples -- deepspeed/regression.py
"""

import argparse
import os

import deepspeed
import torch
from torch import distributed

STEPS = 100
SAMPLES = 64  # of every process in a step
WEIGHTS = torch.tensor([2.0, -1.0, 0.5])

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0, help="DeepSpeed's launcher gives it")
parser.parse_args()

deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
model, optimizer, _loader, _scheduler = deepspeed.initialize(
    model=(linear := torch.nn.Linear(len(WEIGHTS), 1, bias=False)),
    model_parameters=linear.parameters(),
    optimizer=torch.optim.SGD(linear.parameters(), lr=0.1),
    config={"train_micro_batch_size_per_gpu": SAMPLES},
)
torch.manual_seed(rank)  # other samples for everybody
for step in range(STEPS):
    inputs = torch.randn(SAMPLES, len(WEIGHTS), device=model.device)
    wanted = inputs @ WEIGHTS.to(model.device) + 0.1 * torch.randn(SAMPLES, device=model.device)
    loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), wanted)
    model.backward(loss)  # averages the gradients over all processes
    model.step()
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
