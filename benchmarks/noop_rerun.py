"""What a second 'clusterctl provision' with nothing to do costs, against one 'ssh node true' to all nodes.

python benchmarks/noop_rerun.py [--nodes 16] [--repeat 7] [--inventory FILE]

Without --inventory a sandbox of its own is started, provisioned once (from the cache of artifacts, or compiling) and
taken down at the end. Both sides open 64 connections at a time at most and are measured in turn, so that a busy moment
hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl import sandbox
from clusterctl.inventory import ansible_inventory
from clusterctl.remote import reach

if TYPE_CHECKING:
    from clusterctl.model.hosts import Host

FANOUT = 64
TARGET = 2.5
PROGRAM = str(Path(sys.executable).with_name("clusterctl"))


def floor(hosts: tuple[Host, ...]) -> float:
    """One 'ssh node true' to every node."""
    start = time.perf_counter()
    with ThreadPoolExecutor(FANOUT) as pool:
        list(pool.map(lambda host: subprocess.run(reach.ssh_command(host, ["true"]), check=True), hosts))
    return time.perf_counter() - start


def provision(path: Path) -> tuple[float, dict[str, object]]:
    start = time.perf_counter()
    command = [PROGRAM, "provision", str(path), "--no-validate", "--format", "json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - start, json.loads(done.stdout)


def line(name: str, seconds: list[float]) -> str:
    return f"{name:32} median {statistics.median(seconds):6.2f} s, spread {min(seconds):.2f} to {max(seconds):.2f} s"


def measure(path: Path, repeat: int) -> None:
    hosts = ansible_inventory.load(path).hosts
    seconds, record = provision(path)
    print(f"first run on {len(hosts)} nodes: {record['outcome']}, {seconds:.1f} s")
    samples: dict[str, list[float]] = {"ssh node true": [], "provision with nothing to do": []}
    for _ in range(repeat):
        samples["ssh node true"].append(floor(hosts))
        seconds, record = provision(path)
        if record["outcome"] != "nothing to do":
            sys.exit(f"the run was not one with nothing to do: {record['outcome']}, {record['reasons']}")
        samples["provision with nothing to do"].append(seconds)
    for name, values in samples.items():
        print(line(name, values))
    ours, bare = (statistics.median(samples[name]) for name in ("provision with nothing to do", "ssh node true"))
    print(f"ratio {ours / bare:.1f} (at most {TARGET})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--inventory", type=Path)
    options = parser.parse_args()
    if options.inventory is not None:
        measure(options.inventory, options.repeat)
        return
    name = f"noop-{os.getpid()}"
    try:
        measure(sandbox.up(sandbox.SandboxSpec(name=name, nodes=options.nodes)).inventory, options.repeat)
    finally:
        sandbox.down(name)


if __name__ == "__main__":
    main()
