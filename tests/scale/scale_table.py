"""The tables of measured figures, and straight lines through them for clusters that nobody measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

FLOOR = "ssh node true"
FAR = (1000, 10000)
COLUMNS = ("controller's CPU s per node", "a node's CPU s", "MiB", "KB to a node", "KB from a node", "load")


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Return one table of figures for each size, then one of computed figures."""
    kept: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        kept[row["what"]][row["nodes"]].append(row)
    sizes = sorted({row["nodes"] for row in rows})
    parts = [measured(kept, size) for size in sizes]
    return "\n".join([*parts, *(computed(kept) if len(sizes) > 1 else [])])


def measured(kept: dict[str, dict[int, list[dict[str, Any]]]], size: int) -> str:
    lines = [
        f"### {size} nodes",
        "",
        f"| what | runs | wall s | times `{FLOOR}` | {' | '.join(COLUMNS)} |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    floor = [row["wall"] for row in kept.get(FLOOR, {}).get(size, [])]
    for what, by_size in kept.items():
        if not (found := by_size.get(size)):
            continue
        walls = [row["wall"] for row in found]
        times = f"{statistics.median(walls) / statistics.median(floor):.1f}" if floor and what != FLOOR else ""

        def each(key: str, unit: float, found: list[dict[str, Any]] = found) -> float:
            return statistics.median(row[key] for row in found) / unit

        lines.append(
            f"| {what} | {len(found)} | {spread(walls)} | {times} | {each('cpu', size):.3f} | "
            f"{each('node_cpu', size):.3f} | {each('peak', 2**20):.0f} | {each('sent', 1000 * size):.1f} | "
            f"{each('received', 1000 * size):.1f} | {spread([row['load'] for row in found], 0)} |"
        )
    return "\n".join([*lines, ""])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, and the range where there is one."""
    middle = f"{statistics.median(values):.{digits}f}"
    least, most = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return middle if least == most else f"{middle} ({least} to {most})"


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the start and the slope of the straight line with the least relative errors, neither below zero.

    The errors are relative, so that a small cluster counts as much as a large one.
    """
    weights = [1 / max(value, 1e-9) ** 2 for _, value in points]
    whole = sum(weights)
    middle_x = sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)) / whole
    middle_y = sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) / whole
    up = sum(w * (x - middle_x) * (y - middle_y) for w, (x, y) in zip(weights, points, strict=True))
    slope = up / sum(w * (x - middle_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    start = middle_y - slope * middle_x
    if start >= 0:
        return start, slope
    through = sum(w * x * y for w, (x, y) in zip(weights, points, strict=True))
    return 0.0, through / sum(w * x * x for w, (x, _) in zip(weights, points, strict=True))


def computed(kept: dict[str, dict[int, list[dict[str, Any]]]]) -> list[str]:
    head = " | ".join(f"{size:,} nodes, {kind}" for size in FAR for kind in ("CPU s", "MiB", "MB sent"))
    lines = [
        "### Computed for larger clusters",
        "",
        f"| what | measured at | line of the controller's CPU s | {head} |",
        "|---|---|---|" + "--:|" * 3 * len(FAR),
    ]
    for what, by_size in kept.items():
        if len(by_size) < 2:  # a line needs two points
            continue
        lines_of = {
            key: fitted([(n, statistics.median(row[key] for row in rows)) for n, rows in sorted(by_size.items())])
            for key in ("cpu", "peak", "sent")
        }
        start, slope = lines_of["cpu"]
        bounded = {"peak"} if what.startswith(FLOOR) else set()  # 64 at a time, however many nodes there are
        cells = [
            "" if key in bounded else f"{(lines_of[key][0] + lines_of[key][1] * size) / unit:,.0f}"
            for size in FAR
            for key, unit in (("cpu", 1), ("peak", 2**20), ("sent", 1e6))
        ]
        sizes = ", ".join(map(str, sorted(by_size)))
        lines.append(f"| {what} | {sizes} | {start:.1f} + {slope:.3f} per node | {' | '.join(cells)} |")
    return [*lines, ""]
