# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs, their driver, and the CUDA version."""

from __future__ import annotations

import json
import os

from .library_cache import in_library_cache
from .reading import Json, link_name, list_folder, read_text

_NVIDIA = "0x10de"
# PCI classes of GPUs: VGA controllers, 3D controllers and processing accelerators.
_DISPLAY = "0x0300"
_GPU_CLASSES = (_DISPLAY, "0x0302", "0x1200")
# The first driver branch of each CUDA major (NVIDIA, "CUDA Compatibility", tables 1 and 2 of "Minor Version
# Compatibility", https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_MOST_DIGITS = 9
_CUDA_BRANCHES = ((580, 13), (525, 12), (450, 11), (410, 10))


def gpus(library_path: str, root: str = "") -> Json:
    """Return the NVIDIA GPUs: those that the driver lists, and those on the bus without the driver.

    Args:
        library_path: LD_LIBRARY_PATH of the session, which may lead to the driver's library.
        root: begin of the paths of /proc, /sys and /dev, for tests.

    Returns:
        ``gpus``, each with ``bus``, ``name``, ``uuid``, ``driver`` (which has taken it), ``display`` (a card with a
        screen's class), ``unusable`` and ``problem`` (why jobs cannot use it, as a word and as a clause),
        ``instances`` (the names of its MIG instances), ``numa`` and ``pci_path`` (:func:`topology.place`).
    """
    found = listed(root)
    if not found:
        return {"gpus": []}
    from . import gpu_driver, mig, topology  # noqa: PLC0415 - a node without a GPU, and the quick look at a node, need neither

    version = driver_version(read_text(f"{root}/proc/driver/nvidia/version", ""))
    driver = gpu_driver.driver(version, library_path, root)
    instances = mig.instances(found, version, root)
    empty = mig.empty(found, instances, version, root)
    for one in found:
        one.pop("minor")
        one["unusable"], one["problem"] = gpu_driver.unusable(one["driver"], driver)
        one["instances"] = instances.get(one["bus"], [])
        one.update(topology.place(f"{root}/sys/bus/pci/devices/{one['bus']}"))
        if one["bus"] in empty and not one["unusable"]:
            one["unusable"], one["problem"] = "mig", "MIG mode is on, and the GPU has no instance"
    return {"gpus": found}


def listed(root: str = "") -> list[Json]:
    """Return the GPUs with bus, name, uuid, device minor, driver and display, without a look at the driver."""
    found: dict[str, Json] = {}
    base = f"{root}/proc/driver/nvidia/gpus"
    for bus in list_folder(base):
        about = read_gpu_information(read_text(f"{base}/{bus}/information", ""))
        found[bus.lower()] = {"bus": bus.lower(), **about, "driver": "nvidia", "display": False}
    base = f"{root}/sys/bus/pci/devices"
    for bus in list_folder(base):
        kind = read_text(f"{base}/{bus}/class", "")[:6]
        if kind not in _GPU_CLASSES or read_text(f"{base}/{bus}/vendor", "") != _NVIDIA:
            continue
        entry = {"bus": bus.lower(), "name": "", "uuid": "", "minor": "", "driver": link_name(f"{base}/{bus}/driver")}
        found.setdefault(bus.lower(), entry)["display"] = kind == _DISPLAY
    return [found[bus] for bus in sorted(found)]


def read_gpu_information(text: str) -> dict[str, str]:
    """Return name, uuid and device minor from the text of /proc/driver/nvidia/gpus/BUS/information."""
    about: dict[str, str] = {}
    for line in text.splitlines():
        key, _unused, value = line.partition(":")
        about[key.strip()] = value.strip()
    return {"name": about.get("Model", ""), "uuid": about.get("GPU UUID", ""), "minor": about.get("Device Minor", "")}


def cuda() -> Json:
    """Return the versions of driver and toolkit, and the CUDA major that follows from them."""
    driver = driver_version(read_text("/proc/driver/nvidia/version", ""))
    toolkit = ""
    try:
        said = str(json.loads(read_text("/usr/local/cuda/version.json"))["cuda"]["version"])
        toolkit = said if _is_number(said.partition(".")[0]) else ""
    except (OSError, ValueError, KeyError, TypeError):
        if os.access("/usr/local/cuda/bin/nvcc", os.X_OK):
            toolkit = header_cuda_version(read_text("/usr/local/cuda/include/cuda.h", ""))
    major = None
    if driver:
        major = driver_cuda(driver)
    elif toolkit:
        major = int(toolkit.partition(".")[0])
    return {
        "cuda": {
            "major": major,
            "driver_version": driver,
            "toolkit_version": toolkit,
            "libcuda": in_library_cache(b"libcuda.so.1"),
            "first_branches": first_branches(),
        }
    }


def header_cuda_version(text: str) -> str:
    """Return the version in the text of a toolkit's cuda.h ('' if it is missing); 13000 is 13.0.

    A toolkit that was installed from packages or wheels has no version.json, so its header is read.
    """
    words = text.partition("#define CUDA_VERSION ")[2].split(None, 1)[:1]
    if not words or not _is_number(words[0]):
        return ""
    number = int(words[0])
    return f"{number // 1000}.{number % 1000 // 10}"


def _is_number(word: str) -> bool:
    """Whether ``int`` takes a word: digits of other scripts are digits, and thousands of them are refused."""
    return word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS


def first_branches() -> dict[str, int]:
    """Return the first driver branch that runs each CUDA major; the reader of the record uses the same table."""
    return {str(cuda): branch for branch, cuda in _CUDA_BRANCHES}


def driver_version(text: str) -> str:
    """Return the version in the text of /proc/driver/nvidia/version ('' if it is missing)."""
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            for word in line.split():
                parts = word.split(".")
                if len(parts) > 1 and all(_is_number(part) for part in parts):
                    return word
    return ""


def driver_cuda(version: str) -> int | None:
    """Return the newest CUDA major that a driver runs, None for a driver before 410."""
    branch = int(version.partition(".")[0])
    return next((cuda for first, cuda in _CUDA_BRANCHES if branch >= first), None)
