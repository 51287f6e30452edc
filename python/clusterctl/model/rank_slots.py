"""How many ranks a node takes, and which GPUs and cores they get."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Host


def slots_of(host: Host, node: NodeFacts) -> int:
    """Return how many ranks a node takes: the inventory's word, else one per usable GPU or MIG instance, else cores."""
    return host.slots or len(gpu_devices(node)) or max(1, node.cores)


def gpu_devices(node: NodeFacts) -> tuple[str, ...]:
    """Return what CUDA_VISIBLE_DEVICES can name of a node: its usable GPUs, or their MIG instances."""
    return tuple(name for gpu in node.gpus for name in gpu.devices)


def usable_cores(node: NodeFacts) -> int:
    """Return the cores that a node's ranks get: its own, or fewer by the CPU quota of its control group."""
    quota = node.cpu_quota.cores
    return max(1, node.cores if quota is None else min(node.cores, int(quota)))
