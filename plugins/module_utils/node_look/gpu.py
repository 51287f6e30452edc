# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs, the driver as a session finds it, CUDA's version, and MIG instances."""

from __future__ import annotations

import json
import os
import re

from . import libraries, machine
from .libraries import in_library_cache
from .reading import Json, find_program, link_name, list_folder, output_of, read_text

# --- gpu driver ------------------------------------------------------------------------------------------------------

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


def session_driver(module_version: str, library_path: str, root: str = "") -> Json:
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


def why_unusable(taken_by: str, found: Json) -> tuple[str, str]:
    """Return why jobs of a session cannot use a GPU, as a word and as a clause; two times '' if they can.

    Args:
        taken_by: the kernel's driver of the GPU, '' if it has none.
        found: what :func:`session_driver` returns.
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


# --- mig -------------------------------------------------------------------------------------------------------------

# Files and names: NVIDIA, "Multi-Instance GPU User Guide", "Device Nodes and Capabilities" and "MIG Device Names".
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_GPU_LINE = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
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
        gpu, instance = _GPU_LINE.match(line), _INSTANCE.match(line)
        if gpu:
            uuid = gpu.group(1)
        elif instance and uuid:
            found.setdefault(uuid, []).append(instance.group(1))
    return found


def read_modes(text: str) -> list[str]:
    """Return the UUIDs of the GPUs in MIG mode, from what ``nvidia-smi`` printed of ``uuid,mig.mode.current``."""
    lines = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return [words[0] for words in lines if words[1:] == [_ON] and words[0].startswith("GPU-")]


def instance_names(gpu_uuid: str, mig_instances: list[tuple[int, int]], listed: dict[str, list[str]]) -> list[str]:
    """Return the names of a GPU's instances; without a list of ``nvidia-smi``, in the older form.

    A container sees the folders of all instances. ``nvidia-smi`` lists only those that the container was given.
    """
    if listed:
        return listed.get(gpu_uuid, [])
    return [f"MIG-{gpu_uuid}/{gpu_instance}/{one}" for gpu_instance, one in mig_instances]


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


def mig_instances(gpus: list[Json], driver_version: str, root: str = "") -> dict[str, list[str]]:
    """Return the names of the MIG instances by the bus address of their GPU; a GPU without instances is left out."""
    found = {gpu["bus"]: (gpu["uuid"], compute_instances(gpu["minor"], root)) for gpu in gpus if gpu.get("minor")}
    if not any(numbers for _unused, numbers in found.values()):
        return {}
    listed = ask_nvidia_smi(driver_version)
    names = {bus: instance_names(uuid, numbers, listed) for bus, (uuid, numbers) in found.items() if numbers}
    return {bus: own for bus, own in names.items() if own}


def empty_gpus(gpus: list[Json], cut: dict[str, list[str]], driver_version: str, root: str = "") -> list[str]:
    """Return the bus addresses of the GPUs in MIG mode without an instance, on which a program finds no device.

    The driver makes the folder of a GPU's instances whatever its mode is, so only ``nvidia-smi`` can tell.

    Args:
        gpus: with bus, uuid and device minor.
        cut: what :func:`mig_instances` returned.
        driver_version: of the kernel's modules.
        root: begin of the path, for tests.
    """
    asked = {
        gpu["uuid"]: gpu["bus"]
        for gpu in gpus
        if gpu.get("minor") and gpu["bus"] not in cut and os.path.isdir(f"{root}{_CAPABILITIES}/gpu{gpu['minor']}/mig")
    }
    return [asked[uuid] for uuid in ask_modes(driver_version) if uuid in asked] if asked else []


# --- nvlink ----------------------------------------------------------------------------------------------------------
# The form of the answer is that of ``hardware/gpus.py``, which tells the state of each link.

_LINK = re.compile(r"\s+Link \d+: (?:(\d[\d.]*) GB/s|<?inactive>?)")
_WITHOUT_LINKS = re.compile(r"\s*(Device does not have or support Nvlink)?\s*")
_LEAST_LINKED = 2
_SWITCH = "0x0680"  # the PCI class of other bridges, which of NVIDIA's devices are NVSwitches


def read_linked(text: str) -> dict[str, bool]:
    """Return whether an NVLink is up by the UUID of each GPU, from what ``nvidia-smi nvlink -s`` printed.

    A GPU without links is left out. False is also a GPU in MIG mode, whose links are not told. A card that could have a
    bridge and has none prints what a card prints whose links are down.
    """
    found: dict[str, bool] = {}
    uuid = ""
    for line in text.splitlines():
        gpu, link = _GPU_LINE.match(line), _LINK.match(line)
        if gpu:
            uuid = gpu.group(1)
        elif uuid and not _WITHOUT_LINKS.fullmatch(line):
            found[uuid] = found.get(uuid, False) or bool(link and link.group(1))
    return found


def linked(gpus: list[Json], root: str = "") -> dict[str, bool]:
    """Return whether NVLink joins a GPU to others by its UUID: all where there are NVSwitches, else by nvidia-smi.

    False is a GPU whose links are down, or of which nvidia-smi tells nothing. A GPU without links is left out. One that
    is alone on its machine is not asked.
    """
    uuids = [gpu["uuid"] for gpu in gpus if gpu["driver"] == NVIDIA and gpu["uuid"]]
    if len(uuids) < _LEAST_LINKED:
        return {}
    base = f"{root}/sys/bus/pci/devices"
    if any(
        read_text(f"{base}/{bus}/class", "")[:6] == _SWITCH and read_text(f"{base}/{bus}/vendor", "") == _NVIDIA
        for bus in list_folder(base)
    ):
        return dict.fromkeys(uuids, True)
    answer = _answer("nvlink", "-s")
    return {**{uuid: False for uuid in uuids if uuid not in answer}, **read_linked(answer)}


# --- gpu -------------------------------------------------------------------------------------------------------------

_NVIDIA = "0x10de"
# PCI classes of GPUs: VGA controllers, 3D controllers and processing accelerators.
_DISPLAY = "0x0300"
_GPU_CLASSES = (_DISPLAY, "0x0302", "0x1200")
# The first driver branch of each CUDA major (NVIDIA, "CUDA Compatibility", tables 1 and 2 of "Minor Version
# Compatibility", https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_MOST_DIGITS = 9
_CUDA_BRANCHES = ((580, 13), (525, 12), (450, 11), (410, 10))


def gpus(library_path: str, root: str = "", *, nvlink: bool = False) -> Json:
    """Return the NVIDIA GPUs: those that the driver lists, and those on the bus without the driver.

    Args:
        library_path: LD_LIBRARY_PATH of the session, which may lead to the driver's library.
        root: begin of the paths of /proc, /sys and /dev, for tests.
        nvlink: find out which GPUs NVLink joins (may start ``nvidia-smi``); without it, both fields of it are False.

    Returns:
        ``gpus``, each with ``bus``, ``name``, ``uuid``, ``driver`` (which has taken it), ``display`` (a card with a
        screen's class), ``unusable`` and ``problem`` (why jobs cannot use it, as a word and as a clause),
        ``instances`` (the names of its MIG instances), ``nvlink`` (it joins the GPU to others),
        ``nvlink_down`` (all its links are down, or it lacks a bridge, or nvidia-smi does not tell), ``numa`` and
        ``pci_path`` (:func:`machine.place`).
    """
    found = listed(root)
    if not found:
        return {"gpus": []}
    version = driver_version(read_text(f"{root}/proc/driver/nvidia/version", ""))
    driver = session_driver(version, library_path, root)
    instances = mig_instances(found, version, root)
    empty = empty_gpus(found, instances, version, root)
    joined = linked(found, root) if nvlink else {}
    for one in found:
        one.pop("minor")
        one["unusable"], one["problem"] = why_unusable(one["driver"], driver)
        one["instances"] = instances.get(one["bus"], [])
        one["nvlink"] = joined.get(one["uuid"], False)
        one["nvlink_down"] = not joined.get(one["uuid"], True)
        one.update(machine.place(f"{root}/sys/bus/pci/devices/{one['bus']}"))
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
