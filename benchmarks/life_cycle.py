"""A replaced node, and a rollback of four nodes, beside the first provision of the four in the same run.

    python benchmarks/life_cycle.py [--repeat N] [-e NAME=VALUE …]

The four start bare; artifacts come from the user's cache, so that the first provision compiles as little as it can. One
node after the other is made anew and takes its place by ``replace``. Then a provision with another compiler option for
mpi4py leaves a second set of links, and rollbacks go to and fro between both sets.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import container_engine
from clusterctl.state import paths

NAME = "bench-life"
NODES = 4
ROLLBACK_S, REPLACE_SHARE = 10.0, 0.25
OTHER = "mpi4py_cflags=-O1"
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))


class Lab:
    """A sandbox, and the variables of all its runs."""

    def __init__(self, variables: list[str], state: str) -> None:
        self.variables = variables
        self.environment = {**os.environ, "XDG_STATE_HOME": state}
        self.box = sandboxes.up(sandboxes.SandboxSpec(name=NAME, nodes=NODES))

    def timed(self, verb: str, *words: str, variables: tuple[str, ...] = ()) -> tuple[float, str]:
        """Run a command of clusterctl; return its seconds and the id of its run."""
        extra = [] if verb == "rollback" else [word for name in [*self.variables, *variables] for word in ("-e", name)]
        asked = [] if verb == "replace" else ["--yes"]
        command = [CLUSTERCTL, verb, str(self.box.inventory), *words, *asked, *extra, "--format", "json"]
        start = time.perf_counter()
        done = subprocess.run(
            command, check=True, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        return time.perf_counter() - start, str(json.loads(done.stdout)["run_id"])

    def renew(self, name: str) -> None:
        """Make a node anew under its old name."""
        container_engine.find().run("rm", "--force", "--time", "0", self.box.node(name).container)
        self.box = sandboxes.up(sandboxes.SandboxSpec(name=NAME, nodes=NODES))


def line(name: str, seconds: list[float]) -> str:
    return f"{name:24} median {statistics.median(seconds):6.1f} s, spread {min(seconds):.1f} to {max(seconds):.1f} s"


def measure(lab: Lab, repeat: int) -> None:
    """Print all times, and the ratios."""
    first, one = lab.timed("provision", "--no-validate")
    print(f"{'four fresh nodes':24} {first:13.1f} s", flush=True)
    replaced = []
    for turn in range(repeat):
        node = f"node{2 + turn % (NODES - 1)}"
        lab.renew(node)
        replaced.append(lab.timed("replace", node)[0])
    print(line("replace", replaced))
    print(f"replace / first provision: {statistics.median(replaced) / first:.2f} (at most {REPLACE_SHARE})")
    _, two = lab.timed("provision", "--no-validate", variables=(OTHER,))
    back = [lab.timed("rollback", (one, two)[turn % 2])[0] for turn in range(repeat)]
    print(f"{line('rollback', back)} (at most {ROLLBACK_S:.0f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="how many rollbacks, and how many replaced nodes")
    parser.add_argument("-e", action="append", default=[], dest="variables", metavar="NAME=VALUE")
    options = parser.parse_args()
    sandboxes.down(NAME)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=paths.cache_dir().value.parent) as scratch:
        try:
            measure(Lab(options.variables, f"{scratch}/state"), options.repeat)
        finally:
            sandboxes.down(NAME)


if __name__ == "__main__":
    main()
