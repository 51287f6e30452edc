# SPDX-License-Identifier: Apache-2.0
"""PCI Express links of GPUs and RDMA devices, their errors, and what lies on the way between the two.

Formats: Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-pci-devices-aer_stats and sysfs-kernel-iommu_groups of
Linux; the access control capability is that of the PCI Express Base Specification, as in linux/pci_regs.h.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import gpus

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree


_PCI = "/sys/bus/pci/devices"
_RDMA = "/sys/class/infiniband"
_NVIDIA = 0x10DE
_DISPLAY = 0x03
_BRIDGE = 0x06
_DEEPEST = 12  # bridges above a device
_EXTENDED = 0x100  # where extended capabilities begin; only root sees so far
_ACS = 0x000D
_REDIRECTS = 0x1D  # source validation, request, completion and upstream redirect
_MOST_CAPABILITIES = 60
_ERRORS = {
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
        _errors(tree, answer, device)
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
        name for name in tree.names(_PCI) if (tree.number(f"{_PCI}/{name}/class") or _BRIDGE << 16) >> 16 != _BRIDGE
    ]


def _is_gpu(tree: Tree, device: str) -> bool:
    path = f"{_PCI}/{device}"
    return tree.number(f"{path}/vendor") == _NVIDIA and (tree.number(f"{path}/class") or 0) >> 16 == _DISPLAY


def _link(tree: Tree, answer: Answer, kind: str, device: str) -> None:
    """Tell the width and the speed, and what both ends of the link can do. The other end is the folder above."""
    path = f"{_PCI}/{device}"
    for name, unit in (("width", "lanes"), ("speed", "GT/s")):
        now = _number(tree, f"{path}/current_link_{name}")
        own = _number(tree, f"{path}/max_link_{name}")
        port = _number(tree, f"{path}/../max_link_{name}")
        if now and own:
            answer.reading(kind, device, f"PCIe {unit}", now)
            answer.reading(kind, device, f"PCIe {unit} possible", min(own, port) if port else own)
    node = tree.number(f"{path}/numa_node")
    if node is not None:
        answer.reading(kind, device, "NUMA node", node)


def _number(tree: Tree, path: str) -> float | None:
    """Return what a text such as ``16`` or ``32.0 GT/s PCIe`` begins with; 0 and 255 lanes mean unknown."""
    found = re.match(r"\d+(?:\.\d+)?", tree.text(path) or "")
    value = float(found.group()) if found else 0.0
    return value if 0 < value < 255 else None  # noqa: PLR2004 - all bits set: the device does not answer


def _errors(tree: Tree, answer: Answer, device: str) -> None:
    for file, (total, name) in _ERRORS.items():
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
    if "mlx5_core" not in modules or not gpus.present_gpus(tree):
        return
    kernel = re.match(r"(\d+)\.(\d+)", tree.text("/proc/sys/kernel/osrelease") or "")
    version = tree.text("/proc/driver/nvidia/version") or ""
    if modules & {"nvidia_peermem", "nv_peer_mem"}:
        answer.reading("node", "", "GPUDirect", "nvidia_peermem")
    elif kernel and version:
        new = (int(kernel.group(1)), int(kernel.group(2))) >= _LEAST_KERNEL and "Open Kernel Module" in version
        answer.reading("node", "", "GPUDirect", "DMA-BUF" if new else "none")
