# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver as a session finds it: where its library lies, and why jobs cannot use a GPU."""

from __future__ import annotations

import os

from . import libraries
from .reading import Json

LIBRARY = "libcuda.so.1"
NVIDIA = "nvidia"
# Where containers of Kubernetes keep the driver on the host: the root of the driver container of the GPU operator
# (hostPaths.driverInstallDir), GKE's nodes, and Container-Optimized OS (https://docs.nvidia.com/datacenter/cloud-native/
# gpu-operator/latest/, https://cloud.google.com/kubernetes-engine/docs/how-to/gpus,
# https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus).
CONTAINER_ROOTS = ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/var/lib/nvidia")
_LIBRARY_FOLDERS = (
    "lib64",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_LEAST_PARTS = 2  # of a driver's version, as in 515.76


def driver(module_version: str, library_path: str, root: str = "") -> Json:
    """Return what a session finds of the driver.

    Args:
        module_version: the version of the kernel's modules.
        library_path: LD_LIBRARY_PATH of the session.
        root: begin of the paths of containers and devices, for tests.

    Returns:
        ``module_version``; ``library`` and ``library_version`` of the libcuda.so.1 that a session loads, '' where it
        finds none; ``container_root``: where a container keeps the driver; ``has_device``: /dev/nvidiactl is there.
    """
    found = libraries.libraries([{"soname": LIBRARY}], library_path)["libraries"][0]
    return {
        "module_version": module_version,
        "library": found["path"],
        "library_version": file_version(found["real"]),
        "container_root": container_root(root),
        "has_device": os.path.exists(f"{root}/dev/nvidiactl"),
    }


def container_root(root: str = "") -> str:
    """Return the folder in which a container keeps the driver, '' if there is none."""
    for place in CONTAINER_ROOTS:
        if any(os.path.exists(f"{root}{place}/{folder}/{LIBRARY}") for folder in _LIBRARY_FOLDERS):
            return place
    return ""


def file_version(path: str) -> str:
    """Return the version in the name of the driver's library: libcuda.so.535.104.05; '' for another name."""
    named = os.path.basename(path).partition(".so.")[2]
    parts = named.split(".")
    return named if len(parts) >= _LEAST_PARTS and all(part.isdigit() for part in parts) else ""


def unusable(taken_by: str, found: Json) -> tuple[str, str]:
    """Return why jobs of a session cannot use a GPU, as a word and as a clause; two times '' if they can.

    Args:
        taken_by: the kernel's driver of the GPU, '' if it has none.
        found: what :func:`driver` returns.
    """
    if taken_by != NVIDIA:
        return (
            "driver",
            f"the driver {taken_by} is in use and not NVIDIA's" if taken_by else "NVIDIA's driver is missing",
        )
    if not found["library"]:
        if found["container_root"]:
            return "container", f"the driver is in a container below {found['container_root']}, where only pods find it"
        if not found["has_device"]:
            return "device", "the device files are missing, as in a container that was not given the GPUs"
        return "library", f"no session finds {LIBRARY}, the driver's library"
    kernel, its = found["module_version"], found["library_version"]
    # CUDA's compatibility package brings a newer library for an older kernel module, below .../compat.
    if kernel and its and kernel != its and "/compat/" not in found["library"]:
        return "versions", f"the kernel runs driver {kernel}, and {found['library']} is of driver {its}"
    return "", ""
