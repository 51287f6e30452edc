"""Figures as people read them: 'allreduce bus bandwidth, 64 MiB (nccl)' is 1.25 GB/s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import units as ground

if TYPE_CHECKING:
    from clusterctl.model.results import Figure


def figure(value: float, unit: ground.Unit) -> str:
    """Return a value with its unit."""
    return ground.value_words(value, unit)


def size(size_bytes: int | None) -> str:
    """Return the bytes of a message, 64 MiB; nothing for None."""
    return "" if size_bytes is None else ground.size_words(size_bytes)


def quantity(word: str) -> str:
    """Return the name of a quantity in words."""
    return word.replace("_", " ").replace("gpu", "GPU")


def about(one: Figure) -> str:
    """Return what a figure is."""
    words = " ".join(word for word in (one.operation, quantity(one.quantity)) if word)
    details = ", ".join(word for word in (size(one.size_bytes), one.algorithm) if word)
    return words + (f", {details}" if details else "") + (f" ({one.backend})" if one.backend else "")
