# SPDX-License-Identifier: Apache-2.0
"""What keeps RoCE free of loss: priority flow control (PFC), explicit congestion notification (ECN), the trust state.

Formats: dcb-pfc(8) of iproute2, ``mlnx_qos`` of MLNX_OFED, and /sys/class/net/<interface>/ecn of the mlx5 driver.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import ports

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_DCB = re.compile(r"(?:prio|pg)-pfc ((?:[0-7]:(?:on|off)\s*){8})")
_MLNX = re.compile(r"priority\s+0\s+1\s+2\s+3\s+4\s+5\s+6\s+7\s+enabled\s+((?:[01]\s*){8})")
_TRUST = re.compile(r"Priority trust state: (\w+)")
_UNSUPPORTED = ("not supported", "Invalid argument")


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the settings of each interface that RoCE goes over."""
    found: dict[str, None] = {}
    for port in ports.rdma_ports(tree):
        if ports.link_layer(tree, port) == "Ethernet":
            interface = ports.interface_of(tree, port)
            found.update(dict.fromkeys(ports.members(tree, interface) if interface else ()))
    for interface in found:
        for side in ("roce_np", "roce_rp"):
            _ecn(tree, answer, interface, side)
    if found:
        _pfc(tree, answer, list(found))


def _ecn(tree: Tree, answer: Answer, interface: str, side: str) -> None:
    folder = f"{ports.NET}/{interface}/ecn/{side}/enable"
    values = {priority: tree.number(f"{folder}/{priority}") for priority in tree.names(folder)}
    if values and None not in values.values():
        answer.reading("lossless", interface, f"ecn_{side}", _listed(key for key, value in values.items() if value))


def _listed(priorities) -> str:  # noqa: ANN001 - an iterable of texts
    return ",".join(priorities) or "off"


def _pfc(tree: Tree, answer: Answer, interfaces: list[str]) -> None:
    dcb, mlnx_qos = tree.tool("dcb"), tree.tool("mlnx_qos")
    if not dcb and not mlnx_qos:
        answer.unseen("PFC", "neither dcb nor mlnx_qos is installed")
    for interface in interfaces:
        why = ""
        if dcb:
            output = tree.run([dcb, "pfc", "show", "dev", interface])
            found = _DCB.search(output.text)
            if found and not output.problem:
                words = (word.split(":") for word in found.group(1).split())
                answer.reading("lossless", interface, "pfc", _listed(key for key, state in words if state == "on"))
                continue
            why = output.problem or "dcb gave no readable answer"
            if any(words in output.text for words in _UNSUPPORTED):
                why = ""
        if mlnx_qos:
            why = _by_mlnx_qos(tree, answer, mlnx_qos, interface)
        if why:
            answer.unseen(f"PFC of {interface}", why)


def _by_mlnx_qos(tree: Tree, answer: Answer, tool: str, interface: str) -> str:
    """Tell what mlnx_qos says, and return why it says nothing."""
    output = tree.run([tool, "-i", interface])
    trust = _TRUST.search(output.text)
    if trust:
        answer.reading("lossless", interface, "trust", trust.group(1))
    found = _MLNX.search(output.text)
    if found is None or output.problem:
        return output.problem or "mlnx_qos gave no readable answer"
    states = enumerate(found.group(1).split())
    answer.reading("lossless", interface, "pfc", _listed(str(key) for key, state in states if state == "1"))
    return ""
