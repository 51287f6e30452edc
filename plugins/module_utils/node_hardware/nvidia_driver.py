# SPDX-License-Identifier: Apache-2.0
"""What the GPUs' driver shows in /proc, and which processes nobody waits for."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tree import Tree

_GPUS = "/proc/driver/nvidia/gpus"
_INIT = "1"
_KTHREADD = "kthreadd"
_PARENT = 1  # of the fields after the name in /proc/PID/stat: state, parent
_MANAGER = "nv-fabricmanage"  # a name in /proc has 15 characters


def address(text: str) -> str:
    """Write a PCI address of the driver, which has a domain of eight digits, as sysfs does."""
    found = re.fullmatch(r"(?:0000)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", text.strip())
    return found.group(1).lower() if found else text.strip().lower()


def gpus(tree: Tree) -> dict[str, str]:
    """Return the UUID of each GPU that the driver has taken, by PCI address. A container sees its own GPUs alone."""
    found = {}
    for device in tree.names(_GPUS):
        text = tree.text(f"{_GPUS}/{device}/information") or ""
        uuid = re.search(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)", text)
        found[address(device)] = uuid.group(1) if uuid else ""
    return found


def is_closed(tree: Tree, device: str) -> bool:
    """Whether this login may not open a GPU, as in a session that a batch system has confined to other GPUs."""
    minor = re.search(r"Device Minor:\s*(\d+)", tree.text(f"{_GPUS}/{device}/information") or "")
    if not minor:
        return True
    try:
        os.close(os.open(f"{tree.root}/dev/nvidia{minor.group(1)}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EACCES, errno.ENOENT)
    return False


def sees_all_processes(tree: Tree) -> bool:
    """Whether /proc has the processes of the whole machine: not those of a container, nor those of one user."""
    return tree.text("/proc/2/comm") == _KTHREADD


def fabric_manager_runs(tree: Tree) -> bool:
    """Whether a process has the name of the fabric manager."""
    return any(tree.text(f"/proc/{pid}/comm") == _MANAGER for pid in tree.names("/proc") if pid.isdigit())


def is_left_over(tree: Tree, pid: str) -> bool:
    """Whether a process outlived what started it, and is no service.

    Ranks have a launcher as their parent, and processes of a batch system or of a pod have its control group.
    """
    stat = (tree.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    if len(stat) <= _PARENT or stat[_PARENT] != _INIT or not sees_all_processes(tree):
        return False
    groups = tree.text(f"/proc/{pid}/cgroup") or ""
    return not re.search(r"system\.slice|slurm|kubepods|docker|libpod|containerd|lxc|pbs|htcondor|/job", groups)
