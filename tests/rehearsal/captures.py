"""Machines of others, by what they told of themselves (tests/data/captures): doctor reads them as it reads a node."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gpu_parts
import rehearsal
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.findings import Finding
from clusterctl.model.hardware import HardwareLooks
from clusterctl.model.hosts import Host
from recorded_machine import Answer, Machine

DATA = Path(__file__).parents[1] / "data" / "captures"
LINE_S = 0.01  # between two lines of a kernel's log
_STAMP = re.compile(r"(kern +:\w+ *: )?(\[[^]]+\]|\d{4}-\d\d-\d\dT\S+) ?")


def text(name: str) -> str:
    """Return what was captured."""
    return gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode("utf-8")


def with_gpus(query: str) -> Machine:
    """Return a machine whose GPUs answered this to ``nvidia-smi``; the PCI bus, not captured, shows them at work."""
    machine = Machine()
    machine.tools[gpu_parts.QUERY] = Answer(text(query))
    addresses = re.findall(r'<gpu id="0000(\S+)"', machine.tools[gpu_parts.QUERY].text)
    for number, address in enumerate(one.lower() for one in addresses):
        device = f"devices/pci0000:00/{address}"
        machine.links[f"/sys/bus/pci/devices/{address}"] = f"../../../{device}"
        machine.links[f"/sys/{device}/driver"] = "../../../bus/pci/drivers/nvidia"
        for name, value in (("vendor", "0x10de"), ("class", "0x030200")):
            machine.add(f"/sys/{device}/{name}", value)
        machine.add(f"/proc/driver/nvidia/gpus/{address}/information", f"Device Minor: \t {number}")
        machine.add(f"/dev/nvidia{number}", "")
    return machine


def with_log(log: str) -> Machine:
    """Return a machine with this log of its kernel, the last line a moment ago."""
    lines = [_STAMP.sub("", line, count=1) for line in text(log).splitlines()]
    machine = Machine()
    machine.events = [((len(lines) - number) * LINE_S, line) for number, line in enumerate(lines)]
    return machine


@dataclass(frozen=True)
class Capture:
    """A capture: the machine, how many GPUs it reads, and what the causes of the findings say, one by one."""

    name: str
    machine: Callable[[], Machine]
    gpus: int = 0
    causes: tuple[str, ...] = ()


CAPTURES = (
    Capture("RTX 4000 SFF Ada, driver 595", lambda: with_gpus("rtx-4000-sff-ada-v13.xml"), 1),
    Capture("A100 in MIG mode, driver 535", lambda: with_gpus("a100-sxm4-v12.xml"), 1),
    Capture("T4, driver 515", lambda: with_gpus("tesla-t4.xml"), 1),
    Capture("eight H100, driver 570", lambda: with_gpus("h100-sxm.xml"), 8),
    Capture("start of a healthy node with H100", lambda: with_log("dmesg.decode.iso.log.1")),
    Capture("Xid 119", lambda: with_log("dmesg-with-xid-119.log"), causes=("Xid 119 of GPU 0000:9b:00.0 5 times",)),
    Capture(
        "Xid 48, 63 and 94",
        lambda: with_log("dmesg.0.log"),
        causes=tuple(f"Xid {number} of GPU 0000:19:00.0" for number in (48, 63, 94)),
    ),
)


def read(capture: Capture) -> tuple[HardwareLooks, tuple[Finding, ...]]:
    """Return what doctor sees of a capture's machine, which stands alone, and its findings."""
    machine = capture.machine()
    looks = rehearsal.looks(machine, machine)
    view = View(hosts=(Host("node1", "10.0.0.1"),), nodes={}, hardware={"node1": looks})
    return looks, registry.diagnose(view)


def wrong(capture: Capture, found: tuple[Finding, ...]) -> list[str]:
    """Return the causes that a capture lacks, and those that it should not have."""
    said = [one.cause for one in found]
    missed = [f"missed: {cause}" for cause in capture.causes if not any(cause in one for one in said)]
    return missed + [one for one in said if not any(cause in one for cause in capture.causes)]
