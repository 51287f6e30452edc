# SPDX-License-Identifier: Apache-2.0
"""Where cores, GPUs and RDMA devices lie: NUMA nodes, and bridges of PCI.

Formats: Documentation/ABI/stable/sysfs-devices-node, and Documentation/ABI/testing/sysfs-bus-pci of Linux. The path of
a PCI device in /sys/devices names each bridge above it.
"""

from __future__ import annotations

import os
import re

from .reading import Json, list_folder, read_number, read_text

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MOST_CPUS = 1 << 16


def numa(root: str = "") -> Json:
    """Return ``numa``: by NUMA node, the cores that a session may use, each as the list of its hardware threads.

    A machine that has no NUMA nodes, or hides them, has one with the number 0.

    Args:
        root: begin of the paths of /sys, for tests.
    """
    allowed = os.sched_getaffinity(0)
    found = []
    base = f"{root}/sys/devices/system/node"
    for name in list_folder(base):
        if re.fullmatch(r"node[0-9]{1,6}", name):
            cpus = allowed & set(cpu_list(read_text(f"{base}/{name}/cpulist", "")))
            found.append({"number": int(name[4:]), "cores": _cores(cpus, root)})
    found = [one for one in found if one["cores"]] or [{"number": 0, "cores": _cores(allowed, root)}]
    return {"numa": sorted(found, key=lambda one: int(one["number"]))}


def place(path: str) -> Json:
    """Return ``numa`` (-1 where unknown) and ``pci_path`` (the bridges from the root, then the device) of a device.

    Args:
        path: a link to a PCI device's folder, such as /sys/bus/pci/devices/0000:07:00.0.
    """
    number = read_number(f"{path}/numa_node")
    steps = [step for step in os.path.realpath(path).lower().split("/") if _PCI.fullmatch(step)]
    return {"numa": -1 if number is None else number, "pci_path": steps}


def cpu_list(text: str) -> list[int]:
    """Return the numbers in a list of the kernel such as ``0-3,8``; [] for another text."""
    found: list[int] = []
    for word in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
        if not match or int(match.group(2) or match.group(1)) >= _MOST_CPUS:
            return []
        found += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    return found


def _cores(cpus: set[int], root: str) -> list[str]:
    """Return each core among some hardware threads as the list of its threads among them, such as ``0,64``."""
    left, found = set(cpus), []
    for cpu in sorted(cpus):
        if cpu in left:
            text = read_text(f"{root}/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", "")
            threads = sorted((set(cpu_list(text)) & left) | {cpu})
            left.difference_update(threads)
            found.append(",".join(str(one) for one in threads))
    return found
