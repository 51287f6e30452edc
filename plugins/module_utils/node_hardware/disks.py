# SPDX-License-Identifier: Apache-2.0
"""Disks: their own judgement of their health (SMART, NVMe), degraded arrays, and their serial numbers.

smartctl's JSON is documented in smartctl(8) (--json); /proc/mdstat in md(4).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_BLOCK = "/sys/block"
_REAL = re.compile(r"^(sd[a-z]+|nvme\d+n\d+|vd[a-z]+|hd[a-z]+)$")
_ARRAY = re.compile(r"^(md\S+) : active.*?\[(\d+)/(\d+)\] \[([U_]+)\]", re.MULTILINE | re.DOTALL)
_TOOL_S = 2.0
_MOST_ASKED = 16
# Of the NVMe log (NVM Express base specification, SMART / Health Information): names by smartctl.
_NVME = (
    ("critical_warning", "critical warning"),
    ("percentage_used", "endurance used in percent"),
    ("available_spare", "spare in percent"),
    ("available_spare_threshold", "least spare in percent"),
)
# Of the attributes of ATA, by their number in smartctl's table.
_ATA = {5: "reallocated sectors", 187: "uncorrected errors", 197: "pending sectors", 198: "lost sectors"}
_LARGEST = 1 << 128  # counters of NVMe have 128 bits


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell of every disk on the bus, and of every array."""
    disks = [name for name in tree.names(_BLOCK) if _REAL.match(name)]
    for name in disks:
        base = f"{_BLOCK}/{name}/device"
        model = tree.text(f"{base}/model") or ""
        serial = tree.text(f"{base}/serial") or tree.text(f"{_BLOCK}/{name}/wwid") or tree.text(f"{base}/wwid") or ""
        firmware = tree.text(f"{base}/firmware_rev") or tree.text(f"{base}/rev") or ""
        if model or serial:
            answer.part("disk", name, " ".join(model.split()), " ".join(serial.split()), firmware)
        state = tree.text(f"{base}/state")
        if state:
            answer.reading("disk", name, "state", state)
    for array, wanted, there, _members in _ARRAY.findall(tree.text("/proc/mdstat") or ""):
        answer.reading("array", array, "members", int(wanted))
        answer.reading("array", array, "members working", int(there))
    _smart(tree, answer, disks)


def _smart(tree: Tree, answer: Answer, disks: list[str]) -> None:
    physical = [name for name in disks if not name.startswith("vd")]
    smartctl = tree.tool("smartctl")
    if not physical:
        return
    if not smartctl:
        answer.unseen("disks' health", "smartctl (smartmontools) is not installed")
        return
    for name in physical[:_MOST_ASKED]:
        output = tree.run([smartctl, "--json=c", "-H", "-A", f"/dev/{name}"], _TOOL_S)
        try:
            found = json.loads(output.text)
        except ValueError:
            answer.unseen(f"health of {name}", output.problem or "smartctl answered without JSON")
            continue
        passed = _inner(found, "smart_status").get("passed")
        if not isinstance(passed, bool):
            answer.unseen(f"health of {name}", _message(found) or output.problem or "the disk tells none")
            continue
        answer.reading("disk", name, "healthy", passed)
        _wear(answer, name, found)


def _inner(found: object, name: str) -> Json:
    """Return an object within an object, an empty one where something else is there."""
    inner = found.get(name) if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else {}


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _message(found: object) -> str:
    told = _rows(_inner(found, "smartctl").get("messages"))
    return str(told[0].get("string", "")) if told else ""


def _wear(answer: Answer, name: str, found: Json) -> None:
    """Tell the wear and the errors of a disk; a count that is not a plain number is left out."""
    log = _inner(found, "nvme_smart_health_information_log")
    for key, word in _NVME:
        if _is_count(log.get(key)):
            answer.reading("disk", name, word, log[key])
    if _is_count(log.get("media_errors")):
        answer.counter("disk", name, "media errors", log["media_errors"])
    for row in _rows(_inner(found, "ata_smart_attributes").get("table")):
        value, number = _inner(row, "raw").get("value"), row.get("id")
        if _is_count(value) and _is_count(number) and number in _ATA:
            answer.counter("disk", name, _ATA[number], value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
