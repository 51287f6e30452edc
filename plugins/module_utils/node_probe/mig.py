# SPDX-License-Identifier: Apache-2.0
"""Instances of GPUs in MIG mode, by the names that CUDA_VISIBLE_DEVICES takes."""

from __future__ import annotations

import re

from .reading import Json, find_program, list_folder

# Files and names: NVIDIA, "Multi-Instance GPU User Guide", "Device Nodes and Capabilities" and "MIG Device Names".
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")
_FIRST_WITH_UUID = 470  # the driver branch since which an instance has a UUID of its own
_LIMIT_S = 20  # a driver that nothing has used for a while takes seconds to come up


def compute_instances(minor: str, root: str = "") -> list[tuple[int, int]]:
    """Return the numbers of GPU instance and compute instance of each MIG instance of a GPU.

    Args:
        minor: the GPU's device minor, by which the driver names the folder of its instances.
        root: begin of the path, for tests.
    """
    found = []
    base = f"{root}{_CAPABILITIES}/gpu{minor}/mig"
    for gpu_instance in _numbers(base, "gi"):
        found += [(gpu_instance, one) for one in _numbers(f"{base}/gi{gpu_instance}", "ci")]
    return found


def _numbers(folder: str, prefix: str) -> list[int]:
    names = [name[len(prefix) :] for name in list_folder(folder) if name.startswith(prefix)]
    return sorted(int(name) for name in names if name.isdigit())


def read_instance_list(text: str) -> dict[str, list[str]]:
    """Return the UUIDs of the instances by the GPU's UUID, from what ``nvidia-smi -L`` printed."""
    found: dict[str, list[str]] = {}
    uuid = ""
    for line in text.splitlines():
        gpu, instance = _GPU.match(line), _INSTANCE.match(line)
        if gpu:
            uuid = gpu.group(1)
        elif instance and uuid:
            found.setdefault(uuid, []).append(instance.group(1))
    return found


def named(gpu_uuid: str, instances: list[tuple[int, int]], listed: dict[str, list[str]]) -> list[str]:
    """Return the names of a GPU's instances; the older form of a name needs no list of ``nvidia-smi``."""
    known = listed.get(gpu_uuid, [])
    if len(known) >= len(instances):
        return known
    return [f"MIG-{gpu_uuid}/{gpu_instance}/{one}" for gpu_instance, one in instances]


def ask_nvidia_smi(driver_version: str) -> dict[str, list[str]]:
    """Return the instances that ``nvidia-smi -L`` lists; {} without it, and for a driver whose instances lack UUIDs."""
    branch = driver_version.partition(".")[0]
    program = find_program("nvidia-smi")
    if not program or not branch.isdigit() or int(branch) < _FIRST_WITH_UUID:
        return {}
    import subprocess  # noqa: PLC0415 - seldom needed, and slow to import

    try:
        done = subprocess.run(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return read_instance_list(done.stdout.decode("utf-8", "replace"))


def instances(gpus: list[Json], driver_version: str, root: str = "") -> dict[str, list[str]]:
    """Return the names of the MIG instances by the bus address of their GPU; a GPU without instances is left out."""
    found = {gpu["bus"]: (gpu["uuid"], compute_instances(gpu["minor"], root)) for gpu in gpus if gpu.get("minor")}
    if not any(numbers for _unused, numbers in found.values()):
        return {}
    listed = ask_nvidia_smi(driver_version)
    return {bus: named(uuid, numbers, listed) for bus, (uuid, numbers) in found.items() if numbers}
