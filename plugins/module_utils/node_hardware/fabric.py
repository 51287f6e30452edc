# SPDX-License-Identifier: Apache-2.0
"""Links of the InfiniBand fabric and error counters of their ports, as one node reads them from the subnet.

Formats: iblinkinfo(8) and ibqueryerrors(8) of infiniband-diags. They need /dev/infiniband/umad*, as a rule root.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_LINK = re.compile(
    r'(0x[0-9a-f]+) "\s*(.*?)\s*"\s+\d+\s+(\d+)\[.*?\] ==\(\s*(\d+)X\s+([\d.]+) Gbps\s+\S+/\s*\S+?\)==>'
    r'\s+(0x[0-9a-f]+)\s+\d+\s+(\d+)\[.*?\] "\s*(.*?)\s*" \((.*)\)\s*'
)
# A port that is up, with something at its other end that gives no answer.
_SILENT = re.compile(
    r'0x[0-9a-f]+ "\s*(.*?)\s*"\s+\d+\s+(\d+)\[.*?\] ==\([^)]*Active[^)]*\)==>\s+"Port not available"\s*'
)
_ERRORS = re.compile(r"\s*GUID (0x[0-9a-f]+) port (\d+): (.*)")
_ERROR = re.compile(r"\[(\w+) == (\d+)")
_LIMITED = (
    "SymbolErrorCounter",
    "LinkErrorRecoveryCounter",
    "LinkDownedCounter",
    "PortRcvErrors",
    "PortXmitDiscards",
    "LocalLinkIntegrityErrors",
    "ExcessiveBufferOverrunErrors",
)
_NO_ANSWER = re.compile(r"^##\s+(\d+) (?:PMA )?query failures", re.MULTILINE)
_SUMMARY = "## Summary:"  # ibqueryerrors ends with 1 where it found errors, and with 0 where it could not look


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the links of all switches, and the counters of both ends."""
    links, errors = tree.tool("iblinkinfo"), tree.tool("ibqueryerrors")
    if not links or not errors:
        answer.unseen("InfiniBand fabric", "iblinkinfo or ibqueryerrors is not installed (package infiniband-diags)")
        return
    output = tree.run([links, "-l", "--switches-only"])
    found = [row.groups() for row in map(_LINK.fullmatch, output.text.splitlines()) if row]
    if output.problem or not found:
        answer.unseen("InfiniBand fabric", output.problem or "iblinkinfo tells of no link")
        return
    switches = {int(row[0], 16) for row in found}
    ends: dict[tuple[int, int], str] = {}
    for guid, name, port, lanes, speed, peer, peer_port, peer_name, hint in found:
        near, far = f"{name} port {port}", f"{peer_name} port {peer_port}"
        own, other = (int(guid, 16), int(port)), (int(peer, 16), int(peer_port))
        if other in ends:  # told from its other end
            continue
        ends[own], ends[other] = f"{near} to {far}", f"{far} to {near}"
        device = f"{near} to {far}"
        answer.reading("fabric_link", device, "lanes", int(lanes))
        answer.reading("fabric_link", device, "lane_gbps", float(speed))
        answer.reading("fabric_link", device, "ends", "switches" if other[0] in switches else "adapter")
        answer.reading("fabric_link", device, "could_be", hint.strip())
    for name, port in _SILENT.findall(output.text):
        answer.reading("fabric_link", f"{name} port {port}", "ends", "silent")
    _counters(tree, answer, errors, ends)


def _counters(tree: Tree, answer: Answer, tool: str, ends: dict[tuple[int, int], str]) -> None:
    """Tell the counters of each end.

    A port that ibqueryerrors leaves out has none above 0, unless a port gave no answer: then it may be that one.
    """
    output = tree.run([tool])
    if _SUMMARY not in output.text:
        answer.unseen("counters of the InfiniBand fabric", output.problem or "ibqueryerrors gave no summary")
        return
    told: dict[tuple[int, int], dict[str, int]] = {}
    for line in output.text.splitlines():
        row = _ERRORS.match(line)
        if row:
            values = {name: int(value) for name, value in _ERROR.findall(row.group(3))}
            told[int(row.group(1), 16), int(row.group(2))] = values
    closed = _NO_ANSWER.search(output.text)
    if closed:
        answer.unseen("counters of the InfiniBand fabric", f"{closed.group(1)} ports gave no answer to ibqueryerrors")
    for end, device in ends.items():
        for name in _LIMITED if end in told or not closed else ():
            answer.counter("fabric_port", device, name, told.get(end, {}).get(name, 0))
