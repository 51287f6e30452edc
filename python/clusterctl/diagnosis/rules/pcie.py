"""Do GPUs and RDMA cards have the whole of their PCIe links, and a straight way to each other?

An idle GPU lowers its generation, so that is judged under load alone. A link that is narrow on most devices of a model
is how the machines are built, and no finding. ACS and IOMMU: NCCL User Guide, "Troubleshooting", "GPU Direct".
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.diagnosis import gpu_peers, growing
from clusterctl.diagnosis.counter_limits import GrowthLimit
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware, HardwareLooks

ORDER = 55
_SHOWN = 4
_BUSY = 20.0  # percent
_NAMES = {"gpu": "GPU", "rdma card": "RDMA card"}
_CURE = "reseat the card and its riser or cable, and look at the slot's setting in the firmware"
_DCGM = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h: 8 replays a minute"
_REPLAYS = GrowthLimit(8 * 60, "warning", "replays", _CURE, _DCGM, at_least=10)
_AER = "PCI Express Base Specification, Advanced Error Reporting"
_GROWTH = {
    ("gpu", "PCIe replays"): _REPLAYS,
    ("pcie", "correctable errors"): _REPLAYS._replace(what="correctable errors"),  # most of them end in a replay
    ("pcie", "non-fatal errors"): GrowthLimit(0, "error", "non-fatal errors", _CURE, _AER),
    ("pcie", "fatal errors"): GrowthLimit(0, "error", "fatal errors", _CURE, _AER),
}
_TRANSLATES = ("DMA", "DMA-FQ")
_IOMMU = "start the kernel with 'iommu=pt', or turn the IOMMU off, where no virtual machine needs it"
_ACS = "turn ACS off in the firmware, or at each start with 'setpci' as NCCL's guide says under 'PCI Access Control'"
_PEERMEM = "load the module nvidia_peermem at each start ('modprobe nvidia_peermem'), or install the open driver"


def findings(view: View) -> Iterator[Finding]:
    """Return links that are narrow, slow or failing, and what turns traffic between GPU and card aside."""
    for kind in _NAMES:
        yield from _links(view, kind, "lanes")
        yield from _links(view, kind, "GT/s")
    for found in gpu_peers.lower(view, "gpu", "PCIe GT/s possible"):
        places = and_more(found.devices, _SHOWN)
        cause = f"the PCIe link of the GPU {places} allows at most {found.value:g} GT/s, and {found.usual:g} on most"
        yield Finding("pcie", "warning", (found.host,), cause, _CURE)
    for host, looks in view.hardware.items():
        yield from _growing(host, looks)
    yield from _way(view)


def _links(view: View, kind: str, unit: str) -> Iterator[Finding]:
    """Name the devices whose link has less than both its ends can do, unless most of their model have no more."""
    for members in gpu_peers.values(view, kind, f"PCIe {unit}").values():
        judged = {place: value for place, value in members.items() if _counts(view, kind, unit, place)}
        counts = Counter(judged.values())
        for (host, device), value in judged.items():
            now = gpu_peers.number(value)
            possible = view.hardware[host].now.number(kind, f"PCIe {unit} possible", device) or 0.0
            if not 0 < now < possible:
                continue
            alike, others = counts[value] - 1, len(judged) - 1  # among the others
            if alike * 2 > others > 0 or gpu_peers.built_so(judged, (host, device)):
                continue
            what = f"{now:g} of {possible:g} {unit}"
            loaded = " under load" if (kind, unit) == ("gpu", "GT/s") else ""
            cause = f"the PCIe link of the {_NAMES[kind]} {device} runs with {what}{loaded}"
            yield Finding("pcie", "warning", (host,), cause, _CURE)


def _counts(view: View, kind: str, unit: str, place: tuple[str, str]) -> bool:
    if (kind, unit) != ("gpu", "GT/s"):
        return True
    host, device = place
    return (view.hardware[host].now.number("gpu", "utilization", device) or 0.0) >= _BUSY


def _growing(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    for one in growing.above(looks, _GROWTH):
        often = f"{one.grown.grown} more {one.limit.what} in {growing.span(one.grown.seconds)}{one.limit.beside}"
        cause = f"the PCIe link of {one.device} had {often}"
        yield Finding("pcie", one.limit.severity, (host,), cause, _CURE, source=one.limit.source)


def _way(view: View) -> Iterator[Finding]:
    """Name what sends traffic between GPU and card through the processor, one finding for all nodes that are alike."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, looks in view.hardware.items():
        for cause, cure in _turns(looks.now):
            hosts.setdefault((cause, cure), []).append(host)
    for (cause, cure), names in hosts.items():
        fix = (("modprobe", "nvidia_peermem"),) if cure == _PEERMEM else ()
        yield Finding("gpudirect", "warning", tuple(names), cause, cure, fix)


def _turns(seen: Hardware) -> Iterator[tuple[str, str]]:
    if not seen.numbers("rdma card", "PCIe lanes"):
        return
    kinds = set(seen.texts("gpu", "IOMMU").values()) & set(_TRANSLATES)
    if kinds:
        yield (
            f"the IOMMU translates addresses of the GPUs (type {', '.join(sorted(kinds))}), which slows GPUDirect RDMA",
            _IOMMU,
        )
    ports = [port for port, on in seen.flags("pci port", "ACS").items() if on]
    if ports:
        yield f"ACS is on at the PCI switch ports {and_more(ports, _SHOWN)} between GPUs and RDMA cards", _ACS
    if seen.text("node", "GPUDirect") == "none":
        yield "RDMA cards cannot reach the memory of GPUs: neither nvidia_peermem nor DMA-BUF is there", _PEERMEM
