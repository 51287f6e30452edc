"""Matrices of pairs of nodes for the page, packed small, with what the checks name in them.

A matrix is one number per pair, in the order of the upper triangle. Above 512 nodes, a row is a block of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterctl.model import nodeset
from clusterctl.report import figure_words, what_to_do
from clusterctl.report.page import pictures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from clusterctl.model.results import CheckResult, PairMatrix, ValidationRecord

MOST_NODES = 512  # nodes with a row each; a larger cluster has a row per block of nodes
_BLOCKS = 256
_SPREADS = 600_000  # links of all matrices; up to here each link carries its spread, a byte
_LOW = 0.8  # of the median: a row below it is one entry in the list of the worst links
_WORST = 8
_WAYS = 1000  # links with a figure for each direction


@dataclass(frozen=True)
class Named:
    """Nodes and pairs that a check names, as numbers of the matrix' nodes."""

    nodes: frozenset[int]
    pairs: frozenset[tuple[int, int]]

    def has(self, one: int, other: int) -> bool:
        """Whether the link or one of its ends is named."""
        return one in self.nodes or other in self.nodes or (min(one, other), max(one, other)) in self.pairs

    def rows(self, block: int) -> list[int]:
        """Return the rows of the picture that they are in, for so many nodes a row."""
        return sorted({number // block for number in (*self.nodes, *(end for pair in self.pairs for end in pair))})


def named(check: CheckResult, matrix: PairMatrix) -> Named:
    """Return what a check names; where only all nodes together show a fault, no link of theirs is named."""
    own = {name: number for number, name in enumerate(matrix.nodes)}
    found = [one for one in what_to_do.culprits(check) if set(one.nodes) <= own.keys()]
    pairs = [sorted(own[name] for name in one.nodes) for one in found if one.kind in {"pair", "one_way"} and one.nodes]
    return Named(
        nodes=frozenset(own[name] for one in found if one.kind == "node" for name in one.nodes),
        pairs=frozenset((pair[0], pair[-1]) for pair in pairs),
    )


def of(record: ValidationRecord) -> list[dict[str, Any]]:
    """Return the pair matrices of all checks."""
    found = [(check, matrix) for check in record.checks for matrix in check.matrices if matrix.value]
    links = sum(len(matrix.nodes) * (len(matrix.nodes) - 1) // 2 for _, matrix in found)
    place = {host: number for number, host in enumerate(record.hosts)}
    return [_matrix(check, matrix, place, spreads=links <= _SPREADS) for check, matrix in found]


def first(record: ValidationRecord) -> int:
    """Return which matrix a reader sees first: that of the worst culprit, else the bandwidth of the largest message."""
    found = [(check, matrix) for check in record.checks for matrix in check.matrices if matrix.value]
    blamed = [(check.check, one) for check in record.checks for one in what_to_do.culprits(check)]
    blamed.sort(key=lambda one: -what_to_do.badness(one[1]))
    for name, culprit in blamed:
        for number, (check, matrix) in enumerate(found):
            if (check.check, matrix.quantity, matrix.size_bytes) == (name, culprit.quantity, culprit.size_bytes):
                return number
    fast = [number for number, (_, matrix) in enumerate(found) if matrix.better == "higher"]
    return fast[-1] if fast else 0


def _matrix(check: CheckResult, matrix: PairMatrix, place: dict[str, int], *, spreads: bool) -> dict[str, Any]:
    value = np.asarray(matrix.value, np.float64)
    first, second = np.asarray(matrix.first, np.int64), np.asarray(matrix.second, np.int64)
    spread = np.asarray(matrix.spread, np.float64) if spreads and len(matrix.spread) == len(value) else None
    usable = np.isfinite(value)
    median = float(np.median(value[usable])) if usable.any() else 1.0
    positive = value[usable & (value > 0)]
    least = float(positive.min()) if positive.size else 1.0
    value = np.where(usable & (value <= 0), least, value)
    data: dict[str, Any] = {
        "check": check.check,
        "quantity": matrix.quantity,
        "title": f"{figure_words.quantity(matrix.quantity)} {figure_words.size(matrix.size_bytes)}",
        "unit": matrix.unit,
        "better": matrix.better,
        "median": median,
        "links": int(usable.sum()),
        "complete": matrix.complete,
    }
    names: Sequence[str] = matrix.nodes
    inventory = np.array([place.get(name, 0) for name in names], np.int64)
    count = len(names)
    if count <= MOST_NODES:
        dense = np.full((count, count), np.nan)
        dense[first, second] = value
        if spread is not None:
            share = np.full((count, count), np.nan)
            share[first, second] = spread / np.where(value > 0, value, np.nan)
            data["spreads"] = pictures.packed(pictures.shares(share[np.triu_indices(count, 1)]))
    else:
        dense, names, who = _blocks(matrix, value, first, second)
        data |= {
            "block": -(-count // _BLOCKS),
            "worst": pictures.packed(inventory[who].astype("<u2")),
            "worst_links": _worst_of_many(check, matrix, value, median),
        }
    rows, columns = np.triu_indices(len(names), 0 if "block" in data else 1)
    values, low, high = pictures.codes(dense[rows, columns])
    both = np.fmax(dense, dense.T)  # only one of the two is measured
    with np.errstate(invalid="ignore", divide="ignore"):
        share = both / median if matrix.better != "lower" else median / both
    low_rows = _by_row(np.nanmedian, share) < _LOW
    blamed = named(check, matrix)
    rows_named = np.zeros(len(names), np.bool_)
    rows_named[blamed.rows(data.get("block", 1))] = True
    return (
        {"worst_links": [] if "block" in data else _worst(blamed, names, both, share, low_rows)}
        | data
        | {
            "nodes": names,
            "named": _for_browser(blamed, data.get("block", 1), inventory if "block" in data else None),
            "values": pictures.packed(values),
            "low": low,
            "high": high,
            "ways": [] if "block" in data else _ways(matrix),
            "order": _worst_first(share, low_rows, rows_named),
        }
    )


def _ways(matrix: PairMatrix) -> list[tuple[int, int, float, float]]:
    """Return the links whose directions differ, the most first: both ends, and the figures there and back."""
    both = zip(matrix.first, matrix.second, matrix.forward, matrix.backward, strict=True) if matrix.forward else ()
    found = [link for link in both if figure_words.differ(link[2], link[3])]
    found.sort(key=lambda link: -max(link[2] / link[3], link[3] / link[2]))
    return found[:_WAYS]


def _for_browser(blamed: Named, block: int, inventory: NDArray[np.int64] | None) -> dict[str, Any]:
    """Return what is named; a picture of blocks counts nodes as the inventory does."""
    where = (lambda number: int(inventory[number])) if inventory is not None else int
    return {
        "rows": blamed.rows(block),
        "nodes": sorted(where(number) for number in blamed.nodes),
        "pairs": sorted([where(one), where(other)] for one, other in blamed.pairs),
    }


def _worst_first(share: NDArray[np.float64], low: NDArray[np.bool_], named: NDArray[np.bool_]) -> list[int]:
    """Order the rows: first what a check names, then rows that are slow as a whole, then by the worst link of each."""
    own = np.where(low[np.newaxis, :] & ~low[:, np.newaxis], np.nan, share)  # or a bad row is in each row
    worst = _by_row(np.nanmin, own)
    middle = _by_row(np.nanmedian, share)
    return [int(row) for row in np.lexsort((middle, np.where(low, middle, worst), ~low, ~named))]


def _by_row(what: Callable[..., Any], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a figure for each row; a row without measurements counts as the median."""
    result = np.ones(len(share))
    there = np.isfinite(share).any(axis=1)
    result[there] = what(share[there], axis=1)
    return result


def _worst(
    blamed: Named,
    names: Sequence[str],
    both: NDArray[np.float64],
    share: NDArray[np.float64],
    low: NDArray[np.bool_],
) -> list[Any]:
    """Return the worst links as [name, value, share, is it named]; a node with nearly all links slow is one entry."""
    found: list[Any] = []
    for row in np.flatnonzero(low).tolist():
        others = [names[column] for column in np.flatnonzero(share[row] < _LOW).tolist() if column != row]
        who = f"{names[row]} ↔ {nodeset.folded(others)}"
        found.append([who, float(np.nanmedian(both[row])), float(np.nanmedian(share[row])), row in blamed.nodes])
    rest = np.where(low[:, np.newaxis] | low[np.newaxis, :], np.nan, share)
    rows, columns = np.triu_indices(len(names))
    single = rest[rows, columns]
    for at in np.argsort(single, kind="stable")[:_WORST]:  # missing links sort last
        if np.isfinite(single[at]):
            one, other = int(rows[at]), int(columns[at])
            who = names[one] if one == other else f"{names[one]} ↔ {names[other]}"
            found.append([who, float(both[one, other]), float(single[at]), blamed.has(one, other)])
    return sorted(found, key=lambda one: one[2])[:_WORST]


def _worst_of_many(check: CheckResult, matrix: PairMatrix, value: NDArray[np.float64], median: float) -> list[Any]:
    """Return the worst links of a cluster in blocks, as _worst() does."""
    blamed = named(check, matrix)
    share = median / value if matrix.better == "lower" else value / median
    first, second = np.asarray(matrix.first, np.int64), np.asarray(matrix.second, np.int64)
    ends, shares = np.concatenate([first, second]), np.concatenate([share, share])
    order = np.lexsort((shares, ends))
    counts = np.bincount(ends, minlength=len(matrix.nodes))
    middle = np.ones(len(counts))
    there = counts > 0
    middle[there] = shares[order][(np.cumsum(counts) - counts + counts // 2)[there]]
    low = middle < _LOW
    found: list[Any] = []
    for node in np.flatnonzero(low).tolist():
        level = median / middle[node] if matrix.better == "lower" else median * middle[node]
        words = f"{matrix.nodes[node]} ↔ {counts[node]} others"
        found.append([words, float(level), float(middle[node]), node in blamed.nodes])
    rest = np.where(low[first] | low[second] | ~np.isfinite(share), np.inf, share)
    for at in np.argsort(rest, kind="stable")[:_WORST].tolist():
        if np.isfinite(rest[at]):
            one, other = matrix.first[at], matrix.second[at]
            words = f"{matrix.nodes[one]} ↔ {matrix.nodes[other]}"
            found.append([words, float(value[at]), float(rest[at]), blamed.has(one, other)])
    return sorted(found, key=lambda one: one[2])[:_WORST]


def _blocks(
    matrix: PairMatrix, value: NDArray[np.float64], first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[NDArray[np.float64], list[str], NDArray[np.int64]]:
    """Join neighbours of the inventory to blocks; each pair of blocks shows and names its worst link."""
    size = -(-len(matrix.nodes) // _BLOCKS)
    count = -(-len(matrix.nodes) // size)
    rows, columns = np.triu_indices(count)
    cell = np.full((count, count), -1)
    cell[rows, columns] = np.arange(len(rows))
    links = np.flatnonzero(np.isfinite(value))
    order = links[np.argsort(value[links] if matrix.better == "lower" else -value[links], kind="stable")]
    at = cell[np.minimum(first, second)[order] // size, np.maximum(first, second)[order] // size]
    flat = np.full(len(rows), np.nan)
    flat[at] = value[order]  # the last write is the worst link
    who = np.zeros((len(rows), 2), np.int64)
    who[at] = np.stack([first[order], second[order]], axis=1)
    dense = np.full((count, count), np.nan)
    dense[rows, columns] = flat
    names = [nodeset.folded(matrix.nodes[start * size : (start + 1) * size]) for start in range(count)]
    return dense, names, who
