# SPDX-License-Identifier: Apache-2.0
"""State, speed and MTU of each network interface, and the state of bonds and of their members.

Formats: Documentation/ABI/testing/sysfs-class-net and Documentation/networking/bonding.rst of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import ports

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_UP = 1  # IFF_UP of flags
_PERMANENT = 0  # addr_assign_type of an address that is in the card
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VIRTUAL = frozenset({"ena", "gve", "hv_netvsc", "virtio_net", "vmxnet3"})  # a hypervisor invents their addresses
_TEXTS = ("operstate", "duplex")


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the state of each interface and bond, and the cards' own addresses."""
    for name in ports.interfaces(tree):
        _interface(tree, answer, name)
    for name in tree.names(ports.NET):
        if tree.exists(f"{ports.NET}/{name}/bonding"):
            _bond(tree, answer, name)


def _interface(tree: Tree, answer: Answer, name: str) -> None:
    path = f"{ports.NET}/{name}"
    driver = tree.link(f"{path}/device/driver")
    answer.reading("interface", name, "driver", driver)
    answer.reading("interface", name, "wanted_up", bool((tree.number(f"{path}/flags") or 0) & _UP))
    for attribute in _TEXTS:
        text = tree.text(f"{path}/{attribute}")
        if text:
            answer.reading("interface", name, attribute, text)
    for attribute in ("speed", "mtu"):
        number = tree.number(f"{path}/{attribute}")  # a port without a link has the speed -1, or none
        if number is not None and number > 0:
            answer.reading("interface", name, attribute, number)
    address = tree.text(f"{path}/address") or ""
    if address:
        answer.reading("interface", name, "address", address)  # says whether it is the same device as before
    place = tree.link(f"{path}/device")
    own = address and tree.number(f"{path}/addr_assign_type") == _PERMANENT
    if own and _PCI.fullmatch(place) and driver not in _VIRTUAL and ports.physical(tree, name):
        answer.part("nic", place, driver, address)


def _bond(tree: Tree, answer: Answer, name: str) -> None:
    path = f"{ports.NET}/{name}/bonding"
    answer.reading("bond", name, "mode", (tree.text(f"{path}/mode") or "").partition(" ")[0])  # 802.3ad 4
    slaves = (tree.text(f"{path}/slaves") or "").split()
    answer.reading("bond", name, "members", len(slaves))
    group = tree.text(f"{path}/ad_aggregator")
    for slave in slaves:
        own = f"{ports.NET}/{slave}/bonding_slave"
        state = tree.text(f"{own}/mii_status")
        if state:
            answer.reading("bond_member", slave, "mii_status", state)
            answer.reading("bond_member", slave, "bond", name)
        their_group = tree.text(f"{own}/ad_aggregator_id")
        if group and their_group:
            answer.reading("bond_member", slave, "in_group", group == their_group)
