"""Are the GPUs set alike, does something slow them down, and does anything hold them?

Settings are held against those of most GPUs of the same model. Reasons for lower clocks: NVML API Reference,
"nvmlClocksEventReasons".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import gpu_peers, growing
from clusterctl.diagnosis.counter_limits import GrowthLimit
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import HardwareLooks

ORDER = 53
_SHOWN = 4
_POWER_CAP = "software power cap"  # of healthy GPUs under load
_SLOWED = "microseconds of thermal slowdown"
_LEAST_HELD_MIB = 100
_DIGITS = 10
_BUSY = 50.0  # percent
_SETTINGS = {
    "persistence": "turn it on or off alike on all nodes ('nvidia-smi -pm 1' or the service nvidia-persistenced)",
    "compute mode": "set it alike on all nodes ('nvidia-smi -c DEFAULT')",
    "mig": "set it alike on all nodes ('nvidia-smi -mig 0' or 'nvidia-smi -mig 1')",
    "ecc": "set it alike on all nodes ('nvidia-smi -e 1', then restart the node)",
}
# Setting and usual value: options of nvidia-smi that set it without a reset of the GPU.
_FIXES = {
    ("persistence", "Enabled"): ("-pm", "1"),
    ("persistence", "Disabled"): ("-pm", "0"),
    ("compute mode", "Default"): ("-c", "DEFAULT"),
    ("compute mode", "Exclusive_Process"): ("-c", "EXCLUSIVE_PROCESS"),
}
_NAMES = {"persistence": "persistence mode", "mig": "MIG mode", "ecc": "ECC"}
_COOLING = "look at the fans, the air's way and the room's temperature; 'nvidia-smi -q -d TEMPERATURE' tells the margin"
_THERMAL = GrowthLimit(
    0, "warning", "hardware thermal slowdown", _COOLING, 'NVML API Reference, "nvmlClocksEventReasons"'
)
_SUPPLY = "look at the power supplies and their cables, and at the limit of the chassis in its management controller"


def findings(view: View) -> Iterator[Finding]:
    """Return settings that differ, GPUs that are slowed down, and processes that were left behind."""
    for name, cure in _SETTINGS.items():
        if name == "mig" and any(gpu.instances for node in view.nodes.values() for gpu in node.gpus):
            continue  # the rule of usable GPUs compares the instances
        for found in gpu_peers.odd(view, "gpu", name):
            what = _NAMES.get(name, name)
            cause = f"{what} of the GPU {and_more(found.devices, _SHOWN)} is {found.value}, and {found.usual} on most"
            fix = _FIXES.get((name, str(found.usual)), ())
            commands = tuple(("nvidia-smi", "-i", device, *fix) for device in found.devices) if fix else ()
            yield Finding("gpu settings", "warning", (found.host,), cause, cure, commands)
    yield from _power(view)
    for host, looks in view.hardware.items():
        yield from _throttled(view, host, looks)
        yield from _holders(host, looks)


def _power(view: View) -> Iterator[Finding]:
    for found in gpu_peers.lower(view, "gpu", "power limit W"):
        places = and_more(found.devices, _SHOWN)
        cause = f"the power limit of the GPU {places} is {found.value:g} W, and {found.usual:g} W on most"
        cure = f"raise it with 'nvidia-smi -pl {found.usual:g}', and look for what lowered it"
        fix = tuple(("nvidia-smi", "-i", device, "-pl", f"{found.usual:g}") for device in found.devices)
        yield Finding("gpu settings", "warning", (found.host,), cause, cure, fix)


def notes(view: View) -> Iterator[str]:
    """Return power limits below the default of the card, where they are not below those of other GPUs."""
    told = {(low.host, device) for low in gpu_peers.lower(view, "gpu", "power limit W") for device in low.devices}
    hosts: dict[tuple[float, float], dict[str, None]] = {}
    for host, looks in view.hardware.items():
        defaults = looks.now.numbers("gpu", "default power limit W")
        for device, limit in looks.now.numbers("gpu", "power limit W").items():
            if limit < defaults.get(device, limit) and (host, device) not in told:
                hosts.setdefault((limit, defaults[device]), {})[host] = None
    for (limit, default), names in hosts.items():
        limits = f"the power limit of GPUs is {limit:g} W, and the default of the card is {default:g} W"
        yield f"On {nodeset.folded(names)}, {limits}; 'nvidia-smi -pl {default:g}' raises it."


def _throttled(view: View, host: str, looks: HardwareLooks) -> Iterator[Finding]:
    reasons: dict[str, list[str]] = {}
    for device, text in looks.now.texts("gpu", "throttled by").items():
        for reason in filter(None, text.split(", ")):
            if reason != _POWER_CAP or _capped_alone(view, host, device):
                reasons.setdefault(reason, []).append(device)
    if "hardware slowdown" in reasons and len(reasons) > 1:
        del reasons["hardware slowdown"]  # another reason says which
    for one in growing.above(looks, {("gpu", _SLOWED): _THERMAL}):
        if not any(one.device in devices and "thermal" in reason for reason, devices in reasons.items()):
            seconds = f"{one.grown.grown / 1e6:.1f} s of {_THERMAL.what} in {growing.span(one.grown.seconds)}"
            reasons.setdefault(seconds, []).append(one.device)
    for reason, devices in reasons.items():
        cause = f"the GPU {and_more(devices, _SHOWN)} is slowed down: {reason}"
        cure = _SUPPLY if "power" in reason else _COOLING
        yield Finding("throttling", "warning", (host,), cause, cure, source=_THERMAL.source)


def _capped_alone(view: View, host: str, device: str) -> bool:
    """Whether a GPU is at its power cap and no other busy GPU of the cluster is."""
    others = [
        looks.now.text("gpu", "throttled by", other)
        for name, looks in view.hardware.items()
        for other, busy in looks.now.numbers("gpu", "utilization").items()
        if (name, other) != (host, device) and busy >= _BUSY
    ]
    return len(others) >= gpu_peers.LEAST and not any(_POWER_CAP in text for text in others)


def _holders(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    held: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for one in looks.now.readings:
        name, _, memory = str(one.value).rpartition(", ")
        if one.kind == "gpu holder" and one.name.isdecimal() and _mib(memory) >= _LEAST_HELD_MIB:
            held.setdefault(one.name, []).append(one.device)
            words[one.name] = f"{name}, {memory}"
    for pid, devices in held.items():
        cause = f"process {pid} ({words[pid]}) holds the GPU {and_more(devices, _SHOWN)}, and what started it has ended"
        cure = f"end it with 'kill {pid}' if nobody needs it"
        yield Finding("leftovers", "warning", (host,), cause, cure, (("kill", pid),))


def _mib(text: str) -> int:
    digits = text.removesuffix(" MiB")
    return int(digits) if digits.isdecimal() and len(digits) < _DIGITS else 0
