# SPDX-License-Identifier: Apache-2.0
"""Instances of GPUs in MIG mode, by the names that CUDA_VISIBLE_DEVICES takes."""

from __future__ import annotations

import os
import re

from .reading import Json, find_program, list_folder, output_of

# Files and names: NVIDIA, "Multi-Instance GPU User Guide", "Device Nodes and Capabilities" and "MIG Device Names".
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")
_FIRST_WITH_UUID = 470  # the driver branch since which an instance has a UUID of its own
_FIRST_WITH_MIG = 450
_ON = "Enabled"  # of nvidia-smi's mig.mode.current
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


def read_modes(text: str) -> list[str]:
    """Return the UUIDs of the GPUs in MIG mode, from what ``nvidia-smi`` printed of ``uuid,mig.mode.current``."""
    lines = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return [words[0] for words in lines if words[1:] == [_ON] and words[0].startswith("GPU-")]


def named(gpu_uuid: str, instances: list[tuple[int, int]], listed: dict[str, list[str]]) -> list[str]:
    """Return the names of a GPU's instances; without a list of ``nvidia-smi``, in the older form.

    A container sees the folders of all instances. ``nvidia-smi`` lists only those that the container was given.
    """
    if listed:
        return listed.get(gpu_uuid, [])
    return [f"MIG-{gpu_uuid}/{gpu_instance}/{one}" for gpu_instance, one in instances]


def ask_nvidia_smi(driver_version: str) -> dict[str, list[str]]:
    """Return the instances that ``nvidia-smi -L`` lists; {} without it, and for a driver whose instances lack UUIDs."""
    return read_instance_list(_answer("-L")) if _branch(driver_version) >= _FIRST_WITH_UUID else {}


def ask_modes(driver_version: str) -> list[str]:
    """Return the UUIDs of the GPUs that are in MIG mode; [] without ``nvidia-smi``, and for a driver without MIG."""
    if _branch(driver_version) < _FIRST_WITH_MIG:
        return []
    return read_modes(_answer("--query-gpu=uuid,mig.mode.current", "--format=csv,noheader"))


def _branch(driver_version: str) -> int:
    head = driver_version.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _answer(*words: str) -> str:
    """Return what ``nvidia-smi`` prints, '' without it and where it does not end well."""
    program = find_program("nvidia-smi")
    if not program:
        return ""
    _status, output = output_of([program, *words], _LIMIT_S)
    return output.decode("utf-8", "replace")


def instances(gpus: list[Json], driver_version: str, root: str = "") -> dict[str, list[str]]:
    """Return the names of the MIG instances by the bus address of their GPU; a GPU without instances is left out."""
    found = {gpu["bus"]: (gpu["uuid"], compute_instances(gpu["minor"], root)) for gpu in gpus if gpu.get("minor")}
    if not any(numbers for _unused, numbers in found.values()):
        return {}
    listed = ask_nvidia_smi(driver_version)
    names = {bus: named(uuid, numbers, listed) for bus, (uuid, numbers) in found.items() if numbers}
    return {bus: own for bus, own in names.items() if own}


def empty(gpus: list[Json], cut: dict[str, list[str]], driver_version: str, root: str = "") -> list[str]:
    """Return the bus addresses of the GPUs in MIG mode without an instance, on which a program finds no device.

    The driver makes the folder of a GPU's instances whatever its mode is, so only ``nvidia-smi`` can tell.

    Args:
        gpus: with bus, uuid and device minor.
        cut: what :func:`instances` returned.
        driver_version: of the kernel's modules.
        root: begin of the path, for tests.
    """
    asked = {
        gpu["uuid"]: gpu["bus"]
        for gpu in gpus
        if gpu.get("minor") and gpu["bus"] not in cut and os.path.isdir(f"{root}{_CAPABILITIES}/gpu{gpu['minor']}/mig")
    }
    return [asked[uuid] for uuid in ask_modes(driver_version) if uuid in asked] if asked else []
