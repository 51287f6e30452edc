"""Bandwidths of all pairs with a known noise, and links that are slow by a known part."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
from clusterctl.model.results import PairMatrix


def matrix(count: int, noise: float = 0.02, *, slow: dict[int, float] | None = None, seed: int = 1) -> PairMatrix:
    """Return bandwidths of all pairs; ``slow`` is by the number of the link the part of the speed that is missing."""
    rng = np.random.default_rng(seed)
    links = math.comb(count, 2)
    values = 1e9 * np.exp(-np.abs(rng.normal(0, noise, links)) * rng.choice([-1, 1], links))
    for link, part in (slow or {}).items():
        values[link] = 1e9 * (1 - part)
    return of_all(count, [float(value) for value in values])


def of_all(count: int, values: Iterable[float], **more: tuple[float, ...]) -> PairMatrix:
    """Return the matrix of these bandwidths of all pairs, in bytes/s, in the order of the pairs."""
    links = list(itertools.combinations(range(count), 2))
    return PairMatrix(
        quantity="bandwidth",
        size_bytes=1 << 20,
        unit="B/s",
        better="higher",
        nodes=tuple(f"node{number}" for number in range(1, count + 1)),
        first=tuple(first for first, _ in links),
        second=tuple(second for _, second in links),
        value=tuple(values),
        **more,
    )
