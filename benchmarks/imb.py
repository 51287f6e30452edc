"""Latency and bandwidth of the provisioned Open MPI beside the distribution's package, in turn on the same two nodes.

    python benchmarks/imb.py [--runs 9] [--imb FOLDER] [--idle N] [--name NAME]

Starts a sandbox of two nodes, provisions it with MPI alone, and installs Debian's openmpi-bin beside it. The program
is compiled once with each mpicc. With --imb it is IMB-MPI1, whose source lies in FOLDER. Without it,
benchmarks/pingpong_windows.c measures the same two figures. Both ranks run on one node (shared memory), then on two
nodes (TCP), each rank on a core of its own. "with poll" is the provisioned one with a setting. --idle gives each of the
two ranks so many connections to sleeping ranks of the other node.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl import sandbox
from clusterctl.sandbox import container_engine
from clusterctl.validation.checks import parsers

if TYPE_CHECKING:
    from clusterctl.sandbox import Sandbox

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
WITHOUT_STACK = {"python_env_framework": "none", "nccl_install": "never", "horovod_install": "never"}
PINGPONG = Path(__file__).with_name("pingpong_windows.c")
SMALL = (0, 8, 64, 1024)
LARGE = 4 << 20
WINDOWS, LARGE_WINDOWS = 400, 40
LIMIT_S = 120
FOLDER = "/opt/imb"
PACKAGES = ("openmpi-bin", "libopenmpi-dev", "g++", "libc6-dev", "make")
_INSTALL = "apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "
# Two containers of one machine would both take its first core.
_ON_A_CORE = 'exec taskset -c "$((OMPI_COMM_WORLD_RANK % $(nproc --all)))" "$0" "$@"'
_WINDOW = re.compile(r"^ *(\d+) bytes: .*5th percentile ([\d.]+) us", re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """An Open MPI on the nodes: where its programs are, and the words of its launch line."""

    name: str
    mpicc: str
    mpicxx: str
    mpirun: tuple[str, ...]
    binary: str


_OURS = "/usr/local/openmpi/bin"
_DEBIANS = ("env", "LD_LIBRARY_PATH=/usr/lib", "mpirun.openmpi", "--prefix", "/usr", "-x", "LD_LIBRARY_PATH")
BUILDS = (
    Build("provisioned", f"{_OURS}/mpicc", f"{_OURS}/mpicxx", (f"{_OURS}/mpirun",), "ours"),
    Build(
        "with poll",
        f"{_OURS}/mpicc",
        f"{_OURS}/mpicxx",
        (f"{_OURS}/mpirun", "--mca", "opal_event_include", "poll"),
        "ours",
    ),
    Build("Debian's", "/usr/bin/mpicc.openmpi", "/usr/bin/mpicxx.openmpi", _DEBIANS, "debian"),
)


def imb_rows(text: str) -> dict[int, float]:
    """Return the time in µs of each size in the output of ``IMB-MPI1 PingPong``."""
    return {
        one.size_bytes: one.value
        for one in parsers.parse_imb(text)
        if one.quantity == "latency" and one.size_bytes is not None
    }


def window_rows(text: str) -> dict[int, float]:
    """Return the 5th percentile in µs of each size in the output of ``pingpong_windows``."""
    return {int(size): float(us) for size, us in _WINDOW.findall(text)}


class Lab:
    """Two provisioned nodes that have both builds and a program compiled with each."""

    def __init__(self, box: Sandbox, source: Path | None, idle: int) -> None:
        self.box, self.engine, self.imb, self.idle = box, container_engine.find(), source, idle

    def prepare(self) -> None:
        """Provision, install the package and compile."""
        variables = self.box.inventory.parent / "group_vars" / "all.yml"
        variables.parent.mkdir(exist_ok=True)
        variables.write_text(json.dumps(WITHOUT_STACK), encoding="utf-8")
        subprocess.run(
            [PROGRAM, "provision", "--yes", "--no-validate", str(self.box.inventory)], check=True, stdout=sys.stderr
        )
        first, *others = [node.container for node in self.box.nodes]
        for container in (first, *others):
            self.engine.run("exec", container, "sh", "-ec", _INSTALL + shlex.join(PACKAGES))
            self.engine.run("exec", container, "mkdir", "-p", FOLDER)
        with tempfile.TemporaryDirectory() as folder:
            for build in {build.binary: build for build in BUILDS}.values():
                path = f"{FOLDER}/{build.binary}"
                self._compile(first, build, path)
                self.engine.run("cp", f"{first}:{path}", f"{folder}/{build.binary}")
                for container in others:
                    self.engine.run("cp", f"{folder}/{build.binary}", f"{container}:{path}")

    def _compile(self, container: str, build: Build, path: str) -> None:
        if self.imb is None:
            self.engine.run("cp", str(PINGPONG), f"{container}:{FOLDER}/pingpong.c")
            self.engine.run("exec", container, build.mpicc, "-O2", "-o", path, f"{FOLDER}/pingpong.c")
            return
        source = f"{FOLDER}/source-{build.binary}"
        self.engine.run("cp", f"{self.imb}/.", f"{container}:{source}")
        make = ["make", "-C", source, "IMB-MPI1", f"CC={build.mpicc}", f"CXX={build.mpicxx}"]
        self.engine.run("exec", container, *make)
        self.engine.run("exec", container, "cp", f"{source}/IMB-MPI1", path)

    def version(self, build: Build) -> str:
        """Return the version of a build's mpirun."""
        return self.login([*build.mpirun, "--version"]).partition("\n")[0].split()[-1]

    def login(self, argv: list[str]) -> str:
        command = sandbox.ssh_command(self.box, self.box.nodes[0], argv)
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S
        )
        if done.returncode:
            sys.exit(f"{shlex.join(argv)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def times(self, build: Build, nodes: int) -> dict[int, float]:
        """Launch the program once for each kind of size, and return µs one way by size."""
        slots = (1 + self.idle) if nodes > 1 else 2
        hosts = ",".join(f"{node.name}:{slots}" for node in self.box.nodes[:nodes])
        launch = [*build.mpirun, "--host", hosts, "-np", str(slots * nodes), "--bind-to", "none", "--map-by", "node"]
        launch += ["sh", "-c", _ON_A_CORE, f"{FOLDER}/{build.binary}"]
        if self.imb is not None:
            found = imb_rows(self.login([*launch, "PingPong", "-msglog", str(LARGE.bit_length() - 1)]))
        else:
            small = self.login([*launch, str(WINDOWS), *map(str, SMALL)])
            self._right(small, build)
            found = {**window_rows(small), **window_rows(self.login([*launch, str(LARGE_WINDOWS), str(LARGE)]))}
        if missing := [size for size in (*SMALL, LARGE) if size not in found]:
            sys.exit(f"{build.name}: the output has no row of {missing[0]} bytes")
        return {size: found[size] for size in (*SMALL, LARGE)}

    def _right(self, text: str, build: Build) -> None:
        said = set(re.findall(r"^rank \d+: Open MPI v(\S+)$", text, re.MULTILINE))
        if said != {self.version(build)}:
            sys.exit(f"{build.name}: the ranks loaded Open MPI {', '.join(sorted(said)) or 'of no version'}")


def told(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def beside(found: list[float], base: list[float]) -> str:
    """Return the ratio of the medians, and the median of the ratios within a turn, which share a moment."""
    pairs = statistics.median(one / other for one, other in zip(found, base, strict=True))
    return f"{statistics.median(found) / statistics.median(base):.2f}; {pairs:.2f}"


def measure(lab: Lab, nodes: int, runs: int) -> None:
    """Print the table of one place."""
    samples: dict[str, dict[int, list[float]]] = {build.name: defaultdict(list) for build in BUILDS}
    loads = [os.getloadavg()[0]]
    for run in range(runs):
        turn = run % len(BUILDS)
        for build in (*BUILDS[turn:], *BUILDS[:turn]):  # each is the first one as often as the others
            for size, us in lab.times(build, nodes).items():
                samples[build.name][size].append(us)
        loads.append(os.getloadavg()[0])
    *ours, debians = BUILDS
    place = "one node, shared memory" if nodes == 1 else f"two nodes, TCP, {lab.idle} idle connections"
    versions = [f"{build.name}, {lab.version(build)}" for build in BUILDS]
    print(f"\n{place}: median of {runs} launches (range); load {min(loads):.1f} to {max(loads):.1f}")
    print("ratios to Debian's: of the medians; median of those within a turn\n")
    print(f"| | {' | '.join(versions)} | {' | '.join(f'{build.name}: ratio' for build in ours)} |")
    print("|---|" + "---|" * (len(BUILDS) + len(ours)))
    for size in (*SMALL, LARGE):
        values = {name: samples[name][size] for name in samples}
        digits, words = 2, f"{size} B, µs"
        if size == LARGE:
            digits, words = 0, f"{size >> 20} MiB, MB/s"
            values = {name: [size / us for us in times] for name, times in values.items()}
        cells = [told(found, digits) for found in values.values()]
        cells += [beside(values[build.name], values[debians.name]) for build in ours]
        print(f"| {words} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--imb", type=Path, metavar="FOLDER", help="the source of Intel MPI Benchmarks")
    parser.add_argument("--idle", type=int, default=0, help="connections of each rank to sleeping ranks; TCP alone")
    parser.add_argument("--name", default=f"bench-imb-{os.getpid()}", help="of the sandbox")
    options = parser.parse_args()
    if options.imb is not None and not (options.imb / "src_cpp" / "MPI1").is_dir():
        parser.error(f"{options.imb} has no folder src_cpp/MPI1; give --imb the folder of IMB's source.")
    if options.imb is not None and options.idle:
        parser.error("IMB-MPI1 has no sleeping ranks; leave out --idle or --imb.")
    if options.runs < 1 or options.idle < 0:
        parser.error("--runs is at least 1, and --idle at least 0.")
    try:
        box = sandbox.up(sandbox.SandboxSpec(name=options.name, nodes=2))
        lab = Lab(box, options.imb, options.idle)
        lab.prepare()
        print(f"{'IMB-MPI1 PingPong' if options.imb else PINGPONG.name}, {os.cpu_count()} cores")
        for nodes in (2,) if options.idle else (1, 2):
            measure(lab, nodes, options.runs)
    finally:
        sandbox.down(options.name)


if __name__ == "__main__":
    main()
