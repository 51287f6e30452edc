"""How long it takes to measure all pairs of nodes in one job, beside the same pairs one after the other.

python benchmarks/all_pairs.py INVENTORY [--rounds 5]

The tournament is the check ``pairs`` of the suite smoke. The other way launches a job for each of a few pairs, with the
same budget, and multiplies: what a script does that runs a ping-pong between two nodes at a time. What is promised is
that 16 nodes take less than 30 s of measuring.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from pathlib import Path

from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.validation import run as validation
from clusterctl.validation.checks import registry

PROMISED_S = 30.0


def pairs(inventory: Path, limit: str | None) -> CheckResult:
    options = validation.ValidationOptions(
        inventory=dataclasses.replace(InventoryOptions(), limit=limit),
        suite=registry.builtin("smoke"),
        checks=("pairs",),
        search=False,
        remembered=False,
    )
    record = validation.validate(inventory, options)
    found = next((one for one in record.checks if one.check == "pairs"), None)
    if found is None or found.verdict not in {Verdict.PASS, Verdict.FAIL} or not found.matrices:
        raise SystemExit(
            "; ".join(f"{one.check}: {one.reason}" for one in record.checks if one.verdict is not Verdict.PASS)
        )
    return found


def told(name: str, times: list[float]) -> float:
    middle = statistics.median(times)
    print(f"{name:<34} median {middle:7.2f} s   spread {min(times):.2f} to {max(times):.2f} s   {len(times)} rounds")
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    measuring, jobs, single = [], [], []
    for number in range(given.rounds):
        found = pairs(given.inventory, None)
        matrix = found.matrices[-1]
        measuring.append(next(one.value for one in found.measurements if one.name == "measuring"))
        jobs.append(found.seconds)
        ends = matrix.nodes[number % len(matrix.nodes)], matrix.nodes[number - 1]
        single.append(pairs(given.inventory, ",".join(ends)).seconds)
    links = len(matrix.value)
    words = f"{len(matrix.nodes)} nodes, {links} pairs{'' if matrix.complete else ' (some rounds)'}"
    print(f"{words}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for one in found.matrices:
        middle = statistics.median(one.value)
        noise = statistics.median(abs(value - middle) for value in one.value) / middle
        print(f"{one.quantity} of {one.size_bytes} B: median {middle:.4g} {one.unit}, relative MAD {100 * noise:.1f} %")
    told("measuring, in one job", measuring)
    whole = told("the job with its launch", jobs)
    alone = told("one pair alone, with its launch", single)
    share = 100 * whole / alone / links
    print(f"one pair after the other: {alone * links:.0f} s; the tournament takes {share:.1f} % of it")
    kept = max(measuring) < PROMISED_S
    print(f"promised below {PROMISED_S:.0f} s of measuring for 16 nodes: {'kept' if kept else 'NOT KEPT'}")


if __name__ == "__main__":
    main()
