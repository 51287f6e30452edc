"""What the search for outliers among all links costs beside the least that can be done with them: one median.

    python benchmarks/outliers.py [--repeat N]

CPU seconds of this process, so that whatever else the machine does matters little; the least of the repetitions.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from clusterctl.analysis import outliers
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import PairMatrix

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sim"))

import simulated

if TYPE_CHECKING:
    from collections.abc import Callable

# Nodes, sampled rounds (0: all pairs).
SIZES = ((16, 0), (512, 0), (1000, 0), (10_000, 32))


def least(repeat: int, work: Callable[[], object]) -> float:
    found = []
    for _ in range(repeat):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def plain(values: tuple[float, ...]) -> float:
    """Take a record's numbers as they come, as the verdict has to, and their median."""
    return float(np.median(np.log(np.asarray(values))))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(5)
    print(f"{'nodes':>7} {'links':>9} {'verdict':>9} {'median':>9} {'ratio':>6}  {'peak memory':>11}")
    for nodes, rounds in SIZES:
        plan = simulated.Plan(nodes=nodes, noise=0.03, rounds=rounds, slow_nodes=1, slow_links=1)
        cluster = simulated.build(plan, rng)
        measured = simulated.measure(cluster, rng)
        # As it comes from a record: tuples of Python's own numbers.
        matrix = PairMatrix.model_construct(
            **{
                **dict(measured),
                **{name: tuple(getattr(measured, name).tolist()) for name in ("first", "second", "value")},
            }
        )
        ours = least(options.repeat, lambda matrix=matrix: outliers.among_links(matrix, OutlierPolicy()))
        median = least(options.repeat, lambda matrix=matrix: plain(matrix.value))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        links = len(matrix.value)
        print(f"{nodes:>7,} {links:>9,} {ours:>7.3f} s {median:>7.4f} s {ours / median:>6.1f}  {memory:>7.0f} MiB")


if __name__ == "__main__":
    main()
