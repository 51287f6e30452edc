# SPDX-License-Identifier: Apache-2.0
"""Counters of each network interface: changes of its carrier, errors, and what ``ethtool -S`` adds of pauses and drops.

Formats: Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-statistics of Linux. The counters of ethtool are
their driver's: Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst has those of mlx5.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import ports

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_STATISTICS = (
    "rx_packets",
    "tx_packets",
    "rx_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_errors",
    "tx_carrier_errors",
)
_OF_DRIVERS = re.compile(
    r"\s*([rt]x_prio[0-7]_(?:pause|discards)|[rt]x_(?:pause_ctrl|discards|crc_errors)_phy"
    r"|rx_out_of_buffer|tx_pause_storm_error_events"
    r"|[rt]x_pause_frames|[rt]x_pfc_ena_frames_pri[0-7]): (\d+)\s*"
)
_COUNTER = re.compile(r"\s+\S.*: -?\d+\s*")  # of any name
_BEGINNINGS = {"rx", "tx"}  # how a line of interest begins: a driver prints thousands for its queues


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the counters of each interface."""
    ethtool = tree.tool("ethtool")
    for name in ports.interfaces(tree):
        path = f"{ports.NET}/{name}"
        changes = tree.number(f"{path}/carrier_changes")
        if changes is not None:
            answer.counter("interface", name, "carrier_changes", changes)
        for counter in _STATISTICS:
            value = tree.number(f"{path}/statistics/{counter}")
            if value is not None:
                answer.counter("interface", name, counter, value)
        if ethtool and ports.physical(tree, name) and tree.text(f"{path}/operstate") == "up":
            _of_driver(tree, answer, ethtool, name)


def _of_driver(tree: Tree, answer: Answer, ethtool: str, name: str) -> None:
    output = tree.run([ethtool, "-S", name])
    lines = output.text.splitlines()
    has_none = "no stats available" in output.text.lower()
    if not has_none and (output.problem or not any(map(_COUNTER.fullmatch, lines))):
        answer.unseen(f"counters of the driver of {name}", output.problem or f"ethtool -S {name} printed no counter")
        return
    for line in lines:
        if line.lstrip()[:2] not in _BEGINNINGS:
            continue
        found = _OF_DRIVERS.fullmatch(line)
        if found:
            answer.counter("interface", name, found.group(1), int(found.group(2)))
