"""A job in which the last rank stays away from the ninth allreduce, for the part ``watch-names`` of gpu_run.py."""

from __future__ import annotations

import os
import time

import torch

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
torch.distributed.init_process_group("nccl")
values = torch.ones(1024, device="cuda")
for _call in range(8):
    torch.distributed.all_reduce(values)
torch.cuda.synchronize()
if torch.distributed.get_rank() < torch.distributed.get_world_size() - 1:
    torch.distributed.all_reduce(values)
time.sleep(600)
