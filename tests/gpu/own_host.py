"""Let a rank of torchrun be a host of its own to NCCL, then become the program that TEST_GPU_PROGRAM names.

NCCL before 2.30.3 refuses ranks of one host that share a GPU. Ranks of several hosts use the network.
"""

from __future__ import annotations

import os
import sys

os.environ["NCCL_HOSTID"] = f"clusterctl-{os.environ['RANK']}"
os.execv(sys.executable, [sys.executable, "-u", os.environ["TEST_GPU_PROGRAM"]])  # noqa: S606 - no shell is wanted
