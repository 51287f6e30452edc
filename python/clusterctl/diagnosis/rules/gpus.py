"""Rules of GPUs: can jobs use them, are they there, sound and set alike, and have they all of their links?

A GPU that most nodes have at the same PCI address is missing where it is not on the bus. Settings are held against
those of most GPUs of the same model. Corrected errors need no action, so they are held against those of other GPUs. A
PCIe link that is narrow on most devices of a model is how the machines are built. ACS and IOMMU: NCCL User Guide,
"Troubleshooting", "GPU Direct".
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from clusterctl.analysis.nccl_path import NO_GPUDIRECT
from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.rules import table
from clusterctl.diagnosis.rules.engines import (
    LEAST,
    MOST_DEVICES,
    SHOWN,
    Growth,
    above,
    beyond,
    by_model,
    growth,
    is_built_so,
    number,
    odd,
    span,
    stands_out,
    unlike_model,
    voters,
    without,
)
from clusterctl.diagnosis.skew import compare
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.model.rank_slots import gpu_devices
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.engines import Growing
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.facts import Gpu, NodeFacts
    from clusterctl.model.findings import Severity
    from clusterctl.model.hardware import Hardware, HardwareLooks

_CURES = {
    "driver": "install NVIDIA's driver{branch} and run 'clusterctl provision' again",
    "container": (
        "run jobs in pods ('clusterctl render'), or install NVIDIA's driver on the host (driver.enabled=false for the "
        "GPU operator) and run 'clusterctl provision' again"
    ),
    "device": "give the container its GPUs, or run 'nvidia-modprobe -c 0 -u' on a host",
    "library": (
        "install the driver's libraries in the version of its modules (package libcuda1, libnvidia-compute or "
        "nvidia-driver-cuda-libs) and run 'ldconfig'"
    ),
    "versions": "restart the node, or reload the driver's modules, so that kernel and library are of one driver",
    "mig": (
        "make instances ('nvidia-smi mig -lgip' lists their sizes, 'nvidia-smi mig -cgi SIZE -C' makes them), or turn "
        "MIG off with 'nvidia-smi -mig 0'"
    ),
}
# On these hosts the GPUs are meant for pods, or for other containers; the host is as it was set up.
_INTENDED = ("container", "device")


def usable(view: View) -> Iterator[Finding]:
    """Return GPUs that jobs cannot use, and how nodes with GPUs differ; a node may be meant to have none."""
    nodes = view.nodes
    for host, node in nodes.items():
        yield from _idle(host, node)
    able = {host: node for host, node in nodes.items() if node.gpus}
    counts = {host: str(len(node.gpus)) for host, node in able.items()}
    cure = "look with 'nvidia-smi' and in the kernel's log for one that has dropped out"
    yield from compare("gpus", "error", "the number of GPUs", counts, cure)
    models = {host: ", ".join(sorted({gpu.name for gpu in node.gpus if gpu.name})) for host, node in able.items()}
    cure = "run jobs on nodes of one model with --limit, since the slowest sets the pace"
    yield from compare("gpus", "warning", "the GPUs' model", models, cure)
    yield from compare("gpus", "warning", "MIG", _instances(able), "give the GPUs of all nodes the same MIG instances")


def _idle(host: str, node: NodeFacts) -> Iterator[Finding]:
    """Name the GPUs that jobs cannot use, by reason; a screen's card counts where something is built for GPUs."""
    stack = training_stack.of(node)
    found: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in node.gpus:
        meant = not gpu.display or gpu.driver == "nvidia" or stack.nccl or stack.framework_cuda
        if not gpu.usable and gpu.driver != "vfio-pci" and meant:
            found.setdefault((gpu.unusable or "driver", gpu.problem), []).append(gpu)
    for (why, problem), gpus in found.items():
        places = and_more([gpu.bus for gpu in gpus], SHOWN)
        cause = f"jobs cannot use {training_stack.counted(len(gpus))} ({places})"
        severity: Severity = "warning" if why in _INTENDED else "error"
        yield Finding("gpus", severity, (host,), f"{cause}: {problem or 'without a driver'}", _cure(why, node, stack))


def _cure(why: str, node: NodeFacts, stack: NodeStack) -> str:
    wanted = max(training_stack.major(stack.nccl_cuda), training_stack.major(stack.framework_cuda))
    branch = node.cuda.first_branches.get(wanted, 0)
    return _CURES[why].format(branch=f", {branch} or later," if branch else "")


def _instances(nodes: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return the number of MIG instances by node, in words, where any node has one."""
    if not any(gpu.instances for node in nodes.values() for gpu in node.gpus):
        return {}
    return {
        host: f"{len(gpu_devices(node))} instances" if any(gpu.instances for gpu in node.gpus) else "off"
        for host, node in nodes.items()
    }


# --- are they there, does the driver answer, and is their memory sound ------------------------------------------------

_MANY = 100  # corrected errors between two looks or in a day
_DAY_S = 86_400.0
_WATCH = "watch it: 'nvidia-smi -q -d ECC,ROW_REMAPPER'; if rows are remapped, reset the GPU when it is free"
_RESET = "drain the node and reset the GPU ('nvidia-smi --gpu-reset -i {device}'), or restart the node"
_RECOVERY = {"Reset": _RESET, "GPU Reset": _RESET, "Reboot": table.RESTART, "Node Reboot": table.RESTART}


def health(view: View) -> Iterator[Finding]:
    """Return GPUs that are lost, missing or failing."""
    yield from without(view, "gpu", "pci", "gpus", "GPU")
    usual = _usual_places(view)
    for host, looks in view.hardware.items():
        yield from _driver(view, host, looks.now)
        yield from _states(host, looks.now)
        yield from _memory(host, looks)
        yield from _missing(view, host, looks.now, usual)
    yield from _corrected(view)


def _driver(view: View, host: str, seen: Hardware) -> Iterator[Finding]:
    node = view.nodes.get(host)
    told = node is not None and any(gpu.unusable == "versions" for gpu in node.gpus)  # by the rule of usable GPUs
    if seen.text("node", "NVML") and not told:
        cause = "the driver's library is of another version than its module in the kernel (nvidia-smi: NVML mismatch)"
        cure = "restart the node, or unload the driver's modules and load them again, so that both are of one version"
        yield Finding("gpus", "error", (host,), cause, cure)


def _states(host: str, seen: Hardware) -> Iterator[Finding]:
    yield from beyond(host, seen, table.LOST_GPUS)
    yield from beyond(host, seen, table.GPU_STATES)
    for device, action in seen.texts("gpu", "recovery action").items():
        cause = f"the driver asks for '{action}' of the GPU {device} before it can be used"
        cure = _RECOVERY.get(action, "drain the node, then reset the GPU").replace("{device}", device)
        yield Finding("ecc", "error", (host,), cause, cure)


def _memory(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    for one in above(looks, table.GPU_MEMORY):
        yield one.finding("ecc", host, f"the GPU {one.device} had {one.more}")


_CORRECTED = ("gpu", "corrected ECC errors")


def _corrected(view: View) -> Iterator[Finding]:
    """Name GPUs whose corrected errors grow far faster than on most GPUs; by themselves they need nothing done."""
    told: set[tuple[str, str]] = set()
    for since in ("first", "last_run"):
        rates: dict[tuple[str, str], Growth] = {}
        for host, looks in view.hardware.items():
            grown = growth(getattr(looks, since), looks.now).items()
            its = ((host, device, one) for (kind, device, name), one in grown if (kind, name) == _CORRECTED)
            rates.update({(host, device): one for host, device, one in islice(its, MOST_DEVICES)})
        usual = voters(rates)
        for place, one in rates.items():
            many = _MANY * max(1.0, one.seconds / _DAY_S)
            if place in told or one.grown < many or len(rates) < LEAST:
                continue
            if stands_out(place, {other: it.per_hour for other, it in {**usual, place: one}.items()}) is not None:
                told.add(place)
                often = f"{one.grown} ECC errors in {span(one.seconds)}"
                cause = f"the GPU {place[1]} corrected {often}, far more than most GPUs"
                yield Finding("ecc", "warning", (place[0],), cause, _WATCH)


def _usual_places(view: View) -> set[str]:
    """Return the PCI addresses at which most nodes with GPUs have one."""
    able = [looks.now.flags("gpu", "on the bus") for looks in view.hardware.values()]
    able = [places for places in able if places]
    counts = Counter(device for places in able for device in places)
    return {device for device, count in counts.items() if len(able) >= LEAST and count * 2 > len(able)}


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
        cause = f"the GPU {and_more(gone, SHOWN)} is not on the PCI bus: {len(own)} are there, {most[0][0]} elsewhere"
        yield Finding("gpus", "error", (host,), cause, table.RESTART)


# --- are they set alike, does something slow them down, and does anything hold them -----------------------------------

_POWER_CAP = "software power cap"  # of healthy GPUs under load
_LEAST_HELD_MIB = 100
_DIGITS = 10
_BUSY = 50.0  # percent
_SUPPLY = "look at the power supplies and their cables, and at the limit of the chassis in its management controller"


def settings(view: View) -> Iterator[Finding]:
    """Return settings that differ, GPUs that are slowed down, and processes that were left behind."""
    instances = any(gpu.instances for node in view.nodes.values() for gpu in node.gpus)  # another rule compares them
    rows = [row for row in table.GPU_SETTINGS if row.name != "mig" or not instances]
    yield from unlike_model(view, "gpu settings", "warning", rows)
    for host, looks in view.hardware.items():
        yield from _throttled(view, host, looks)
        yield from _holders(host, looks)


def settings_notes(view: View) -> Iterator[str]:
    """Return power limits below the default of the card, where they are not below those of other GPUs."""
    lower = odd(view, "gpu", "power limit W", lower=True)
    told = {(low.host, device) for low in lower for device in low.devices}
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
    for one in above(looks, table.SLOWDOWN):
        if not any(one.device in devices and "thermal" in reason for reason, devices in reasons.items()):
            seconds = f"{one.grown.grown / 1e6:.1f} s of {one.limit.what} in {span(one.grown.seconds)}"
            reasons.setdefault(seconds, []).append(one.device)
    for reason, devices in reasons.items():
        cause = f"the GPU {and_more(devices, SHOWN)} is slowed down: {reason}"
        cure = _SUPPLY if "power" in reason else table.COOLING
        yield Finding("throttling", "warning", (host,), cause, cure, source=table.CLOCKS)


def _capped_alone(view: View, host: str, device: str) -> bool:
    """Whether a busy GPU is at its power cap and no other busy GPU of the cluster is."""
    if (view.hardware[host].now.number("gpu", "utilization", device) or 0.0) < _BUSY:
        return False
    others = [
        looks.now.text("gpu", "throttled by", other)
        for name, looks in view.hardware.items()
        for other, busy in looks.now.numbers("gpu", "utilization").items()
        if (name, other) != (host, device) and busy >= _BUSY
    ]
    return len(others) >= LEAST and not any(_POWER_CAP in text for text in others)


def _holders(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    held: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for one in looks.now.readings:
        name, _, memory = str(one.value).rpartition(", ")
        if one.kind == "gpu holder" and one.name.isdecimal() and _mib(memory) >= _LEAST_HELD_MIB:
            held.setdefault(one.name, []).append(one.device)
            words[one.name] = f"{name}, {memory}"
    for pid, devices in held.items():
        cause = f"process {pid} ({words[pid]}) holds the GPU {and_more(devices, SHOWN)}, and what started it has ended"
        cure = f"end it with 'kill {pid}' if nobody needs it"
        yield Finding("leftovers", "warning", (host,), cause, cure, (("kill", pid),))


def _mib(text: str) -> int:
    digits = text.removesuffix(" MiB")
    return int(digits) if digits.isdecimal() and len(digits) < _DIGITS else 0


# --- are all NVLinks up and clean, and is the fabric between the GPUs ready -------------------------------------------

_SETTLED_S = 600.0  # after the start, a fabric may still be under way
_MANAGER = (
    "start it with 'systemctl enable --now nvidia-fabricmanager', in the version of the driver; "
    "'journalctl -u nvidia-fabricmanager' says why it ended"
)


def nvlinks(view: View) -> Iterator[Finding]:
    """Return links that are down, slow or failing, and a fabric that is not ready."""
    for found in odd(view, "nvlink", "links up", lower=True):
        down = view.hardware[found.host].now.text("nvlink", "links down", found.devices[0])
        links = f" (link {', '.join(down.split())})" if down else ""
        places = and_more(found.devices, SHOWN)
        cause = f"the GPU {places} has {number(found.value):g} NVLinks up{links}, and most have {number(found.usual):g}"
        yield Finding("nvlink", "error", (found.host,), cause, table.NVLINK)
    yield from unlike_model(view, "nvlink", "error", table.NVLINK_SPEED)
    ready = any("Completed" in looks.now.texts("gpu", "fabric state").values() for looks in view.hardware.values())
    for host, looks in view.hardware.items():
        yield from _link_errors(host, looks)
        if ready or looks.now.number("node", "NVSwitches"):
            yield from _fabric(host, looks.now)


def _link_errors(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    names = {one.name for one in looks.now.counters if one.kind == "nvlink"}
    errors = {name: name.removeprefix("link ").partition(" ")[2] for name in names}
    limits = {("nvlink", name): table.NVLINK_ERRORS[one] for name, one in errors.items() if one in table.NVLINK_ERRORS}
    failing: dict[str, list[Growing]] = {}
    for one in above(looks, limits):
        failing.setdefault(one.device, []).append(one)
    for device, links in failing.items():
        shown = (
            f"link {one.name.removeprefix('link ').partition(' ')[0]}: {one.grown.grown} {one.limit.what} errors in "
            f"{span(one.grown.seconds)}"
            for one in links
        )
        cause = f"errors of NVLink grow on the GPU {device}: {and_more(shown, SHOWN)}"
        yield links[0].finding("nvlink", host, cause)


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
        cause = f"the NVLink fabric of the GPU {and_more(devices, SHOWN)} is not ready: its registration is {state}"
        yield Finding("fabric manager", "error", (host,), cause, _MANAGER)
    if seen.flag("node", "fabric manager") is False and not bad and seen.uptime_s > _SETTLED_S:
        severity: Severity = "warning" if states else "error"  # a fabric that is ready stays so until the next reset
        switches = seen.number("node", "NVSwitches") or 0
        cause = f"the fabric manager does not run, and the node has {switches} NVSwitches"
        fix = (("systemctl", "enable", "--now", "nvidia-fabricmanager"),)
        yield Finding("fabric manager", severity, (host,), cause, _MANAGER, fix)


# --- PCIe: the whole link, and a straight way between GPU and RDMA card -----------------------------------------------

_LOADED = 20.0  # percent
_NAMES = {"gpu": "GPU", "rdma card": "RDMA card"}
_TRANSLATES = ("DMA", "DMA-FQ")
_IOMMU = "start the kernel with 'iommu=pt', or turn the IOMMU off, where no virtual machine needs it"
_ACS = "turn ACS off in the firmware, or at each start with 'setpci' as NCCL's guide says under 'PCI Access Control'"
_PEERMEM = "load the module nvidia_peermem at each start ('modprobe nvidia_peermem'), or install the open driver"


def pcie(view: View) -> Iterator[Finding]:
    """Return links that are narrow, slow or failing, and what turns traffic between GPU and card aside."""
    for kind in _NAMES:
        yield from _links(view, kind, "lanes")
        yield from _links(view, kind, "GT/s")
    yield from unlike_model(view, "pcie", "warning", table.PCIE_SLOTS)
    for host, looks in view.hardware.items():
        for one in above(looks, table.PCIE_ERRORS):
            yield one.finding("pcie", host, f"the PCIe link of {one.device} had {one.more}{one.limit.beside}")
    yield from _way(view)


def _links(view: View, kind: str, unit: str) -> Iterator[Finding]:
    """Name the devices whose link has less than both its ends can do, unless most of their model have no more."""
    for members in by_model(view, kind, f"PCIe {unit}").values():
        judged = {place: value for place, value in members.items() if _counts(view, kind, unit, place)}
        voting = voters(judged)
        counts = Counter(voting.values())
        for (host, device), value in judged.items():
            now = number(value)
            possible = view.hardware[host].now.number(kind, f"PCIe {unit} possible", device) or 0.0
            if not 0 < now < possible:
                continue
            own = (host, device) in voting
            alike, others = counts[value] - own, len(voting) - own  # among the others
            if alike * 2 > others > 0 or is_built_so(judged, (host, device)):
                continue
            what = f"{now:g} of {possible:g} {unit}"
            loaded = " under load" if (kind, unit) == ("gpu", "GT/s") else ""
            cause = f"the PCIe link of the {_NAMES[kind]} {device} runs with {what}{loaded}"
            yield Finding("pcie", "warning", (host,), cause, table.SEAT)


def _counts(view: View, kind: str, unit: str, place: tuple[str, str]) -> bool:
    if (kind, unit) != ("gpu", "GT/s"):
        return True
    host, device = place
    return (view.hardware[host].now.number("gpu", "utilization", device) or 0.0) >= _LOADED


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
        yield f"ACS is on at the PCI switch ports {and_more(ports, SHOWN)} between GPUs and RDMA cards", _ACS
    models = seen.texts("gpu", "model").values()
    if seen.text("node", "GPUDirect") == "none" and not any(NO_GPUDIRECT.search(model) for model in models):
        yield "RDMA cards cannot reach the memory of GPUs: neither nvidia_peermem nor DMA-BUF is there", _PEERMEM


# --- is an RDMA card near each GPU: behind the same PCI switch, or at least on the same NUMA node ---------------------

# NCCL takes the nearest card of a GPU, and GPUDirect RDMA between sockets is slow (NVIDIA, "GPUDirect RDMA", "Supported
# Systems"). How many GPUs have a card near them is how a machine is built, so nodes are held against nodes with as many
# GPUs and cards. What all of them have in common is a note.
_SHOWN_FAR = 8
_READING = "way to the nearest RDMA card"
_FARTHEST = "other NUMA node"
_WAYS = {"PCI switch": 0, "NUMA node": 1, _FARTHEST: 2}  # the nearest first
_FAR = {1: "is not behind a PCI switch with an RDMA card", 2: "has no RDMA card on its NUMA node"}
_FAR_CURE = "compare 'nvidia-smi topo -m' with another node; put the card into the slot that it has there"


def card_ways(view: View) -> Iterator[Finding]:
    """Return the nodes on which more GPUs are far from a card than on most nodes that have as many of both."""
    groups: dict[tuple[int, int], dict[str, dict[str, int]]] = {}
    for host, looks in view.hardware.items():
        ways = _ways(looks.now)
        if ways:
            groups.setdefault((len(ways), len(looks.now.devices("rdma card"))), {})[host] = ways
    for group in groups.values():
        for least, words in sorted(_FAR.items(), reverse=True):
            far = {host: [gpu for gpu, way in ways.items() if way >= least] for host, ways in group.items()}
            usual, times = Counter(map(len, far.values())).most_common(1)[0]
            if len(group) < LEAST or times * 2 <= len(group):
                continue
            for host, gpus in far.items():
                if len(gpus) > usual and not _is_told(group[host], least, gpus):
                    cause = (
                        f"the GPU {and_more(gpus, _SHOWN_FAR)} {words}, and {usual} of {len(group[host])} on most nodes"
                    )
                    yield Finding("gpudirect", "warning", (host,), cause, _FAR_CURE)


def card_ways_notes(view: View) -> Iterator[str]:
    """Return on which nodes a GPU has no card on its NUMA node, in words that hold for all of them."""
    hosts = [host for host, looks in view.hardware.items() if _WAYS[_FARTHEST] in _ways(looks.now).values()]
    if hosts:
        yield (
            f"On {nodeset.folded(hosts)}, a GPU has no RDMA card on its NUMA node, so its traffic to other nodes "
            "crosses the link between sockets ('nvidia-smi topo -m' shows it as SYS)."
        )


def _ways(seen: Hardware) -> dict[str, int]:
    return {gpu: _WAYS[way] for gpu, way in seen.texts("gpu", _READING).items() if way in _WAYS}


def _is_told(ways: dict[str, int], least: int, gpus: list[str]) -> bool:
    """Whether the finding about the farthest way tells of all of these GPUs already."""
    return least < _WAYS[_FARTHEST] and all(ways[gpu] == _WAYS[_FARTHEST] for gpu in gpus)
