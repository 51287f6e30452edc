"""What `check_node.py --quick` costs on each node: seconds from its start to its end, and seconds of CPU.

    python benchmarks/check_node.py INVENTORY [--rounds 10]

Each node starts the program so many times, one node after the other. The node itself measures, so no login is part of
the figures. It prints the median and the spread over all nodes, and the load before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.remote import reach

if TYPE_CHECKING:
    from clusterctl.model.hosts import Host

PROGRAM = "/usr/local/libexec/clusterctl/check_node.py"
AIM_S, AIM_CPU_S = 2.0, 0.5
# Runs on the node. The CPU seconds are those of the program and of the child by which it looks.
MEASURE = """
import json, resource, subprocess, sys, time
spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
for _ in range(int(sys.argv[1])):
    cpu, began = spent(), time.perf_counter()
    done = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    print(json.dumps([time.perf_counter() - began, spent() - cpu, done.returncode, done.stdout.strip()]))
"""


def measured(host: Host, rounds: int) -> list[tuple[float, float]]:
    """Return seconds and CPU seconds of each round on a node.

    Raises:
        SystemExit: the node does not answer, or is not fit.
    """
    look = ["/usr/bin/python3", "-I", "-S", PROGRAM, "--quick"]
    line = reach.ssh_command(host, ["/usr/bin/python3", "-I", "-S", "-c", MEASURE, str(rounds), *look])
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{host.name}: {done.stderr.strip()}")
    found = [json.loads(text) for text in done.stdout.splitlines()]
    unfit = [text for _, _, code, text in found if code]
    if unfit:
        raise SystemExit(f"{host.name} is not fit, so its time means nothing: {unfit[0]}")
    return [(seconds, cpu) for seconds, cpu, _, _ in found]


def told(name: str, values: list[float], aim: float) -> None:
    middle, low, high = statistics.median(values), min(values), max(values)
    kept = "kept" if middle < aim else "NOT KEPT"
    print(f"{name:<12} median {middle:6.3f}   spread {low:.3f} to {high:.3f}   aim below {aim}: {kept}")


def load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    hosts = ansible_inventory.load(given.inventory).hosts
    before = load()
    found = [pair for host in hosts for pair in measured(host, given.rounds)]
    print(f"{len(found)} looks on {len(hosts)} nodes; load {before} before, {load()} after, on {os.cpu_count()} cores")
    told("seconds", [seconds for seconds, _ in found], AIM_S)
    told("CPU seconds", [cpu for _, cpu in found], AIM_CPU_S)


if __name__ == "__main__":
    main()
