# SPDX-License-Identifier: Apache-2.0
"""Corrected and uncorrected errors of the memory, as the kernel's EDAC drivers count them.

The files are those of Documentation/ABI/testing/sysfs-devices-edac of Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_EDAC = "/sys/devices/system/edac/mc"
_COUNTS = (("ce_count", "corrected"), ("ue_count", "uncorrected"))


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the counts of each DIMM, or of a controller that does not tell its DIMMs apart."""
    for controller in tree.names(_EDAC):
        base = f"{_EDAC}/{controller}"
        dimms = [name for name in tree.names(base) if name.startswith(("dimm", "rank"))]
        for dimm in dimms:
            label = tree.text(f"{base}/{dimm}/dimm_label") or f"{controller}/{dimm}"
            _tell(tree, answer, label, f"{base}/{dimm}/dimm_")
        if not dimms and controller.startswith("mc"):
            _tell(tree, answer, controller, f"{base}/")


def _tell(tree: Tree, answer: Answer, device: str, prefix: str) -> None:
    for name, word in _COUNTS:
        count = tree.number(prefix + name)
        if count is not None:
            answer.counter("memory", device, word, count)
