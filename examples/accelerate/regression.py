"""A training loop with Hugging Face Accelerate, as `accelerate launch` starts it anywhere; nothing in it is ours.

It learns known weights from noisy samples, of which every process draws its own: gloo on CPUs, NCCL on GPUs.

    clusterctl run inventory.ini --launcher accelerate --sync examples -- accelerate/regression.py

Options of accelerate stand before the script: `-- --mixed_precision bf16 accelerate/regression.py`.
"""

import os

import torch
from accelerate import Accelerator

STEPS = 100
SAMPLES = 64  # of every process in a step
WEIGHTS = torch.tensor([2.0, -1.0, 0.5])

accelerator = Accelerator()
device = accelerator.device
torch.manual_seed(accelerator.process_index)  # other samples for everybody
linear = torch.nn.Linear(len(WEIGHTS), 1, bias=False)
model, optimizer = accelerator.prepare(linear, torch.optim.SGD(linear.parameters(), lr=0.1))
for step in range(STEPS):
    inputs = torch.randn(SAMPLES, len(WEIGHTS), device=device)
    wanted = inputs @ WEIGHTS.to(device) + 0.1 * torch.randn(SAMPLES, device=device)
    loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), wanted)
    optimizer.zero_grad()
    accelerator.backward(loss)  # averages the gradients over all processes
    optimizer.step()
    if accelerator.is_main_process and step % 25 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)

learnt = accelerator.unwrap_model(model).weight.detach()[0]
everybodys = accelerator.gather(learnt.unsqueeze(0))
right = bool((everybodys == learnt).all()) and torch.allclose(learnt.cpu(), WEIGHTS, atol=0.05)
if accelerator.is_main_process:
    weights = [round(value, 3) for value in learnt.tolist()]
    size = accelerator.num_processes
    print(f"weights {weights} on each of {size} processes: {'right' if right else 'WRONG'}", flush=True)
accelerator.wait_for_everyone()  # nobody closes its connections before all are done
accelerator.end_training()
os._exit(0 if right else 1)  # an orderly end now and then aborts in Gloo's threads (pytorch/pytorch issue 190489)
