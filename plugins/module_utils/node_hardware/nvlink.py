# SPDX-License-Identifier: Apache-2.0
"""The links between GPUs: state, speed and errors of each NVLink, the switches, and the fabric manager.

Formats: ``nvidia-smi nvlink -s`` and ``-e`` as in tests/data/hardware/README.md. A look that only counts leaves out
the speeds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import nvidia_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .record import Answer, Json
    from .tree import Tree

_QUERY_S = 2.0
_PCI = "/sys/bus/pci/devices"
_NVIDIA = 0x10DE
_BRIDGE = 0x0680  # other bridge: an NVSwitch
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_SPEED = re.compile(r"Link (\d+): (?:([\d.]+) GB/s|(<?inactive>?))")
_ERRORS = re.compile(r"Link (\d+): (\w[\w ]*?) ?Errors?: (\d+)")


def read(tree: Tree, answer: Answer, request: Json) -> None:
    """Tell the links of all GPUs, and whether the fabric manager runs where there are NVSwitches."""
    devices = {uuid: device for device, uuid in nvidia_driver.gpus(tree).items() if uuid}
    tool = tree.tool("nvidia-smi")
    if tool and devices:
        if request.get("sections") is None:
            _states(tree, answer, tool, devices)
        _errors(tree, answer, tool, devices)
    if request.get("sections") is None:
        _switches(tree, answer)


def _links(text: str, devices: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the GPU and the line of each link."""
    device = ""
    for line in text.splitlines():
        gpu = _GPU.match(line.strip())
        if gpu:
            device = devices.get(gpu.group(2), f"GPU {gpu.group(1)}")
        elif device:
            yield device, line.strip()


def _states(tree: Tree, answer: Answer, tool: str, devices: dict[str, str]) -> None:
    output = tree.run([tool, "nvlink", "-s"], _QUERY_S)
    speeds: dict[str, list[float]] = {}
    down: dict[str, list[str]] = {}
    for device, line in _links(output.text, devices):
        found = _SPEED.match(line)
        if found and found.group(3):
            down.setdefault(device, []).append(found.group(1))
        elif found:
            speeds.setdefault(device, []).append(float(found.group(2)))
    for device in sorted({*speeds, *down}):
        answer.reading("nvlink", device, "links up", len(speeds.get(device, ())))
        answer.reading("nvlink", device, "links down", " ".join(down.get(device, ())))
        if device in speeds:
            answer.reading("nvlink", device, "slowest GB/s", min(speeds[device]))
    if output.problem and not speeds:
        answer.unseen("nvlink", output.problem)


def _errors(tree: Tree, answer: Answer, tool: str, devices: dict[str, str]) -> None:
    output = tree.run([tool, "nvlink", "-e"], _QUERY_S)
    found = False
    for device, line in _links(output.text, devices):
        errors = _ERRORS.match(line)
        if errors:
            found = True
            answer.counter("nvlink", device, f"link {errors.group(1)} {errors.group(2).lower()}", int(errors.group(3)))
    if output.problem and not found:
        answer.unseen("nvlink errors", output.problem)


def _switches(tree: Tree, answer: Answer) -> None:
    switches = [
        device
        for device in tree.names(_PCI)
        if tree.number(f"{_PCI}/{device}/vendor") == _NVIDIA
        and (tree.number(f"{_PCI}/{device}/class") or 0) >> 8 == _BRIDGE
    ]
    if not switches:
        return
    answer.reading("node", "", "NVSwitches", len(switches))
    if nvidia_driver.sees_all_processes(tree):
        answer.reading("node", "", "fabric manager", nvidia_driver.fabric_manager_runs(tree))
    else:
        answer.unseen("fabric manager", "this login does not see the processes of the whole machine")
