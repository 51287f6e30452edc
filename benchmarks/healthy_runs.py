"""How often healthy nodes are blamed, and how noisy their figures are.

python benchmarks/healthy_runs.py INVENTORY [--runs 20] [--suite FILE]

Every run measures nodes and links as the suite smoke does, and anybody who stands out is measured a second time, as in
any validation. Nobody may be named. The noise is the relative median absolute deviation: of the links of a run around
their median, and of the nodes around theirs; what is printed is the median over the runs, and the largest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.results import Verdict
from clusterctl.validation import run as validation
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKS = ("node_speed", "pairs")


def relative_mad(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values) / middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--suite", type=Path, help="a file like validation.yml in place of the suite smoke")
    given = parser.parse_args()
    suite = registry.load(given.suite) if given.suite else registry.builtin("smoke")
    options = validation.ValidationOptions(suite=suite, checks=CHECKS, search=False, remembered=False)
    noise: dict[str, list[float]] = {}
    blamed, suspected, loads = [], 0, []
    for number in range(1, given.runs + 1):
        record = validation.validate(given.inventory, options)
        loads.append(os.getloadavg()[0])
        for check in record.checks:
            if check.verdict is not Verdict.PASS:
                blamed.append(f"run {number}: {check.check} {check.verdict.value}: {check.reason}")
            suspected += "in a first run and not in a second" in check.reason
            for matrix in check.matrices:
                name = f"links, {matrix.quantity} of {matrix.size_bytes} B"
                noise.setdefault(name, []).append(relative_mad(matrix.value))
            for quantity in {figure.quantity for figure in check.figures} if check.check == "node_speed" else ():
                values = [figure.value for figure in check.figures if figure.quantity == quantity]
                noise.setdefault(f"nodes, {quantity}", []).append(relative_mad(values))
        print(f"run {number}: {record.verdict.value}, load {loads[-1]:.1f}", flush=True)
    print(f"{given.runs} healthy runs, load {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores")
    print(f"not a PASS: {len(blamed)}; suspected once and cleared by the second run: {suspected}")
    for name, values in sorted(noise.items()):
        print(f"{name:<34} relative MAD {100 * statistics.median(values):5.1f} %, at most {100 * max(values):5.1f} %")
    print(*blamed, sep="\n")
    sys.exit(1 if blamed else 0)


if __name__ == "__main__":
    main()
