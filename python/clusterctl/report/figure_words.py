"""Figures in words: 'allreduce bus bandwidth, 64 MiB (nccl)' is 1.25 GB/s."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterctl.model import nodeset, units

if TYPE_CHECKING:
    from clusterctl.model.results import Figure, Trend

_DIRECTIONS_DIFFER = 1.25  # times


def figure(value: float, unit: units.Unit) -> str:
    """Return a value with its unit."""
    return units.value_words(value, unit)


def size(size_bytes: int | None) -> str:
    """Return the size of a message, 64 MiB; empty for None."""
    return "" if size_bytes is None else units.size_words(size_bytes)


def quantity(word: str) -> str:
    """Return the name of a quantity in words."""
    return word.replace("_", " ").replace("gpu", "GPU")


def about(one: Figure) -> str:
    """Return what a figure measures, in words."""
    words = " ".join(word for word in (one.operation, quantity(one.quantity)) if word)
    details = ", ".join(word for word in (size(one.size_bytes), one.algorithm) if word)
    return words + (f", {details}" if details else "") + (f" ({one.backend})" if one.backend else "")


def about_nodes(one: Figure) -> str:
    """Return what a figure is and of which nodes: 'node2: bandwidth, 1 MiB (mpi)'."""
    return f"{nodeset.folded(one.nodes)}: {about(one)}" if one.nodes else about(one)


def differ(there: float, back: float) -> bool:
    """Whether the figures of a link's two directions differ enough to be told apart."""
    return min(there, back) > 0 and max(there, back) > _DIRECTIONS_DIFFER * min(there, back)


def now_and_before(trend: Trend) -> tuple[str, str]:
    """Return the median since a figure changed and the median before; both are equal where it did not change."""
    ids = [point.run_id for point in trend.points]
    place = ids.index(trend.changed_at) if trend.changed_at in ids else 0
    parts = (trend.points[place:], trend.points[:place] or trend.points)
    now, before = (figure(statistics.median(point.value for point in part), trend.figure.unit) for part in parts)
    return now, before
