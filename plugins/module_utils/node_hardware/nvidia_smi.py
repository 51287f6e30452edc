# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVIDIA's query tool shows them: one call of ``nvidia-smi -q -x``.

Element names differ between drivers; what a driver does not tell is left out. The formats are the DTDs
``nvsmi_device_v10.dtd`` to ``v13.dtd`` that come with the drivers, and nvidia-smi(1).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from . import nvidia_driver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .record import Answer, Json
    from .tree import Tree

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


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the state of each GPU that the tool lists, or how the tool failed."""
    present = nvidia_driver.gpus(tree)
    tool = tree.tool("nvidia-smi")
    if not tool:
        if present:
            answer.unseen("nvidia-smi", "it is not installed")
        return
    output = tree.run([tool, "-q", "-x"], _QUERY_S)
    if _MISMATCH in output.text:
        answer.reading("node", "", "NVML", _MISMATCH)
    lost = [nvidia_driver.address(found.group("bus")) for found in _HANDLE.finditer(output.text)]
    for device in lost:
        answer.reading("gpu", device, "lost", value=True)
    gpus = _gpus(output.text)
    for gpu in gpus:
        _tell(tree, answer, gpu)
    if gpus:
        listed = {nvidia_driver.address(gpu.get("id") or "") for gpu in gpus}
        for device in sorted(set(present) - listed - set(lost)):
            if nvidia_driver.is_closed(tree, device):
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
    device = nvidia_driver.address(gpu.get("id") or _first(gpu, ("pci/pci_bus_id",)))
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
        if pid.isdigit() and held is not None and nvidia_driver.is_left_over(tree, pid):
            name = (process.findtext("process_name") or "").strip().rpartition("/")[2][:60]
            answer.reading("gpu holder", device, pid, f"{name or 'unknown'}, {held:.0f} MiB")
