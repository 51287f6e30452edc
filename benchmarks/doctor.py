"""What doctor costs beside the least that can be asked of the same nodes: one `ssh node true` each, as many at once.

    python benchmarks/doctor.py [--nodes N] [--repeat N] [--inventory FILE]

Without --inventory, a sandbox of nodes that were never provisioned is started for it. Both are run in turn, so that
whatever else this machine does falls on both.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl import sandbox as sandboxes
from clusterctl.inventory import ansible_inventory
from clusterctl.remote import ssh

if TYPE_CHECKING:
    from clusterctl.model.hosts import Host

NAME = "bench-doctor"
AT_ONCE = 64
TARGET_S = 60.0
ENDINGS = {0, 10}  # clean, or with findings; anything else did not look at all nodes


def doctor(path: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "clusterctl", "doctor", str(path), "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in ENDINGS:
        sys.exit(f"doctor ended with {done.returncode}")
    return time.perf_counter() - began


def least(hosts: tuple[Host, ...]) -> float:
    def one(host: Host) -> None:
        subprocess.run(ssh.command(host, ["true"]), stdin=subprocess.DEVNULL, check=True)

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, hosts))
    return time.perf_counter() - began


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):6.2f} s, {min(values):6.2f} to {max(values):6.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--inventory", type=Path, help="nodes that are there already")
    options = parser.parse_args()
    path = options.inventory
    try:
        if path is None:
            sandboxes.down(NAME)
            path = sandboxes.up(sandboxes.SandboxSpec(name=NAME, nodes=options.nodes)).inventory
        hosts = ansible_inventory.load(path).selected_hosts
        looked, bare = [], []
        for _ in range(options.repeat):
            bare.append(least(hosts))
            looked.append(doctor(path))
    finally:
        if options.inventory is None:
            sandboxes.down(NAME)
    print(f"{len(hosts)} nodes, {options.repeat} runs each")
    print(f"  ssh node true, {AT_ONCE} at once   {spread(bare)}")
    print(f"  clusterctl doctor            {spread(looked)}")
    print(f"  ratio of the medians         {statistics.median(looked) / statistics.median(bare):.1f}")
    print(f"  below {TARGET_S:.0f} s                   {'yes' if max(looked) < TARGET_S else 'NO'}")


if __name__ == "__main__":
    main()
