"""Packing of arrays for the browser: base64 of little-endian numbers, and logarithms in 16 or 8 bits.

A value is the logarithm in 16 bits between the least and the greatest value (five digits of a factor of ten). 0 means
not measured. 512 nodes take 256 KiB, where JSON would take megabytes.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODES = 65_534  # steps of a value's logarithm; 0 stays free


def packed(array: NDArray[Any]) -> str:
    """Return the bytes of an array as base64."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def codes(value: NDArray[np.float64]) -> tuple[NDArray[np.uint16], float, float]:
    """Return values as 16 bits, with the least and the greatest value."""
    there = np.isfinite(value) & (value > 0)
    if not there.any():
        return np.zeros(len(value), "<u2"), 1.0, 1.0
    low, high = float(value[there].min()), float(value[there].max())
    span = np.log(high / low) or 1.0
    found = np.zeros(len(value), "<u2")
    found[there] = 1 + np.rint(np.log(value[there] / low) / span * _CODES)
    return found, low, high


def shares(share: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return fractions between a hundred-thousandth and one as their logarithm in a byte; 0 means not measured."""
    codes = np.zeros(len(share), np.uint8)
    there = np.isfinite(share) & (share > 0)
    codes[there] = np.clip(np.rint(255 + np.log10(share[there]) / 5 * 254), 1, 255)
    return codes
