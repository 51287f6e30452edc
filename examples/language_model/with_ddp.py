"""The same language model with PyTorch's own DistributedDataParallel, under torchrun.

Shows that the total batch shared out gives the perplexity of one process here as well, with gloo on CPUs and NCCL on
GPUs. Nothing in it knows of clusterctl.

    clusterctl run inventory.ini --launcher torchrun --sync examples -- python language_model/with_ddp.py
"""

import os

import language_model as lm
import torch
from torch import distributed

args = lm.arguments("Train a language model with DistributedDataParallel.")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()


def gather(mine):
    """Return a list with everybody's object."""
    everybody = [None] * size
    distributed.all_gather_object(everybody, mine)
    return everybody


text = lm.read(args, rank, size, gather)
train, valid = text.train.to(device), text.valid.to(device)

model = lm.Model(text.words, args.width).to(device, torch.float32 if args.single else torch.float64)
together = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=args.rate)

for epoch in range(args.epochs):
    for loss, _unused in lm.losses(together, train, args.window):
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over all processes
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    sums = lm.loss_and_words(model, valid, args.window)
    distributed.all_reduce(sums)
    perplexity = lm.perplexity(*sums.tolist())
    if rank == 0:
        print(f"epoch {epoch}: perplexity {perplexity:.10f} on {size} rank(s)", flush=True)
distributed.barrier()  # nobody closes its connections before all are done
distributed.destroy_process_group()
os._exit(0)  # an orderly end now and then aborts in Gloo's threads (pytorch/pytorch issue 190489)
