"""A fifth node joins four: how long it takes beside the first provision of the four, in one run.

    python benchmarks/fifth_node.py [--warm] [--repeat N]

The four start bare and, unless --warm is given, with an empty cache of artifacts, so that Open MPI, the environment,
mpi4py, NCCL and Horovod are built on one of them; sources and wheels are fetched beforehand, since a download says
nothing about either. The fifth is bare too; the four are as the first run left them. With --repeat, further fresh
nodes join one after the other, and the median and spread of their times are told.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterctl import sandbox as sandboxes
from clusterctl.state import paths

NAME = "bench-fifth"
NODES = 4
TARGET = 0.20
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))


def provision(nodes: int, environment: dict[str, str]) -> float:
    """Bring the sandbox to so many nodes, provision it, and return the seconds of the provisioning alone."""
    box = sandboxes.up(sandboxes.SandboxSpec(name=NAME, nodes=nodes))
    command = [CLUSTERCTL, "provision", "--yes", "--no-validate", str(box.inventory)]
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def cache_without_artifacts(folder: Path) -> None:
    """Give the run a cache with everything that is fetched and nothing that is built."""
    for name in ("sources", "wheels", "locks"):
        known = paths.cache_dir().value / name
        if known.is_dir():
            shutil.copytree(known, folder / name, copy_function=os.link)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", action="store_true", help="take artifacts from the user's cache as well")
    parser.add_argument("--repeat", type=int, default=1, help="how many nodes join, one after the other")
    options = parser.parse_args()
    sandboxes.down(NAME)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=paths.cache_dir().value.parent) as scratch:
        environment = {**os.environ, "XDG_STATE_HOME": f"{scratch}/state"}
        if not options.warm:
            cache_without_artifacts(Path(scratch, "cache", "clusterctl"))
            environment["XDG_CACHE_HOME"] = f"{scratch}/cache"
        try:
            first = provision(NODES, environment)
            print(f"{'four fresh nodes':28} {first:7.1f} s", flush=True)
            joined = []
            for number in range(options.repeat):
                joined.append(provision(NODES + 1 + number, environment))
                print(f"{f'node {NODES + 1 + number} joins':28} {joined[-1]:7.1f} s", flush=True)
        finally:
            sandboxes.down(NAME)
    middle = statistics.median(joined)
    spread = f" ({min(joined):.1f} to {max(joined):.1f})" if len(joined) > 1 else ""
    print(f"ratio {middle / first:.2f}{spread and f', median {middle:.1f} s{spread}'} (at most {TARGET})")


if __name__ == "__main__":
    main()
