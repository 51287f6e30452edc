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
    from .record import Answer, Json
    from .tree import Output, Tree

_QUERY_S = 2.0
_PCI = "/sys/bus/pci/devices"
_NVIDIA = 0x10DE
_BRIDGE = 0x0680  # other bridge: an NVSwitch
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_SPEED = re.compile(r"Link (\d+): (?:([\d.]+) GB/s|(<?inactive>?))")
_NONE = "NVML:"  # "Unable to retrieve NVLink information as all links are inActive"
_SILENT = " printed nothing"  # of tree.run: the tool ended with 0
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


def _links(text: str, devices: dict[str, str]) -> dict[str, list[str]]:
    """Return the lines of each GPU."""
    found: dict[str, list[str]] = {}
    device = ""
    for line in text.splitlines():
        gpu = _GPU.match(line.strip())
        if gpu:
            device = devices.get(gpu.group(2), f"GPU {gpu.group(1)}")
            found[device] = []
        elif device and line.strip():
            found[device].append(line.strip())
    return found


def _unread(output: Output, links: dict[str, list[str]], form: re.Pattern, words: str, *, alone: bool) -> str:
    """Return why links could not be read, '' if all could; a GPU without links has no line, or one of NVML.

    Of a GPU that is alone and has no links, some drivers print nothing at all.
    """
    if alone and output.problem.endswith(_SILENT):
        return ""
    if output.problem:
        return output.problem
    if not links:
        return f"{words} names no GPU"
    odd = [device for device, lines in links.items() if lines and not any(map(form.match, lines))]
    odd = [device for device in odd if not links[device][0].startswith(_NONE)]
    return f"{words} tells no link of {', '.join(odd)}" if odd else ""


def _states(tree: Tree, answer: Answer, tool: str, devices: dict[str, str]) -> None:
    output = tree.run([tool, "nvlink", "-s"], _QUERY_S)
    links = _links(output.text, devices)
    for device in sorted(links):
        found = [state for state in map(_SPEED.match, links[device]) if state]
        speeds = [float(state.group(2)) for state in found if state.group(2)]
        if found:
            down = [state.group(1) for state in found if state.group(3)]
            answer.reading("nvlink", device, "links up", len(speeds))
            answer.reading("nvlink", device, "links down", " ".join(down))
        if speeds:
            answer.reading("nvlink", device, "slowest GB/s", min(speeds))
    why = _unread(output, links, _SPEED, "nvidia-smi nvlink -s", alone=len(devices) == 1)
    if why:
        answer.unseen("nvlink", why)


def _errors(tree: Tree, answer: Answer, tool: str, devices: dict[str, str]) -> None:
    output = tree.run([tool, "nvlink", "-e"], _QUERY_S)
    links = _links(output.text, devices)
    for device, lines in links.items():
        for errors in filter(None, map(_ERRORS.match, lines)):
            answer.counter("nvlink", device, f"link {errors.group(1)} {errors.group(2).lower()}", int(errors.group(3)))
    why = _unread(output, links, _ERRORS, "nvidia-smi nvlink -e", alone=len(devices) == 1)
    if why:
        answer.unseen("nvlink errors", why)


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
