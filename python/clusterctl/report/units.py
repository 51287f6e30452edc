"""Figures as people read them: 1.25 GB/s, 18.4 us, 64 MiB."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.result import Figure

_THOUSANDS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SCALED = {"B/s", "FLOP/s", "Hz", "tokens/s"}
_KIBI = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_WORDS = {
    "latency": "latency",
    "bandwidth": "bandwidth",
    "time": "time",
    "algorithm_bandwidth": "algorithm bandwidth",
    "bus_bandwidth": "bus bandwidth",
    "memory_bandwidth": "memory bandwidth",
    "gpu_clock": "GPU clock",
}


def figure(value: float, unit: str) -> str:
    """Return a value with its unit, three or four digits of it."""
    if not math.isfinite(value):
        return f"{value} {unit}"
    if unit in _SCALED:
        for factor, letter in _THOUSANDS:
            if abs(value) >= factor:
                return f"{_digits(value / factor)} {letter}{unit}"
    if unit == "s" and value:
        if abs(value) < 1e-3:  # noqa: PLR2004 - a millisecond
            return f"{_digits(value * 1e6)} us"
        if abs(value) < 1:
            return f"{_digits(value * 1e3)} ms"
    return _digits(value) if unit == "1" else f"{_digits(value)} {unit}"


def size(size_bytes: int | None) -> str:
    """Return the bytes of a message in the largest unit that leaves a whole number; nothing for None."""
    if size_bytes is None:
        return ""
    for factor, unit in _KIBI:
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def quantity(word: str) -> str:
    """Return the name of a quantity in words."""
    return _WORDS.get(word, word.replace("_", " "))


def about(one: Figure) -> str:
    """Return what a figure is: 'allreduce bus bandwidth, 64 MiB (nccl)'."""
    words = " ".join(word for word in (one.operation, quantity(one.quantity)) if word)
    details = ", ".join(word for word in (size(one.size_bytes), one.algorithm) if word)
    return words + (f", {details}" if details else "") + (f" ({one.backend})" if one.backend else "")


def _digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude and (magnitude >= 1e7 or magnitude < 1e-4):  # noqa: PLR2004 - where digits no longer help
        return f"{value:.3g}"
    decimals = 0 if magnitude >= 1000 or value == int(value) else 1 if magnitude >= 100 else 2 if magnitude >= 1 else 4  # noqa: PLR2004
    return f"{value:.{decimals}f}"
