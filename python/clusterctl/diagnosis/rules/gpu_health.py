"""Are all GPUs there, does the driver answer, and is their memory sound?

A GPU that most nodes have at the same PCI address is missing where it is not on the bus. Counters of errors are judged
by their growth. Corrected errors need no action, so they are held against those of other GPUs. What must be reset or
replaced: NVIDIA GPU Memory Error Management, "Row Remapping" and "RMA Policy".
"""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.analysis.counter_growth import LASTING, growth
from clusterctl.diagnosis import growing
from clusterctl.diagnosis.counter_limits import GrowthLimit
from clusterctl.diagnosis.rules import alike
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Severity
    from clusterctl.model.hardware import Hardware, HardwareLooks

ORDER = 52
_SHOWN = 4
_LEAST = 3
_MANY, _TIMES = 100, 10.0  # corrected errors between two looks or in a day, and as fast as the median of the other GPUs
_SINCE = ("first", "last_run")
_DAY_S = 86_400.0
_MEMORY = "NVIDIA, GPU Memory Error Management and Dynamic Page Retirement"
_WATCH = "watch it: 'nvidia-smi -q -d ECC,ROW_REMAPPER'; if rows are remapped, reset the GPU when it is free"
_RESET = "drain the node and reset the GPU ('nvidia-smi --gpu-reset -i GPU'), or restart the node"
_WORN = "reset the GPU when it is free ('nvidia-smi --gpu-reset -i GPU'); if it goes on, have the GPU replaced"
_RESTART = "drain the node and restart it; if it comes back, reseat the GPU or have it replaced"
_REPLACE = "drain the node and have the GPU replaced"
# Reading, value: severity, what it means, cure.
_STATES: dict[tuple[str, str], tuple[Severity, str, str]] = {
    ("remap failed", "Yes"): ("error", "a row of its memory could not be remapped", _REPLACE),
    ("remap pending", "Yes"): ("warning", "a row of its memory waits to be remapped until the next reset", _RESET),
    ("retirement pending", "Yes"): ("warning", "a page of its memory waits to be retired until the next reset", _RESET),
    ("sram threshold exceeded", "Yes"): ("error", "it has more errors in its SRAM than NVIDIA allows", _REPLACE),
    ("reset required", "Yes"): ("error", "it must be reset", _RESET),
}
_GROWTH = {
    ("gpu", "uncorrectable ECC errors"): GrowthLimit(0, "error", "uncorrectable ECC errors", _RESET, _MEMORY),
    **{key: GrowthLimit(0, "warning", key[1], _WORN, _MEMORY) for key in LASTING},
}
_RECOVERY = {"Reset": _RESET, "GPU Reset": _RESET, "Reboot": _RESTART, "Node Reboot": _RESTART}


def findings(view: View) -> Iterator[Finding]:
    """Return GPUs that are lost, missing or failing."""
    yield from alike.without(view, "gpu", "pci", "gpus", "GPU")
    usual = _usual_places(view)
    for host, looks in view.hardware.items():
        yield from _driver(view, host, looks.now)
        yield from _states(host, looks.now)
        yield from _growing(host, looks)
        yield from _missing(view, host, looks.now, usual)
    yield from _corrected(view)


def _driver(view: View, host: str, seen: Hardware) -> Iterator[Finding]:
    node = view.nodes.get(host)
    told = node is not None and any(gpu.unusable == "versions" for gpu in node.gpus)  # by the rule of usable GPUs
    if seen.text("node", "NVML") and not told:
        cause = "the driver's library is of another version than its module in the kernel (nvidia-smi: NVML mismatch)"
        cure = "restart the node, or unload the driver's modules and load them again, so that both are of one version"
        yield Finding("gpus", "error", (host,), cause, cure)
    lost = tuple(seen.flags("gpu", "lost"))
    if lost:
        cause = f"the driver has lost the GPU {and_more(lost, _SHOWN)}: it is there, and gives no answer"
        yield Finding("gpus", "error", (host,), cause, _RESTART)


def _states(host: str, seen: Hardware) -> Iterator[Finding]:
    for (name, value), (severity, what, cure) in _STATES.items():
        devices = [device for device, now in seen.texts("gpu", name).items() if now == value]
        if devices:
            cause = f"the GPU {and_more(devices, _SHOWN)} must be looked after: {what}"
            yield Finding("ecc", severity, (host,), cause, cure.replace("-i GPU", f"-i {devices[0]}"))
    for device, action in seen.texts("gpu", "recovery action").items():
        cause = f"the driver asks for '{action}' of the GPU {device} before it can be used"
        cure = _RECOVERY.get(action, "drain the node, then reset the GPU")
        yield Finding("ecc", "error", (host,), cause, cure.replace("-i GPU", f"-i {device}"))


def _growing(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    for one in growing.above(looks, _GROWTH):
        cause = f"the GPU {one.device} had {one.grown.grown} more {one.limit.what} in {growing.span(one.grown.seconds)}"
        cure = one.limit.cure.replace("-i GPU", f"-i {one.device}")
        yield Finding("ecc", one.limit.severity, (host,), cause, cure, source=one.limit.source)


def _corrected(view: View) -> Iterator[Finding]:
    """Name GPUs whose corrected errors grow far faster than on most GPUs; by themselves they need nothing done."""
    told: set[tuple[str, str]] = set()
    for before in ({host: getattr(looks, name) for host, looks in view.hardware.items()} for name in _SINCE):
        rates = {
            (host, device): one
            for host, look in before.items()
            if look is not None
            for (kind, device, name), one in growth(look, view.hardware[host].now).items()
            if (kind, name) == ("gpu", "corrected ECC errors")
        }
        for place, one in rates.items():
            many = _MANY * max(1.0, one.seconds / _DAY_S)
            if place in told or one.grown < many or len(rates) < _LEAST:
                continue
            if one.per_hour > _TIMES * statistics.median(it.per_hour for other, it in rates.items() if other != place):
                told.add(place)
                often = f"{one.grown} ECC errors in {growing.span(one.seconds)}"
                cause = f"the GPU {place[1]} corrected {often}, far more than most GPUs"
                yield Finding("ecc", "warning", (place[0],), cause, _WATCH)


def _usual_places(view: View) -> set[str]:
    """Return the PCI addresses at which most nodes with GPUs have one."""
    able = [looks.now.flags("gpu", "on the bus") for looks in view.hardware.values()]
    able = [places for places in able if places]
    counts = Counter(device for places in able for device in places)
    return {device for device, count in counts.items() if len(able) >= _LEAST and count * 2 > len(able)}


def _missing(view: View, host: str, seen: Hardware, usual: set[str]) -> Iterator[Finding]:
    own = {*seen.flags("gpu", "on the bus"), *seen.odd_ones("gpu", "on the bus")}
    gone = sorted(usual - own)
    if not own or not gone:
        return
    others = [len(looks.now.flags("gpu", "on the bus")) for name, looks in view.hardware.items() if name != host]
    most = Counter(number for number in others if number).most_common(1)
    node = view.nodes.get(host)
    # Where the facts have the number as well, the rule of usable GPUs tells it.
    if most and len(own) < most[0][0] and not (node and len(node.gpus) < most[0][0]):
        cause = f"the GPU {and_more(gone, _SHOWN)} is not on the PCI bus: {len(own)} are there, {most[0][0]} elsewhere"
        yield Finding("gpus", "error", (host,), cause, _RESTART)
