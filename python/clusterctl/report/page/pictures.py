"""Data of the page's other pictures: curves over message sizes, trends, and the table of nodes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterctl.model import nodeset
from clusterctl.report import figure_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from clusterctl.model.results import CheckResult, Comparison, Figure, Trend, ValidationRecord

_TRENDS = 60
_COLUMNS = 16  # figures per node in the table of nodes
_PREFERRED = ("bus_bandwidth", "algorithm_bandwidth", "bandwidth", "time", "latency")


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
    named = {host for check in record.checks for host in check.named}
    bad = {check.check for check in record.checks if check.is_bad}

    def order(trend: Trend) -> tuple[bool, bool, int]:
        return (not trend.changed_at, not named & set(trend.figure.nodes), len(trend.figure.nodes))

    found = sorted((trend for trend in record.trends if len(trend.points) > 1), key=order)
    shown = [
        _trend(one, named=one.check in bad and (not one.figure.nodes or bool(named & set(one.figure.nodes))))
        for one in found[:_TRENDS]
    ]
    return shown, max(0, len(found) - _TRENDS)


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
        for host in check.named:
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
        "values": packed(values.astype("<f4")),
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


def _trend(trend: Trend, *, named: bool) -> dict[str, Any]:
    on = f" on {nodeset.folded(trend.figure.nodes)}" if trend.figure.nodes else ""
    return {
        "title": f"{figure_words.about(trend.figure)}{on}",
        "unit": trend.figure.unit,
        "points": [[int(one.at.timestamp()), one.value, one.verdict.value, one.run_id] for one in trend.points],
        "changed": trend.changed_at,
        "named": named,
    }


def _key(figure: Figure) -> tuple[Any, ...]:
    return (figure.quantity, figure.operation, figure.backend, figure.algorithm, figure.size_bytes)


def _rank(quantity: str) -> int:
    return _PREFERRED.index(quantity) if quantity in _PREFERRED else len(_PREFERRED)


def _coded(words: list[str]) -> dict[str, Any]:
    known = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return {"words": list(known), "of": [known[word] for word in words] if len(known) > 1 else []}


# --- Packing of arrays for the browser: base64 of little-endian numbers, and logarithms in 16 or 8 bits ---------------
# A value is the logarithm in 16 bits between the least and the greatest value (five digits of a factor of ten). 0 means
# not measured. 512 nodes take 256 KiB, where JSON would take megabytes.

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
