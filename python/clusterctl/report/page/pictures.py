"""Data of the page's pictures, packed small for the browser.

A matrix is one number per pair, in the order of the upper triangle. The number is the logarithm of the value in 16 bits
between the least and the greatest value (five digits of a factor of ten); 0 means not measured. 512 nodes take 256 KiB,
where JSON would take megabytes. Arrays are little-endian and base64.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterctl.model import nodeset
from clusterctl.report import actions, figure_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from clusterctl.model.results import CheckResult, Comparison, Figure, PairMatrix, Trend, ValidationRecord

MOST_NODES = 512  # nodes with a row each; a larger cluster has a row per block of nodes
_BLOCKS = 256
_SPREADS = 600_000  # links of all matrices; up to here each link carries its spread, a byte
_CODES = 65_534  # steps of a value's logarithm; 0 stays free
_LOW = 0.8  # of the median: a slower link is drawn as bad; the verdict comes from the culprits of the checks
_WORST = 8
_TRENDS = 60
_COLUMNS = 16  # figures per node in the table of nodes
_PREFERRED = ("bus_bandwidth", "algorithm_bandwidth", "bandwidth", "time", "latency")


def matrices(record: ValidationRecord) -> list[dict[str, Any]]:
    """Return the pair matrices of all checks."""
    found = [(check, matrix) for check in record.checks for matrix in check.matrices if matrix.value]
    links = sum(len(matrix.nodes) * (len(matrix.nodes) - 1) // 2 for _, matrix in found)
    return [_matrix(check, matrix, spreads=links <= _SPREADS) for check, matrix in found]


def sweeps(record: ValidationRecord) -> list[dict[str, Any]]:
    """Return the curves over message sizes, one for each check, operation, backend and quantity."""
    curves = []
    for check in record.checks:
        references = {_key(one.figure): one for one in check.comparisons if not one.figure.nodes}
        grouped: dict[tuple[str, str, str, str], list[Figure]] = {}
        for figure in check.figures:
            if figure.size_bytes and not figure.nodes:
                about = (figure.operation, figure.backend, figure.algorithm, figure.quantity)
                grouped.setdefault(about, []).append(figure)
        for (operation, backend, algorithm, quantity), figures in grouped.items():
            if len(figures) > 1:
                figures.sort(key=lambda one: one.size_bytes or 0)
                curves.append(
                    {
                        "check": check.check,
                        "title": " ".join(word for word in (operation or check.check, backend, algorithm) if word),
                        "quantity": quantity,
                        "name": figure_words.quantity(quantity),
                        "unit": figures[0].unit,
                        **_curve(figures, references),
                    }
                )
    return sorted(curves, key=lambda one: _rank(one["quantity"]))


def trends(record: ValidationRecord) -> tuple[list[dict[str, Any]], int]:
    """Return the trends, changed figures first, and how many are beyond the limit."""
    named = {host for check in record.checks for one in actions.culprits(check) for host in one.nodes}

    def order(trend: Trend) -> tuple[bool, bool, int]:
        return (not trend.changed_at, not named & set(trend.figure.nodes), len(trend.figure.nodes))

    found = sorted((trend for trend in record.trends if len(trend.points) > 1), key=order)
    return [_trend(one) for one in found[:_TRENDS]], max(0, len(found) - _TRENDS)


def nodes(record: ValidationRecord) -> dict[str, Any]:
    """Return the table of nodes: slots, network, the checks that name the node, and its figures."""
    hosts = record.hosts
    place = {host: number for number, host in enumerate(hosts)}
    columns: dict[tuple[Any, ...], tuple[CheckResult, Figure, NDArray[np.float32]]] = {}
    for check in record.checks:
        for figure in check.figures:
            if len(figure.nodes) == 1 and figure.nodes[0] in place:
                key = (check.check, *_key(figure))
                if key not in columns:
                    columns[key] = (check, figure, np.full(len(hosts), np.nan, np.float32))
                columns[key][2][place[figure.nodes[0]]] = figure.value
    shown = [_column(*column) for column in list(columns.values())[:_COLUMNS]]
    worst = np.ones(len(hosts))
    for _, figure, values in list(columns.values())[:_COLUMNS]:
        if figure.better != "none":
            worst = np.fmin(worst, _goodness(values, figure.better))
    named: dict[str, list[str]] = {}
    for check in record.checks:
        names = {*check.hosts, *(host for one in actions.culprits(check) for host in one.nodes)}
        for host in names if check.is_bad else ():
            named.setdefault(host, []).append(check.check)
    bad = np.array([host not in named for host in hosts])
    return {
        "hosts": hosts,
        "slots": [record.slots.get(host, 0) for host in hosts],
        "fabric": _coded([record.fabric.get(host, "") for host in hosts]),
        "named": {str(place[host]): checks for host, checks in named.items() if host in place},
        "columns": shown,
        "left_out": max(0, len(columns) - _COLUMNS),
        "order": np.lexsort((worst, bad)).tolist(),
    }


def _matrix(check: CheckResult, matrix: PairMatrix, *, spreads: bool) -> dict[str, Any]:
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
    count = len(names)
    if count <= MOST_NODES:
        dense = np.full((count, count), np.nan)
        dense[first, second] = value
        if spread is not None:
            share = np.full((count, count), np.nan)
            share[first, second] = spread / np.where(value > 0, value, np.nan)
            data["spreads"] = _packed(_shares(share[np.triu_indices(count, 1)]))
    else:
        dense, names, who = _blocks(matrix, value, first, second)
        data |= {
            "block": -(-count // _BLOCKS),
            "worst": _packed(who.astype("<u2")),
            "worst_links": _worst_of_many(matrix, value, median),
        }
    rows, columns = np.triu_indices(len(names), 0 if "block" in data else 1)
    codes, low, high = _codes(dense[rows, columns])
    both = np.fmax(dense, dense.T)  # only one of the two is measured
    with np.errstate(invalid="ignore"):
        share = both / median if matrix.better != "lower" else median / both
    low_rows = _by_row(np.nanmedian, share) < _LOW
    return (
        {"worst_links": [] if "block" in data else _worst(names, both, share, low_rows)}
        | data
        | {
            "nodes": names,
            "values": _packed(codes),
            "low": low,
            "high": high,
            "order": _worst_first(share, low_rows),
        }
    )


def _worst_first(share: NDArray[np.float64], low: NDArray[np.bool_]) -> list[int]:
    """Order the rows: first the rows that are bad as a whole, then by the worst link of each row."""
    own = np.where(low[np.newaxis, :] & ~low[:, np.newaxis], np.nan, share)  # or a bad row is in each row
    worst = _by_row(np.nanmin, own)
    middle = _by_row(np.nanmedian, share)
    return [int(row) for row in np.lexsort((middle, np.where(low, middle, worst), ~low))]


def _by_row(what: Callable[..., Any], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a figure for each row; a row without measurements counts as the median."""
    result = np.ones(len(share))
    there = np.isfinite(share).any(axis=1)
    result[there] = what(share[there], axis=1)
    return result


def _worst(
    names: Sequence[str], both: NDArray[np.float64], share: NDArray[np.float64], low: NDArray[np.bool_]
) -> list[Any]:
    """Return the worst links as [name, value, share]; a node whose links are nearly all bad is one entry."""
    found: list[Any] = []
    for row in np.flatnonzero(low).tolist():
        others = [names[column] for column in np.flatnonzero(share[row] < _LOW).tolist() if column != row]
        who = f"{names[row]} ↔ {nodeset.folded(others)}"
        found.append([who, float(np.nanmedian(both[row])), float(np.nanmedian(share[row]))])
    rest = np.where(low[:, np.newaxis] | low[np.newaxis, :], np.nan, share)
    rows, columns = np.triu_indices(len(names))
    single = rest[rows, columns]
    for at in np.argsort(single, kind="stable")[:_WORST]:  # missing links sort last
        if np.isfinite(single[at]):
            one, other = int(rows[at]), int(columns[at])
            who = names[one] if one == other else f"{names[one]} ↔ {names[other]}"
            found.append([who, float(both[one, other]), float(single[at])])
    return sorted(found, key=lambda one: one[2])[:_WORST]


def _worst_of_many(matrix: PairMatrix, value: NDArray[np.float64], median: float) -> list[Any]:
    """Return the worst links of a cluster in blocks; a node with half of its links bad is one entry."""
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
        found.append([f"{matrix.nodes[node]} ↔ {counts[node]} others", float(level), float(middle[node])])
    rest = np.where(low[first] | low[second] | ~np.isfinite(share), np.inf, share)
    for at in np.argsort(rest, kind="stable")[:_WORST].tolist():
        if np.isfinite(rest[at]):
            who = f"{matrix.nodes[matrix.first[at]]} ↔ {matrix.nodes[matrix.second[at]]}"
            found.append([who, float(value[at]), float(rest[at])])
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


def _codes(value: NDArray[np.float64]) -> tuple[NDArray[np.uint16], float, float]:
    there = np.isfinite(value) & (value > 0)
    if not there.any():
        return np.zeros(len(value), "<u2"), 1.0, 1.0
    low, high = float(value[there].min()), float(value[there].max())
    span = np.log(high / low) or 1.0
    codes = np.zeros(len(value), "<u2")
    codes[there] = 1 + np.rint(np.log(value[there] / low) / span * _CODES)
    return codes, low, high


def _shares(share: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return fractions between a hundred-thousandth and one as their logarithm in a byte; 0 means not measured."""
    codes = np.zeros(len(share), np.uint8)
    there = np.isfinite(share) & (share > 0)
    codes[there] = np.clip(np.rint(255 + np.log10(share[there]) / 5 * 254), 1, 255)
    return codes


def _goodness(values: NDArray[np.float32], better: str) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        middle = np.nanmedian(values.astype(np.float64))
        return values / middle if better == "higher" else middle / values


def _column(check: CheckResult, figure: Figure, values: NDArray[np.float32]) -> dict[str, Any]:
    return {
        "check": check.check,
        "title": figure_words.about(figure.model_copy(update={"backend": ""})),
        "unit": figure.unit,
        "better": figure.better,
        "values": _packed(values.astype("<f4")),
    }


def _curve(figures: Iterable[Figure], references: dict[tuple[Any, ...], Comparison]) -> dict[str, Any]:
    points, band = [], []
    sources = set()
    failed = 0
    for figure in figures:
        points.append([figure.size_bytes, figure.value, figure.low, figure.high])
        found = references.get(_key(figure))
        if found:
            wanted = found.reference
            edges = [None if edge is None else wanted.value * (1 + edge) for edge in (wanted.lower, wanted.upper)]
            band.append([figure.size_bytes, wanted.value, *edges])
            sources.add(wanted.source)
            failed += found.verdict.value == "FAIL"
    return {"points": points, "band": band, "source": " and ".join(sorted(sources)), "failed": failed}


def _trend(trend: Trend) -> dict[str, Any]:
    on = f" on {nodeset.folded(trend.figure.nodes)}" if trend.figure.nodes else ""
    return {
        "title": f"{figure_words.about(trend.figure)}{on}",
        "unit": trend.figure.unit,
        "points": [[int(one.at.timestamp()), one.value, one.verdict.value, one.run_id] for one in trend.points],
        "changed": trend.changed_at,
    }


def _key(figure: Figure) -> tuple[Any, ...]:
    return (figure.quantity, figure.operation, figure.backend, figure.algorithm, figure.size_bytes)


def _rank(quantity: str) -> int:
    return _PREFERRED.index(quantity) if quantity in _PREFERRED else len(_PREFERRED)


def _coded(words: list[str]) -> dict[str, Any]:
    known = list(dict.fromkeys(words))
    return {"words": known, "of": [known.index(word) for word in words] if len(known) > 1 else []}


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
