"""What a check needs of a node's training stack: PyTorch, GPUs, and an NCCL that lets ranks share a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.validation.checks.base import Site

_SHARING_NCCL = (2, 30, 3)  # the first NCCL with NCCL_MULTI_RANK_GPU_ENABLE


def without_pytorch(stack: NodeStack) -> str:
    """Return why a node cannot run PyTorch, empty when it can."""
    return "" if stack.framework == "pytorch" else "no PyTorch"


def gpus(site: Site) -> bool:
    """Whether every rank can use a GPU with PyTorch; ranks of a node may share one."""
    return bool(site.stack) and all(
        stack.framework_cuda and stack.gpus and (stack.gpus >= site.slots[node] or _can_share(stack))
        for node, stack in site.stack.items()
    )


def _can_share(stack: NodeStack) -> bool:
    """Whether the NCCL that PyTorch loads lets ranks share a GPU."""
    numbers = re.findall(r"\d+", stack.framework_nccl or stack.nccl)[:3]
    return tuple(int(number) for number in numbers) >= _SHARING_NCCL
