# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVIDIA's driver and query tool show them: state, processes, NVLinks, switches, fabric manager."""

from __future__ import annotations

import errno
import os
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .record import Answer, Json, Output, Tree


# --- nvidia driver ---------------------------------------------------------------------------------------------------

_GPUS = "/proc/driver/nvidia/gpus"
_INIT = "1"
_KTHREADD = "kthreadd"
_PARENT = 1  # of the fields after the name in /proc/PID/stat: state, parent
_MANAGER = "nv-fabricmanage"  # a name in /proc has 15 characters


def address(text: str) -> str:
    """Write a PCI address of the driver, which has a domain of eight digits, as sysfs does."""
    found = re.fullmatch(r"(?:0000)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", text.strip())
    return found.group(1).lower() if found else text.strip().lower()


def present_gpus(tree: Tree) -> dict[str, str]:
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


# --- nvidia smi ------------------------------------------------------------------------------------------------------
# Element names differ between drivers; what a driver does not tell is left out. The formats are the DTDs
# ``nvsmi_device_v10.dtd`` to ``v13.dtd`` that come with the drivers, and nvidia-smi(1).

_QUERY_S = 4.5
_LOG = re.compile(r"<nvidia_smi_log>.*</nvidia_smi_log>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_HANDLE = re.compile(r"device handle for GPU ?\d*:? ?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_MISMATCH = "Driver/library version mismatch"
_LOST = "GPU is lost"
# Words that stand in place of a value.
_NOTHING = re.compile(
    r"\[?(?:N/A|None|Not Supported|Unknown Error|Unknown|Insufficient Permissions|GPU is lost|ERR!?"
    r"|Requested functionality has been deprecated|GPU requires reset)\]?"
)
_LONE = re.compile(r"&(?!\w+;|#)")  # in the name of a process; some drivers do not escape it
# Reading: the paths below <gpu>, of which the first that has a value counts.
_WORDS = {
    "model": ("product_name",),
    "persistence": ("persistence_mode",),
    "compute mode": ("compute_mode",),
    "mig": ("mig_mode/current_mig",),
    "ecc": ("ecc_mode/current_ecc",),
    "remap pending": ("remapped_rows/remapped_row_pending",),
    "remap failed": ("remapped_rows/remapped_row_failure",),
    "retirement pending": ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    "sram threshold exceeded": ("ecc_errors/aggregate/sram_threshold_exceeded",),
    "reset required": ("gpu_reset_status/reset_required",),
    "recovery action": ("gpu_recovery_action",),
    "fabric state": ("fabric/state",),
    "fabric status": ("fabric/status",),
    "pstate": ("performance_state",),
}
_NUMBERS = {
    "power limit W": ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
    "default power limit W": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
    "power W": (
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
    ),
    "temperature C": ("temperature/gpu_temp",),
    "utilization": ("utilization/gpu_util",),
    "memory used MiB": ("fb_memory_usage/used",),
}
_COUNTERS = {
    "PCIe replays": ("pci/replay_counter",),
    "rows remapped after uncorrectable errors": ("remapped_rows/remapped_row_unc",),
    "rows remapped after correctable errors": ("remapped_rows/remapped_row_corr",),
    "pages retired after double bit errors": ("retired_pages/double_bit_retirement/retired_count",),
    "pages retired after single bit errors": ("retired_pages/multiple_single_bit_retirement/retired_count",),
    "microseconds of thermal slowdown": (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown",
    ),
}
_UNCORRECTED = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
    "double_bit/total",
)
_CORRECTED = ("sram_correctable", "dram_correctable", "single_bit/total")
_THROTTLES = {
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "sw_thermal_slowdown": "software thermal slowdown",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_power_cap": "software power cap",
}


def read_nvidia_smi(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the state of each GPU that the tool lists, or how the tool failed."""
    present = present_gpus(tree)
    tool = tree.tool("nvidia-smi")
    if not tool:
        if present:
            answer.unseen("nvidia-smi", "it is not installed")
        return
    output = tree.run([tool, "-q", "-x"], _QUERY_S)
    if _MISMATCH in output.text:
        answer.reading("node", "", "NVML", _MISMATCH)
    lost = [address(found.group("bus")) for found in _HANDLE.finditer(output.text)]
    for device in lost:
        answer.reading("gpu", device, "lost", value=True)
    gpus = _gpus(output.text)
    for gpu in gpus:
        _tell(tree, answer, gpu)
    if gpus:
        listed = {address(gpu.get("id") or "") for gpu in gpus}
        for device in sorted(set(present) - listed - set(lost)):
            if is_closed(tree, device):
                answer.unseen(f"GPU {device}", "this login may not open it")
            else:
                answer.reading("gpu", device, "lost", value=True)
    elif _MISMATCH not in output.text and (present or not output.problem):
        answer.unseen("nvidia-smi", output.problem or "its answer has no GPU in a form that is known")


def _gpus(text: str) -> list[ET.Element]:
    """Return the elements of the GPUs, [] if the text is no such log. Entities are not resolved: no DTD is read."""
    found = _LOG.search(text)
    if not found or "<!" in found.group():
        return []
    try:
        return ET.fromstring(_LONE.sub("&amp;", found.group())).findall("gpu")  # noqa: S314 - without a DTD, and of the driver's own tool
    except ET.ParseError:
        return []


def _tell(tree: Tree, answer: Answer, gpu: ET.Element) -> None:
    device = address(gpu.get("id") or _first(gpu, ("pci/pci_bus_id",)))
    if any(_LOST in (element.text or "") for element in gpu.iter()):
        answer.reading("gpu", device, "lost", value=True)
    words = {name: _first(gpu, paths) for name, paths in _WORDS.items()}
    numbers = {name: _number(_first(gpu, paths)) for name, paths in _NUMBERS.items()}
    for name, value in (*words.items(), *numbers.items()):
        if value not in ("", None):
            answer.reading("gpu", device, name, value)
    _count(answer, gpu, device)
    throttles = _throttles(gpu)
    if throttles is not None:
        answer.reading("gpu", device, "throttled by", ", ".join(throttles))
    _holders(tree, answer, gpu, device)
    serial, uuid = _first(gpu, ("serial",)), _first(gpu, ("uuid",))
    if serial or uuid:
        answer.part("gpu", device, words["model"], serial, _first(gpu, ("vbios_version",)), uuid)


def _count(answer: Answer, gpu: ET.Element, device: str) -> None:
    for name, paths in _COUNTERS.items():
        number = _number(_first(gpu, paths))
        if number is not None:
            answer.counter("gpu", device, name, int(number))
    for word, names in (("uncorrectable", _UNCORRECTED), ("corrected", _CORRECTED)):
        counts = [_number(_first(gpu, (f"ecc_errors/volatile/{name}",))) for name in names]
        known = [count for count in counts if count is not None]
        if known:
            answer.counter("gpu", device, f"{word} ECC errors", int(sum(known)))


def _first(gpu: ET.Element, paths: Iterable[str]) -> str:
    for path in paths:
        text = (gpu.findtext(path) or "").strip()
        if text and not _NOTHING.fullmatch(text):
            return text
    return ""


def _number(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found.group()) if found else None


def _throttles(gpu: ET.Element) -> list[str] | None:
    """Return the reasons that lower the clocks now, None if the driver tells none."""
    reasons = {
        element.tag.partition("_reason_")[2]: (element.text or "").strip()
        for group in ("clocks_event_reasons", "clocks_throttle_reasons")
        for element in gpu.findall(f"{group}/*")
    }
    if not reasons:
        return None
    return [words for name, words in _THROTTLES.items() if reasons.get(name) == "Active"]


def _holders(tree: Tree, answer: Answer, gpu: ET.Element, device: str) -> None:
    """Tell the processes that hold memory of a GPU though whatever started them has ended."""
    for process in gpu.findall("processes/process_info"):
        pid = (process.findtext("pid") or "").strip()
        held = _number((process.findtext("used_memory") or "").strip())
        if pid.isdigit() and held is not None and is_left_over(tree, pid):
            name = (process.findtext("process_name") or "").strip().rpartition("/")[2][:60]
            answer.reading("gpu holder", device, pid, f"{name or 'unknown'}, {held:.0f} MiB")


# --- nvlink ----------------------------------------------------------------------------------------------------------
# Formats: ``nvidia-smi nvlink -s`` and ``-e`` as in tests/data/hardware/README.md. A look that only counts leaves out
# the speeds.

_LINKS_S = 2.0
_PCI = "/sys/bus/pci/devices"
_NVIDIA = 0x10DE
_BRIDGE = 0x0680  # other bridge: an NVSwitch
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_SPEED = re.compile(r"Link (\d+): (?:([\d.]+) GB/s|(<?inactive>?))")
_INACTIVE = re.compile(r"NVML: .*all links are inactive", re.IGNORECASE)
_NONE = re.compile(r"NVML:|Device does not have or support Nvlink|Nvlink queries are not supported", re.IGNORECASE)
_SILENT = " printed nothing"  # of tree.run: the tool ended with 0
_ERRORS = re.compile(r"Link (\d+): (\w[\w ]*?) ?Errors?: (\d+)")


def read_nvlink(tree: Tree, answer: Answer, request: Json) -> None:
    """Tell the links of all GPUs, and whether the fabric manager runs where there are NVSwitches."""
    devices = {uuid: device for device, uuid in present_gpus(tree).items() if uuid}
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
    """Return why links could not be read, '' if all could; a GPU without links has no line, or one that says so.

    Of a GPU that is alone and has no links, some drivers print nothing at all.
    """
    if alone and output.problem.endswith(_SILENT):
        return ""
    if output.problem:
        return output.problem
    if not links:
        return f"{words} names no GPU"
    odd = [device for device, lines in links.items() if lines and not any(map(form.match, lines))]
    odd = [device for device in odd if not _NONE.match(links[device][0])]
    return f"{words} tells no link of {', '.join(odd)}" if odd else ""


def _states(tree: Tree, answer: Answer, tool: str, devices: dict[str, str]) -> None:
    output = tree.run([tool, "nvlink", "-s"], _LINKS_S)
    links = _links(output.text, devices)
    for device in sorted(links):
        found = [state for state in map(_SPEED.match, links[device]) if state]
        speeds = [float(state.group(2)) for state in found if state.group(2)]
        if found:
            down = [state.group(1) for state in found if state.group(3)]
            answer.reading("nvlink", device, "links up", len(speeds))
            answer.reading("nvlink", device, "links down", " ".join(down))
        elif any(map(_INACTIVE.match, links[device])):  # of a GPU that has none, or whose links are all down
            answer.reading("nvlink", device, "links up", 0)
        if speeds:
            answer.reading("nvlink", device, "slowest GB/s", min(speeds))
    why = _unread(output, links, _SPEED, "nvidia-smi nvlink -s", alone=len(devices) == 1)
    if why:
        answer.unseen("nvlink", why)


def _errors(tree: Tree, answer: Answer, tool: str, devices: dict[str, str]) -> None:
    output = tree.run([tool, "nvlink", "-e"], _LINKS_S)
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
    if sees_all_processes(tree):
        answer.reading("node", "", "fabric manager", fabric_manager_runs(tree))
    else:
        answer.unseen("fabric manager", "this login does not see the processes of the whole machine")


# PCI Express links of GPUs and RDMA devices, their errors, and what lies on the way between the two.
#
# Formats: Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-pci-devices-aer_stats and sysfs-kernel-iommu_groups of
# Linux; the access control capability is that of the PCI Express Base Specification, as in linux/pci_regs.h.

_RDMA = "/sys/class/infiniband"
_DISPLAY = 0x03
_PCI_BRIDGE = 0x06
_DEEPEST = 12  # bridges above a device
_EXTENDED = 0x100  # where extended capabilities begin; only root sees so far
_ACS = 0x000D
_REDIRECTS = 0x1D  # source validation, request, completion and upstream redirect
_MOST_CAPABILITIES = 60
_LINK_ERRORS = {
    "aer_dev_correctable": ("TOTAL_ERR_COR", "correctable errors"),
    "aer_dev_nonfatal": ("TOTAL_ERR_NONFATAL", "non-fatal errors"),
    "aer_dev_fatal": ("TOTAL_ERR_FATAL", "fatal errors"),
}
_LEAST_KERNEL = (5, 12)  # for DMA-BUF of GPUs' memory (NVIDIA GPU Operator, "GPUDirect RDMA", prerequisites)


def read_pci(tree: Tree, answer: Answer, request: Json) -> None:
    """Tell the links of GPUs and of RDMA devices, and what slows down the way between them."""
    there = [device for device in tree.names(_PCI) if _is_gpu(tree, device)]
    gpus = [device for device in there if tree.link(f"{_PCI}/{device}/driver") == "nvidia"]
    cards = sorted({tree.link(f"{_RDMA}/{name}/device") for name in tree.names(_RDMA)} & set(tree.names(_PCI)))
    for device in dict.fromkeys((*gpus, *cards, *_ends(tree))):
        _link_errors(tree, answer, device)
    if request.get("sections") is not None:
        return
    for device in there:
        answer.reading("gpu", device, "on the bus", value=True)
    for device in gpus:
        _link(tree, answer, "gpu", device)
        group = tree.text(f"{_PCI}/{device}/iommu_group/type")
        if group:
            answer.reading("gpu", device, "IOMMU", group)
    for device in cards:
        _link(tree, answer, "rdma card", device)
    if gpus and cards:
        above = {device: _above(tree, device) for device in (*gpus, *cards)}
        _nearest(tree, answer, gpus, cards, above)
        _access_control(tree, answer, gpus, cards, above)
        _gpudirect(tree, answer)


def _ends(tree: Tree) -> list[str]:
    """Return the devices at the ends of links; a bridge counts the errors of the same link once more."""
    return [
        name
        for name in tree.names(_PCI)
        if (tree.number(f"{_PCI}/{name}/class") or _PCI_BRIDGE << 16) >> 16 != _PCI_BRIDGE
    ]


def _is_gpu(tree: Tree, device: str) -> bool:
    path = f"{_PCI}/{device}"
    return tree.number(f"{path}/vendor") == _NVIDIA and (tree.number(f"{path}/class") or 0) >> 16 == _DISPLAY


def _link(tree: Tree, answer: Answer, kind: str, device: str) -> None:
    """Tell the width and the speed, and what both ends of the link can do. The other end is the folder above."""
    path = f"{_PCI}/{device}"
    for name, unit in (("width", "lanes"), ("speed", "GT/s")):
        now = _hex_number(tree, f"{path}/current_link_{name}")
        own = _hex_number(tree, f"{path}/max_link_{name}")
        port = _hex_number(tree, f"{path}/../max_link_{name}")
        if now and own:
            answer.reading(kind, device, f"PCIe {unit}", now)
            answer.reading(kind, device, f"PCIe {unit} possible", min(own, port) if port else own)
    node = tree.number(f"{path}/numa_node")
    if node is not None:
        answer.reading(kind, device, "NUMA node", node)


def _hex_number(tree: Tree, path: str) -> float | None:
    """Return what a text such as ``16`` or ``32.0 GT/s PCIe`` begins with; 0 and 255 lanes mean unknown."""
    found = re.match(r"\d+(?:\.\d+)?", tree.text(path) or "")
    value = float(found.group()) if found else 0.0
    return value if 0 < value < 255 else None  # noqa: PLR2004 - all bits set: the device does not answer


def _link_errors(tree: Tree, answer: Answer, device: str) -> None:
    for file, (total, name) in _LINK_ERRORS.items():
        for line in (tree.text(f"{_PCI}/{device}/{file}") or "").splitlines():
            key, _unused, count = line.partition(" ")
            if key == total and count.strip().isdigit():
                answer.counter("pcie", device, name, int(count))


def _above(tree: Tree, device: str) -> list[str]:
    """Return the bridges above a device, the nearest first."""
    found: list[str] = []
    path = f"{_PCI}/{device}"
    while len(found) < _DEEPEST:
        path += "/.."
        slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", tree.text(f"{path}/uevent") or "", re.MULTILINE)
        if not slot:
            break
        found.append(slot.group(1))
    return found


def _nearest(tree: Tree, answer: Answer, gpus: list[str], cards: list[str], above: dict[str, list[str]]) -> None:
    """Tell how each GPU reaches the nearest card: by a PCI switch, within its NUMA node, or from another one.

    The ways are those of ``nvidia-smi topo -m``: PIX and PXB, PHB and NODE, SYS. Without a number of its NUMA node (-1)
    a device is on the only one.
    """
    nodes = {device: tree.number(f"{_PCI}/{device}/numa_node") for device in (*gpus, *cards)}
    for gpu in gpus:
        if any(len([bridge for bridge in above[gpu] if bridge in above[card]]) > 1 for card in cards):
            way = "PCI switch"
        elif any(nodes[card] == nodes[gpu] or -1 in (nodes[card], nodes[gpu]) for card in cards):
            way = "NUMA node"
        else:
            way = "other NUMA node"
        answer.reading("gpu", gpu, "way to the nearest RDMA card", way)


def _access_control(tree: Tree, answer: Answer, gpus: list[str], cards: list[str], above: dict[str, list[str]]) -> None:
    """Tell the ports of PCI switches between a GPU and a card that send their traffic up to the processor."""
    ports: list[str] = []
    for gpu in gpus:
        for card in cards:
            common = [bridge for bridge in above[gpu] if bridge in above[card]]
            if len(common) > 1:  # the root port alone is no switch
                ends = (*above[gpu], *above[card])
                ports += [bridge for bridge in ends if bridge not in common and bridge not in ports]
    unread = 0
    for port in ports:
        control = _control(tree.data(f"{_PCI}/{port}/config") or b"")
        if control is None:
            unread += 1
        else:
            answer.reading("pci port", port, "ACS", bool(control & _REDIRECTS))
    if unread:
        answer.unseen("ACS", "only root may read the configuration of the PCI switches")


def _control(config: bytes) -> int | None:
    """Return the access control of a port, 0 if it has none, None if the extended configuration is hidden."""
    if len(config) <= _EXTENDED:
        return None
    place = _EXTENDED
    for _unused in range(_MOST_CAPABILITIES):
        header = int.from_bytes(config[place : place + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[place + 6 : place + 8], "little")
        place = header >> 20
        if place < _EXTENDED:
            break
    return 0


def _gpudirect(tree: Tree, answer: Answer) -> None:
    """Tell how RDMA devices reach the memory of GPUs."""
    modules = {line.split()[0] for line in (tree.text("/proc/modules") or "").splitlines() if line}
    if "mlx5_core" not in modules or not present_gpus(tree):
        return
    kernel = re.match(r"(\d+)\.(\d+)", tree.text("/proc/sys/kernel/osrelease") or "")
    version = tree.text("/proc/driver/nvidia/version") or ""
    if modules & {"nvidia_peermem", "nv_peer_mem"}:
        answer.reading("node", "", "GPUDirect", "nvidia_peermem")
    elif kernel and version:
        new = (int(kernel.group(1)), int(kernel.group(2))) >= _LEAST_KERNEL and "Open Kernel Module" in version
        answer.reading("node", "", "GPUDirect", "DMA-BUF" if new else "none")
