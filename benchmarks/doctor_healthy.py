"""How often doctor finds something on healthy nodes that is not there.

    python benchmarks/doctor_healthy.py [--runs 20] [--nodes 4] [--inventory FILE]

Without --inventory, every run gets a new sandbox of nodes that were never provisioned. What such nodes are is known:
they have no keys for each other, their own name leads to loopback, and the names of the others lead nowhere. Any other
finding is false. With --inventory, the nodes are provisioned and healthy, and any finding is false.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from clusterctl import sandbox as sandboxes

NAME = f"bench-doctor-healthy-{os.getpid()}"
# Of a fresh Debian: the check and the severity, on all nodes.
FRESH = (("ssh", "error"), ("names", "error"), ("names", "warning"))
ENDINGS = {0, 10}  # clean, or with findings


def doctor(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "clusterctl", "doctor", str(path), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in ENDINGS:
        sys.exit(f"doctor ended with {done.returncode}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def false_findings(found: dict[str, Any], *, fresh: bool) -> list[str]:
    """Return the findings that are not so, and those of fresh nodes that are missing."""
    everybody = found["hosts"]
    left = Counter(FRESH if fresh else ())
    wrong = []
    for one in found["findings"]:
        told = (one["check"], one["severity"])
        if left[told] and one["hosts"] == everybody:
            left[told] -= 1
        else:
            wrong.append(f"{one['severity']} {one['check']} {' '.join(one['hosts'])}: {one['cause']}")
    return wrong + [f"not found: {check} {severity}" for check, severity in left.elements()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--inventory", type=Path, help="provisioned nodes that are there already")
    options = parser.parse_args()
    wrong: list[str] = []
    loads, real = [], 0
    for number in range(1, options.runs + 1):
        path = options.inventory
        try:
            if path is None:
                sandboxes.down(NAME)
                path = sandboxes.up(sandboxes.SandboxSpec(name=NAME, nodes=options.nodes)).inventory
            found = doctor(path)
        finally:
            if options.inventory is None:
                sandboxes.down(NAME)
        loads.append(os.getloadavg()[0])
        here = false_findings(found, fresh=options.inventory is None)
        real += len(found["findings"]) - len(here)
        wrong += [f"run {number}: {words}" for words in here]
        print(f"run {number}: {len(here)} false, load {loads[-1]:.1f}", flush=True)
    print(f"{options.runs} runs on {len(found['hosts'])} healthy nodes: {len(wrong)} false findings, {real} true ones")
    print(f"load {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores")
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
