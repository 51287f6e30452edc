"""The machine with one GPU that ``make test-gpu`` captured (tests/data/gpu_h200), as a recorded machine."""

from __future__ import annotations

from pathlib import Path

import gpu_parts
from recorded_machine import Answer, Machine

DATA = Path(__file__).parents[1] / "data" / "gpu_h200"
GPU = "0000:00:06.0"
_TOOLS = {
    gpu_parts.QUERY: "nvidia-smi-q-x.xml",
    gpu_parts.LINKS: "nvlink-s.txt",
    gpu_parts.LINK_ERRORS: "nvlink-e.txt",
}


def captured(*, loaded: bool = False) -> Machine:
    """Return the machine as its tools and its PCI devices told of it; loaded while it multiplied matrices."""
    machine = Machine()
    tools = {**_TOOLS, gpu_parts.QUERY: "nvidia-smi-q-x.load.xml"} if loaded else _TOOLS
    for words, name in tools.items():
        machine.tools[words] = Answer((DATA / name).read_text(encoding="utf-8"))
    for path in (*(DATA / "sys").rglob("*"), *(DATA / "proc").rglob("*")):
        if path.is_file() and path.suffix != ".path":
            machine.files[f"/{path.relative_to(DATA)}"] = path.read_text(encoding="utf-8")
    # Not captured: the devices, and the links of /sys.
    machine.add("/dev/nvidia0", "")
    machine.links[f"/sys/bus/pci/devices/{GPU}/driver"] = "../../../../bus/pci/drivers/nvidia"
    return machine
