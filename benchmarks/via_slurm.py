"""What a validation inside an allocation of Slurm costs beside the same suite by ssh, on the same nodes.

    python benchmarks/via_slurm.py INVENTORY --submit-host node1 [--rounds 3] [--suite smoke]

Each round runs the suite both ways, in turn, so that whatever else this machine does falls on both. Both ways must have
the same verdicts. It prints the seconds of both, their difference and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.validation import run as validation
from clusterctl.validation import via_slurm
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from clusterctl.model.results import ValidationRecord

PROMISED_S = 5.0


def timed(inventory: Path, suite: str, wish: SlurmOptions | None) -> tuple[ValidationRecord, float]:
    options = validation.ValidationOptions(suite=registry.builtin(suite), remembered=False, via=wish)
    began = time.perf_counter()
    record = validation.validate(inventory, options) if wish is None else via_slurm.validate(inventory, options, wish)
    return record, time.perf_counter() - began


def told(name: str, times: list[float]) -> float:
    middle = statistics.median(times)
    print(f"{name:<12} median {middle:7.2f} s   spread {min(times):.2f} to {max(times):.2f} s   {len(times)} rounds")
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("--submit-host", default="", help="where Slurm's commands run; default: this machine")
    parser.add_argument("--partition", default="")
    parser.add_argument("--suite", default="smoke")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    wish = SlurmOptions(partition=given.partition, submit_host=given.submit_host)
    ways: dict[str, SlurmOptions | None] = {"ssh": None, "slurm": wish}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(given.rounds):
        verdicts = {}
        for way, asked in ways.items():
            record, seconds = timed(given.inventory, given.suite, asked)
            times[way].append(seconds)
            verdicts[way] = {check.check: check.verdict.value for check in record.checks}
        differ = [f"{name}: {verdicts['ssh'][name]} and {verdicts['slurm'].get(name)}" for name in verdicts["ssh"]
                  if verdicts["ssh"][name] != verdicts["slurm"].get(name)]  # fmt: skip
        if differ:
            print(f"the verdicts differ by ssh and by Slurm: {'; '.join(differ)}")
    print(f"suite {given.suite}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    by_ssh, by_slurm = told("by ssh", times["ssh"]), told("by Slurm", times["slurm"])
    more = statistics.median(b - a for a, b in zip(times["ssh"], times["slurm"], strict=True))
    print(f"overhead {more:.2f} s (median of the rounds), {by_slurm / by_ssh:.2f} times the seconds by ssh")
    print(f"promised below {PROMISED_S:.0f} s: {'kept' if more < PROMISED_S else 'NOT KEPT'}")


if __name__ == "__main__":
    main()
