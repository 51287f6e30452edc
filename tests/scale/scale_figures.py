"""What commands cost as the cluster grows: nodes out of namespaces, each command beside one `ssh node true` to each.

    python tests/scale/scale_figures.py measure COUNT --out FILE [--rounds N] [--pyinfra PROGRAM] [--without PART]
    python tests/scale/scale_figures.py measure COUNT --out FILE [--rounds N] --mesh-alone
    python tests/scale/scale_figures.py table FILE

`measure` makes COUNT nodes and one more, measures, writes a line of JSON for each single run, and removes the nodes.
The cache of artifacts must hold those of MPI alone; provision one sandbox node with MPI alone before.
`--without` leaves out a part: looks, first, settled, changed, run, join, others. `--mesh-alone` gives the nodes names
and keys of each other only, in seconds for each node, so that doctor tries logins; nothing else is measured then.
`table` prints the tables, and what straight lines through the figures give for larger clusters.

CPU seconds and memory are those of control groups: one for the command with all that it starts, one for all nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import netns_nodes
from netns_meter import Group
from scale_others import Others
from scale_table import tables

CLUSTERCTL = [sys.executable, "-m", "clusterctl"]
AT_ONCE = 64
PATIENCE_S = 3600
MPI_ALONE = {"python_env_framework": "none", "nccl_install": "never", "horovod_install": "never"}
FLOOR = "ssh node true"
HUNG_S, HUNG = 60, 124  # seconds, and the exit code of timeout
PARTS = ("looks", "first", "settled", "changed", "run", "join", "others")


class Figures:
    """Measures commands on the nodes, and writes each figure down at once."""

    def __init__(self, nodes: netns_nodes.Nodes, count: int, out: Path) -> None:
        self.nodes, self.count, self.out = nodes, count, out
        self.state = nodes.folder / "state"
        self.group = Group(f"{nodes.folder.name}-controller")
        self.group.make()

    def variables(self, **more: object) -> None:
        path = self.nodes.box.inventory.parent / "group_vars" / "all.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**MPI_ALONE, **more}), encoding="utf-8")

    def inventory(self, count: int = 0) -> str:
        return str(self.nodes.inventory(count or self.count))

    def measured(self, what: str, command: Sequence[str], endings: Collection[int] = (0,), nodes: int = 0) -> str:
        """Run a command once, write down what it cost, and return its output."""
        load = os.getloadavg()[0]
        environment = {**os.environ, "XDG_STATE_HOME": str(self.state), "ANSIBLE_HOST_KEY_CHECKING": "True"}
        sent, received = self.nodes.traffic()
        work, theirs = self.group.cpu_s(), self.nodes.group.cpu_s()
        before, began = self.group.memory(), time.perf_counter()
        with self.group.watched():
            done = subprocess.run(
                self.group.enter(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                env=environment, timeout=PATIENCE_S,
            )  # fmt: skip
            wall = time.perf_counter() - began
        sent_after, received_after = self.nodes.traffic()
        row = {
            "nodes": nodes or self.count, "what": what, "wall": wall, "rc": done.returncode, "load": load,
            "cpu": self.group.cpu_s() - work, "node_cpu": self.nodes.group.cpu_s() - theirs,
            "peak": max(0, self.group.peak - before), "sent": sent_after - sent, "received": received_after - received,
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        if done.returncode not in endings:
            (self.out.parent / "failure.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
            sys.exit(f"'{what}' ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        if done.returncode != HUNG:
            with self.out.open("a", encoding="utf-8") as target:
                target.write(json.dumps(row) + "\n")
        return done.stdout

    def ours(self, what: str, verb: str, *words: str, endings: Collection[int] = (0,), count: int = 0) -> str:
        return self.measured(what, [*CLUSTERCTL, verb, self.inventory(count), *words], endings)

    def provision(self, what: str, *words: str, count: int = 0, wanted: str = "done") -> None:
        answer = self.ours(what, "provision", "--yes", "--no-validate", "--format", "json", *words, count=count)
        outcome = json.loads(answer)["outcome"]
        if outcome != wanted:
            sys.exit(f"'{what}' ended as '{outcome}'")

    def ssh(self) -> list[str]:
        box = self.nodes.box
        options = ["-T", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={box.known_hosts}"]
        options += ["-o", "GlobalKnownHostsFile=none", "-o", "IdentitiesOnly=yes"]
        return ["ssh", *options, "-i", str(box.private_key), "-l", "cluster"]

    def floor(self, what: str = FLOOR, *options: str) -> None:
        """One 'ssh node true' to every node, 64 at a time, without any program of ours."""
        addresses = self.nodes.folder / "addresses"
        chosen = self.nodes.box.nodes[: self.count]
        addresses.write_text("".join(f"{node.address}\n" for node in chosen), encoding="ascii")
        words = ["xargs", "-a", str(addresses), "-P", str(AT_ONCE), "-I", "{}", *self.ssh(), *options, "{}", "true"]
        self.measured(what, words)

    def looks(self, rounds: int, label: str) -> None:
        for _ in range(rounds):
            self.floor()
            self.floor(f"{FLOOR}, keys exchanged by curve25519", "-o", "KexAlgorithms=curve25519-sha256")
            self.ours(f"doctor --quick{label}", "doctor", "--quick", "--format", "json", endings=(0, 10))
            self.ours(f"doctor{label}", "doctor", "--format", "json", endings=(0, 10))

    def settled(self, rounds: int) -> None:
        for _ in range(rounds):
            self.floor()
            self.provision("provision, nothing to do", wanted="nothing to do")
            self.ours("drift", "drift", "--format", "json")

    def changed(self, number: int) -> None:
        self.variables(environment_variables={"SCALE": number})
        self.provision("provision, one changed variable")

    def run(self, rounds: int, count: int) -> None:
        """Run hostname on the first nodes, beside the same mpirun by ssh."""
        chosen = ["-l", ",".join(node.name for node in self.nodes.box.nodes[:count]), "-np", str(count)]
        if count == self.count:
            chosen = ["-np", str(count)]
        program = [*CLUSTERCTL, "run", self.inventory(), "--map-by", "node", *chosen]
        at = "" if count == self.count else f" on {count} nodes"
        environment = {**os.environ, "XDG_STATE_HOME": str(self.state)}
        shown = subprocess.run(
            [*program, "--print", "--", "hostname"], check=True, capture_output=True, text=True, env=environment
        ).stdout.strip()
        # one that hangs ends here, and has no row
        bare = [*self.ssh(), self.nodes.box.nodes[0].address, f"timeout {HUNG_S} {shown}"]
        for _ in range(rounds):
            self.measured(f"ssh node1 mpirun hostname{at}", bare, endings=(0, HUNG))
            self.measured(f"run hostname{at}", [*program, "--", "hostname"])
            self.measured(f"run --no-gate hostname{at}", [*program, "--no-gate", "--", "hostname"])


def measure(options: argparse.Namespace) -> None:
    count, rounds = options.count, options.rounds
    name = f"figures-{os.getpid()}"
    parts = set(PARTS) - set(options.without)
    began = time.perf_counter()
    nodes = netns_nodes.up(name, count + 1)
    print(f"{count + 1} nodes after {time.perf_counter() - began:.1f} s", flush=True)
    try:
        figures = Figures(nodes, count, options.out)
        try:
            figures.variables()
            if options.mesh_alone:
                figures.provision("provision of the mesh alone", "--tags", "hosts,ssh_mesh")
                figures.looks(rounds, ", with the mesh alone")
                return
            if "looks" in parts:
                figures.looks(rounds, ", before the first provision")
            if "first" in parts:
                figures.provision("first provision")
                after_first(figures, parts, options)
        finally:
            kept = options.out.parent / f"state-{count}"
            shutil.rmtree(kept, ignore_errors=True)
            if figures.state.exists():
                shutil.copytree(figures.state, kept)
            figures.group.remove()
    finally:
        netns_nodes.down(name)


def after_first(figures: Figures, parts: Collection[str], options: argparse.Namespace) -> None:
    count, rounds = figures.count, options.rounds
    if "settled" in parts:
        figures.settled(rounds)
    if "changed" in parts:
        figures.changed(1)
    if "looks" in parts:
        figures.looks(rounds, "")
    if "run" in parts:
        for few in dict.fromkeys((min(4, count), count)):
            figures.run(rounds if few == count else 2 * rounds + 1, few)
    if "join" in parts:
        figures.provision("provision, one node added", count=count + 1)
    if "others" in parts:
        others = Others(figures.nodes, figures.state, count)
        for tool, command in others.commands(options.pyinfra).items():
            for what in ("first run", "nothing to do"):
                figures.measured(f"{tool}, {what}", command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    measuring = verbs.add_parser("measure")
    measuring.add_argument("count", type=int)
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("--pyinfra", default="")
    measuring.add_argument("--mesh-alone", action="store_true")
    measuring.add_argument("--without", action="append", default=[], choices=PARTS)
    table = verbs.add_parser("table")
    table.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options)
    else:
        rows = [json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines()]
        print(tables(rows))


if __name__ == "__main__":
    main()
