"""Words for a culprit: what was measured, and how far it lies from what is usual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import units

if TYPE_CHECKING:
    from clusterctl.model.results import Better, Figure, PairMatrix, Unit

_SPELT = {"nvlink": "NVLink", "pcie": "PCIe", "nic": "NIC"}
_MANY_TIMES = 2.0  # from here on a ratio is said as such, below it in per cent


def what(of: Figure | PairMatrix) -> str:
    """Return what was measured: 'bandwidth of 1 MiB'."""
    operation = getattr(of, "operation", "")
    return quantity(f"{operation} {of.quantity}" if operation else of.quantity, of.size_bytes)


def quantity(name: str, size_bytes: int | None) -> str:
    """Return a quantity with the size of its messages, where it has one."""
    words = " ".join(_SPELT.get(word, word) for word in name.split("_"))
    return words if size_bytes is None else f"{words} of {units.size_words(size_bytes)}"


def beside(value: float, expected: float, unit: Unit, whose: str) -> str:
    """Return '110 MB/s, 90 % below its neighbours' 1.1 GB/s'."""
    ratio = value / expected
    if ratio >= _MANY_TIMES:
        by = f"{ratio:,.3g} times"
    else:
        by = f"{units.percent(abs(ratio - 1))} {'below' if ratio < 1 else 'above'}"
    return f"{units.value_words(value, unit)}, {by} {whose} {units.value_words(expected, unit)}"


def sign(better: Better) -> int:
    """Return what makes the logarithm of a bad value a large one."""
    return -1 if better == "higher" else 1
