"""How often ``copies`` of the suite nightly finds a node that corrupts one in 10,000 large copies, and what it costs.

    python tests/faults/corrupted_copies.py [--runs 10] [--name NAME] [--keep]

Each round runs the check on four healthy nodes, and then with the fault on one of them, another one in each round. It
prints the seconds of both, who was named, and how many copies the core with the fewest made.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

import planting
from clusterctl import sandbox as sandboxes
from clusterctl.model.results import CheckResult
from clusterctl.validation import run as validation
from clusterctl.validation.checks import registry
from validated import NODES, Cluster, mpi_alone, result

CHECK = "copies"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--name", default="corrupted")
    parser.add_argument("--keep", action="store_true", help="leave the sandbox up")
    given = parser.parse_args()
    healthy: list[CheckResult] = []
    faulty: list[tuple[str, CheckResult]] = []
    try:
        box = sandboxes.up(sandboxes.SandboxSpec(name=given.name, nodes=len(NODES)))
        mpi_alone(box)
        cluster = Cluster(box)
        cluster.provision()
        for number in range(given.runs):
            healthy.append(looked(cluster))
            node = NODES[number % len(NODES)]
            with planting.preloaded(cluster, node, planting.FLIP_COPIES):
                faulty.append((node, looked(cluster)))
            print(f"{node}: {faulty[-1][1].verdict.value} {faulty[-1][1].hosts}: {faulty[-1][1].reason}", flush=True)
    finally:
        if not given.keep:
            sandboxes.down(given.name)
    right = sum(one.hosts == (node,) for node, one in faulty)
    wrong = sum(bool(set(one.hosts) - {node}) for node, one in faulty) + sum(one.is_bad for one in healthy)
    print(f"named rightly {right} of {len(faulty)}, wrongly blamed {wrong} of {len(faulty) + len(healthy)}")
    print(f"healthy: {dict(Counter(one.verdict.value for one in healthy))}")
    told("seconds, healthy", [one.seconds for one in healthy])
    told("seconds, with the fault", [one.seconds for _, one in faulty])
    copies = [one.value for check in healthy for one in check.measurements if one.name == "copies_of_a_core"]
    told("copies of the core with the fewest", copies)
    print(f"load {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")
    sys.exit(0 if right == len(faulty) and not wrong else 1)


def looked(cluster: Cluster) -> CheckResult:
    options = validation.ValidationOptions(
        suite=registry.builtin("nightly"), checks=(CHECK,), search=False, remembered=False
    )
    return result(validation.validate(cluster.box.inventory, options), CHECK)


def told(name: str, values: list[float]) -> None:
    print(f"{name:<36} median {statistics.median(values):,.1f}   spread {min(values):,.1f} to {max(values):,.1f}")


if __name__ == "__main__":
    main()
