# SPDX-License-Identifier: Apache-2.0
"""RDMA devices and the state of their ports: rate, width, subnet manager, partitions, firmware, MTU.

Formats: Documentation/ABI/stable/sysfs-class-infiniband of Linux, and ibv_devinfo(1) for the MTU, which sysfs lacks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import ports

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X(?: (\w+))?\))?")  # 400 Gb/sec (4X NDR)
_MTU = re.compile(r"active_mtu:\s+(\d+)\b")
_HCA = re.compile(r"hca_id:\s+(\S+)")
_PORT = re.compile(r"\s+port:\s+(\d+)\s*")
_MTUS = "active MTU of RDMA ports"
_NO_KEY = 0
_MEMBER = 0x8000  # of a P_Key: a full member
_FABRIC = "InfiniBand"


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell each device and each of its ports."""
    for device in ports.rdma_devices(tree):
        _device(tree, answer, device)
    layers = {port.name: ports.link_layer(tree, port) for port in ports.rdma_ports(tree)}
    for port in ports.rdma_ports(tree):
        _port(tree, answer, port, layers[port.name])
    if layers:
        _mtus(tree, answer, list(layers))


def _device(tree: Tree, answer: Answer, device: str) -> None:
    path = f"{ports.RDMA}/{device}"
    place = tree.link(f"{path}/device")
    facts = {name: tree.text(f"{path}/{name}") or "" for name in ("fw_ver", "board_id", "node_guid", "sys_image_guid")}
    answer.reading("rdma_device", device, "place", place)
    for name in ("fw_ver", "board_id"):
        if facts[name]:
            answer.reading("rdma_device", device, name, facts[name])
    guid = facts["node_guid"] or facts["sys_image_guid"]
    if guid.strip("0:"):
        answer.part("hca", place or device, facts["board_id"], guid, facts["fw_ver"])


def _port(tree: Tree, answer: Answer, port: ports.RdmaPort, layer: str) -> None:
    answer.reading("rdma_port", port.name, "link_layer", layer)
    for name in ("state", "phys_state"):  # 4: ACTIVE
        text = (tree.text(f"{port.path}/{name}") or "").rpartition(":")[2].strip()
        if text:
            answer.reading("rdma_port", port.name, name, text)
    rate = _RATE.fullmatch(tree.text(f"{port.path}/rate") or "")
    if rate:
        answer.reading("rdma_port", port.name, "rate_gbps", float(rate.group(1)))
        if rate.group(2):
            answer.reading("rdma_port", port.name, "width", int(rate.group(2)))
        if rate.group(3):
            answer.reading("rdma_port", port.name, "generation", rate.group(3))
    if layer == _FABRIC:
        sm_lid = tree.number(f"{port.path}/sm_lid")
        if sm_lid is not None:
            answer.reading("rdma_port", port.name, "sm_lid", sm_lid)
        keys = [tree.number(f"{port.path}/pkeys/{index}") for index in tree.names(f"{port.path}/pkeys")]
        partitions = sorted({key for key in keys if key is not None and key & ~_MEMBER != _NO_KEY})
        if keys and None not in keys:
            answer.reading("rdma_port", port.name, "pkeys", " ".join(f"0x{key:04x}" for key in partitions) or "none")
    else:
        interface = ports.interface_of(tree, port)
        if interface:
            answer.reading("rdma_port", port.name, "interface", interface)


def _mtus(tree: Tree, answer: Answer, wanted: list[str]) -> None:
    """Tell the MTU of each port: the subnet manager sets that of InfiniBand, the interface that of RoCE."""
    tool = tree.tool("ibv_devinfo")
    if not tool:
        answer.unseen(_MTUS, "ibv_devinfo is not installed (package ibverbs-utils)")
        return
    output = tree.run([tool])
    device, port, found = "", "", 0
    for line in output.text.splitlines():
        hca, number, mtu = _HCA.match(line), _PORT.fullmatch(line), _MTU.search(line)
        device = hca.group(1) if hca else device
        port = number.group(1) if number else port
        if mtu and f"{device}/{port}" in wanted:
            found += 1
            answer.reading("rdma_port", f"{device}/{port}", "active_mtu", int(mtu.group(1)))
    if not found:
        answer.unseen(_MTUS, output.problem or "ibv_devinfo tells of none of its ports")
