"""What a check needs of a node's training stack: PyTorch, GPUs, and an NCCL that lets ranks share a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.validation.checks.base import Site

_SHARING_NCCL = (2, 30, 3)  # the first NCCL with NCCL_MULTI_RANK_GPU_ENABLE
# The first NCCL whose communicator takes several MIG instances of a GPU, and the CUDA that its driver must run (NCCL's
# user guide, "Creating a Communicator", "Using MIG instances"). Before, it takes two ranks on one GPU for an error.
_MIG_NCCL, _MIG_CUDA = (2, 31), 13


def without_pytorch(stack: NodeStack) -> str:
    """Return why a node cannot run PyTorch, empty when it can."""
    return "" if stack.framework == "pytorch" else "no PyTorch"


def gpus(site: Site) -> bool:
    """Whether every rank can use a GPU with PyTorch; ranks of a node may share one, but not a MIG instance."""
    return bool(site.stack) and all(
        stack.framework_cuda and stack.gpus and _suffice(stack, site.slots[node]) for node, stack in site.stack.items()
    )


def _suffice(stack: NodeStack, slots: int) -> bool:
    """Whether the NCCL that PyTorch loads joins so many ranks of a node."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", stack.framework_nccl or stack.nccl)[:3])
    if stack.most_instances > 1 and slots > 1:
        return stack.gpus >= slots and numbers >= _MIG_NCCL and stack.driver_cuda >= _MIG_CUDA
    return stack.gpus >= slots or (not stack.most_instances and numbers >= _SHARING_NCCL)
