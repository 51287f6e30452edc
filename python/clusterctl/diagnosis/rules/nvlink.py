"""Are all NVLinks up and clean, and is the fabric between the GPUs ready?

Limits of errors are those of NVIDIA DCGM (dcgmlib, dcgm_gpu_hardware_limits.h): one replay or recovery, or 100 CRC
errors a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import gpu_peers, growing
from clusterctl.diagnosis.counter_limits import GrowthLimit
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Severity
    from clusterctl.model.hardware import Hardware, HardwareLooks

ORDER = 54
_SHOWN = 4
_CRC_PER_HOUR = 100 * 3600.0
_COUNTED = ("replay", "recovery", "malformed packet", "buffer overrun", "rx remote", "local link integrity")
_SETTLED_S = 600.0  # after the start, a fabric may still be under way
_DCGM = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h"
_CURE = "drain the node and reset all its GPUs, or restart it; if it comes back, have the GPU or the board replaced"
_MANAGER = (
    "start it with 'systemctl enable --now nvidia-fabricmanager', in the version of the driver; "
    "'journalctl -u nvidia-fabricmanager' says why it ended"
)


def findings(view: View) -> Iterator[Finding]:
    """Return links that are down, slow or failing, and a fabric that is not ready."""
    for found in gpu_peers.lower(view, "nvlink", "links up"):
        down = view.hardware[found.host].now.text("nvlink", "links down", found.devices[0])
        links = f" (link {', '.join(down.split())})" if down else ""
        places = and_more(found.devices, _SHOWN)
        cause = f"the GPU {places} has {found.value:g} NVLinks up{links}, and most have {found.usual:g}"
        yield Finding("nvlink", "error", (found.host,), cause, _CURE)
    for found in gpu_peers.lower(view, "nvlink", "slowest GB/s"):
        places = and_more(found.devices, _SHOWN)
        cause = f"an NVLink of the GPU {places} runs at {found.value:g} GB/s, and most at {found.usual:g}"
        yield Finding("nvlink", "error", (found.host,), cause, _CURE)
    ready = any("Completed" in looks.now.texts("gpu", "fabric state").values() for looks in view.hardware.values())
    for host, looks in view.hardware.items():
        yield from _growing(host, looks)
        if ready or looks.now.number("node", "NVSwitches"):
            yield from _fabric(host, looks.now)


def _growing(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    limits = {("nvlink", one.name): _limit(one.name) for one in looks.now.counters if one.kind == "nvlink"}
    failing: dict[str, list[str]] = {}
    for one in growing.above(looks, {key: limit for key, limit in limits.items() if limit}):
        link, _, error = one.name.removeprefix("link ").partition(" ")
        words = f"link {link}: {one.grown.grown} {error} errors in {growing.span(one.grown.seconds)}"
        failing.setdefault(one.device, []).append(words)
    for device, links in failing.items():
        cause = f"errors of NVLink grow on the GPU {device}: {and_more(links, _SHOWN)}"
        yield Finding("nvlink", "warning", (host,), cause, _CURE, source=_DCGM)


def _limit(name: str) -> GrowthLimit | None:
    """Return the limit of a counter such as ``link 4 replay``."""
    error = name.removeprefix("link ").partition(" ")[2]
    per_hour = _CRC_PER_HOUR if error == "crc" else 0.0
    return GrowthLimit(per_hour, "warning", error, _CURE, _DCGM) if per_hour or error in _COUNTED else None


def _fabric(host: str, seen: Hardware) -> Iterator[Finding]:
    states = seen.texts("gpu", "fabric state")
    statuses = seen.texts("gpu", "fabric status")
    bad: dict[str, list[str]] = {}
    for device, state in states.items():
        status = statuses.get(device, "Success")
        if state == "Completed" and status != "Success":
            bad.setdefault(f"failed: {status}", []).append(device)
        elif state != "Completed" and seen.uptime_s > _SETTLED_S:
            bad.setdefault(f"'{state}'", []).append(device)
    for state, devices in bad.items():
        cause = f"the NVLink fabric of the GPU {and_more(devices, _SHOWN)} is not ready: its registration is {state}"
        yield Finding("fabric manager", "error", (host,), cause, _MANAGER)
    if seen.flag("node", "fabric manager") is False and not bad and seen.uptime_s > _SETTLED_S:
        severity: Severity = "warning" if states else "error"  # a fabric that is ready stays so until the next reset
        switches = seen.number("node", "NVSwitches") or 0
        cause = f"the fabric manager does not run, and the node has {switches} NVSwitches"
        fix = (("systemctl", "enable", "--now", "nvidia-fabricmanager"),)
        yield Finding("fabric manager", severity, (host,), cause, _MANAGER, fix)
