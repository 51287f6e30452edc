"""MIG instances of a pod or a job step: which of them its processes take, one each.

A CUDA program sees the first instance that ``CUDA_VISIBLE_DEVICES`` names, and no other. So several processes need the
names of all instances, and each keeps its own. A container runtime may say them as ``GPU:INSTANCE``, which CUDA does
not take.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.launch.local_facts import LocalFacts

CUDA = "CUDA_VISIBLE_DEVICES"
NVIDIA = "NVIDIA_VISIBLE_DEVICES"
EVERY_GPU = frozenset({"all", "void"})  # every GPU there is; or somebody else (CDI) puts them in
_NUMBERED = re.compile(r"\d+:\d+")  # GPU and instance by number, as NVIDIA's container toolkit takes them
_CHOOSE = f"set {CUDA} to instances of 'nvidia-smi -L', or take another --nproc-per-node"


@dataclass(frozen=True)
class PodInstances:
    """The names of the instances, none where processes take whole GPUs; ``said_by`` is what names them."""

    names: tuple[str, ...] = ()
    said_by: str = ""


def of_pod(environment: Mapping[str, str], node: LocalFacts, gpu_devices: int) -> PodInstances:
    """Return the instances that the processes of this pod or job step share out.

    Args:
        environment: of the process.
        node: the facts of this machine, with the instances that ``nvidia-smi`` lists here.
        gpu_devices: how many GPUs have a device file here.

    Raises:
        ConfigError: processes could not tell their instances apart; the sentence says what to do.
    """
    for variable in (CUDA, NVIDIA):
        value = environment.get(variable)
        if value is None or value in EVERY_GPU:
            continue
        words = tuple(word for word in value.split(",") if word)
        return _said(variable, words, node)
    whole = max(0, gpu_devices - node.cut_gpus - node.empty_gpus)
    if node.instances and whole:
        raise ConfigError(
            f"This pod has MIG instances ({len(node.instances)}) and whole GPUs ({whole}), and a program cannot use "
            f"both; set {CUDA} to the names of either, as 'nvidia-smi -L' has them."
        )
    return PodInstances(node.instances, "nvidia-smi") if node.instances else PodInstances()


def _said(variable: str, words: tuple[str, ...], node: LocalFacts) -> PodInstances:
    cut = tuple(word for word in words if word.startswith("MIG-"))
    if cut and len(cut) < len(words):
        raise ConfigError(
            f"{variable}={','.join(words)} names MIG instances and whole GPUs, and a program cannot use both; "
            f"set {CUDA} to the names of either."
        )
    if cut:
        return PodInstances(cut, variable)
    if any(_NUMBERED.fullmatch(word) for word in words):
        if len(node.instances) == len(words):
            return PodInstances(node.instances, "nvidia-smi")
        if len(words) > 1:
            raise ConfigError(
                f"{variable}={','.join(words)} names MIG instances by numbers, which CUDA does not take; {_CHOOSE}."
            )
    if len(words) > 1 and node.instances and node.cut_gpus >= len(words):
        raise ConfigError(
            f"{variable}={','.join(words)} names GPUs that are cut into MIG instances, of which a program sees the "
            f"first alone; set {CUDA} to instances of 'nvidia-smi -L'."
        )
    return PodInstances()
