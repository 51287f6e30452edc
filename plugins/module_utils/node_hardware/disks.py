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
)


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
        if not isinstance(found, dict) or "smart_status" not in found:
            answer.unseen(f"health of {name}", _message(found) or output.problem or "the disk tells none")
            continue
        _health(answer, name, found)


def _message(found: object) -> str:
    told = found.get("smartctl", {}).get("messages") if isinstance(found, dict) else None
    return str(told[0].get("string", "")) if isinstance(told, list) and told and isinstance(told[0], dict) else ""


def _health(answer: Answer, name: str, found: Json) -> None:
    answer.reading("disk", name, "healthy", bool(found["smart_status"].get("passed")))
    log = found.get("nvme_smart_health_information_log") or {}
    for key, word in _NVME:
        if isinstance(log.get(key), int):
            answer.reading("disk", name, word, log[key])
    if isinstance(log.get("media_errors"), int):
        answer.counter("disk", name, "media errors", log["media_errors"])
    for row in (found.get("ata_smart_attributes") or {}).get("table") or []:
        value = (row.get("raw") or {}).get("value")
        if isinstance(value, int) and row.get("id") in {5, 187, 197, 198}:
            words = {5: "reallocated sectors", 187: "uncorrected errors", 197: "pending sectors", 198: "lost sectors"}
            answer.counter("disk", name, words[row["id"]], value)
