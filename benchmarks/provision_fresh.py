"""Four fresh nodes: 'clusterctl provision' against one compile by hand that is then copied, in one run.

    python benchmarks/provision_fresh.py [--each]

Both start from bare nodes and an empty artifact cache; the sources are fetched beforehand for both, since a download
says nothing about either. By hand means: install the compiler on one node, configure and make with the very options
that clusterctl used, pack, copy to the three others; then the same for a Python environment with numpy and mpi4py.
With --each Open MPI is compiled on all four nodes at once as well, as the peers' recipes do (a long wait on 2 cores).
Needs an idle machine: the sandboxes share its cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl import sandbox as sandboxes
from clusterctl.inventory.ansible_inventory import load
from clusterctl.remote import reach
from clusterctl.state import paths

if TYPE_CHECKING:
    from clusterctl.model.hosts import Host

NODES = 4
COMPILER = ["gcc", "libc6-dev", "make", "perl", "zlib1g-dev", "xz-utils", "python3-dev", "python3-venv"]
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))


def on(host: Host, *argv: str, stdin: Any = subprocess.DEVNULL, stdout: Any = subprocess.DEVNULL) -> None:
    """Run a command on a node as root; a failure ends the benchmark with its output on the screen."""
    subprocess.run(reach.ssh_command(host, argv, as_user="root"), check=True, stdin=stdin, stdout=stdout)


def timed(text: str, action: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    action(*arguments)
    seconds = time.perf_counter() - start
    print(f"  {text:58} {seconds:7.1f} s", flush=True)
    return seconds


def install_compiler(host: Host) -> None:
    on(host, "apt-get", "-q", "update")
    on(
        host,
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-qq",
        "-y",
        "--no-install-recommends",
        "install",
        *COMPILER,
    )


def compile_open_mpi(host: Host, tarball: Path, inputs: dict[str, Any], jobs: int) -> None:
    with tarball.open("rb") as stream:
        on(host, "sh", "-c", "mkdir -p /root/by-hand && cat >/root/by-hand/source.tar.xz", stdin=stream)
    on(host, "tar", "--strip-components=1", "-C", "/root/by-hand", "-xf", "/root/by-hand/source.tar.xz")
    inside = ("env", "-C", "/root/by-hand")
    on(host, *inside, *inputs["configure"])
    on(host, *inside, *inputs["make"], f"-j{jobs}")
    on(host, *inside, *inputs["make"], "install")


def compile_python(host: Host) -> None:
    on(host, "python3", "-m", "venv", "/usr/local/python_env")
    pip = ("env", "MPICC=/usr/local/openmpi/bin/mpicc", "/usr/local/python_env/bin/pip", "-q", "install")
    on(host, *pip, "numpy")
    on(host, *pip, "--no-binary", "mpi4py", "mpi4py==4.1.2")


def copy(source: Host, others: list[Host], folder: str) -> None:
    with tempfile.TemporaryFile() as pack:
        on(source, "tar", "-C", "/usr/local", "-czf", "-", folder, stdout=pack)
        for other in others:
            pack.seek(0)
            on(other, "tar", "-C", "/usr/local", "-xzf", "-", stdin=pack)


def stage_ends(environment: dict[str, str]) -> tuple[dict[str, float], int]:
    """Return per stage the seconds from the first event to its last, and how many hosts really built Open MPI."""
    runs = Path(environment["XDG_STATE_HOME"]) / "clusterctl" / "clusters"
    events = next(runs.glob("*/runs/*provision*/events.jsonl"))
    first, ends, builds = None, {}, 0
    for line in events.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        first = first or event["at"]
        if event.get("stage"):
            ends[event["stage"]] = event["at"] - first
        if event.get("outcome") == "changed" and "Compile Open MPI" in event.get("task", ""):
            builds += 1
    return ends, builds


def ours(scratch: Path) -> tuple[float, float, int, dict[str, Any], Path]:
    """Provision four fresh nodes; return whole seconds, seconds to the end of Open MPI, builds, inputs, tarball."""
    cache = scratch / "cache" / "clusterctl"
    cache.mkdir(parents=True)
    for name in ("sources", "wheels", "locks"):
        known = paths.cache_dir().value / name
        if known.is_dir():
            shutil.copytree(known, cache / name)
    environment = {**os.environ, "XDG_CACHE_HOME": str(scratch / "cache"), "XDG_STATE_HOME": str(scratch / "state")}
    cluster = sandboxes.up(sandboxes.SandboxSpec(name="bench-ours", nodes=NODES))
    command = [CLUSTERCTL, "provision", "--yes", "--no-validate", str(cluster.inventory)]
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment)
    whole = time.perf_counter() - start
    ends, builds = stage_ends(environment)
    (described,) = (path for path in (cache / "artifacts").glob("openmpi-*.json") if ".tar." not in path.name)
    sidecar = json.loads(described.read_text(encoding="utf-8"))
    tarball = max((cache / "sources").glob("openmpi-5*"), key=lambda path: path.stat().st_mtime)
    print(f"  {'clusterctl provision, all of it':58} {whole:7.1f} s")
    print(
        f"  {'  of which to the end of the role openmpi':58} {ends['openmpi']:7.1f} s; {builds} host(s) compiled",
        flush=True,
    )
    return whole, ends["openmpi"], builds, sidecar["inputs"], tarball


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", action="store_true", help="also compile on each of the four nodes at once")
    each = parser.parse_args().each
    jobs = os.cpu_count() or 1
    try:
        with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
            whole, open_mpi, _, inputs, tarball = ours(Path(scratch))
            sandboxes.down("bench-ours")
            cluster = sandboxes.up(sandboxes.SandboxSpec(name="bench-hand", nodes=NODES))
            hosts = list(load(cluster.inventory).hosts)
            builder, others = hosts[0], hosts[1:]
            by_hand = timed("by hand: compiler", install_compiler, builder)
            by_hand += timed("by hand: compile Open MPI once", compile_open_mpi, builder, tarball, inputs, jobs)
            by_hand += timed("by hand: copy it to the others", copy, builder, others, "openmpi")
            python = timed("by hand: Python environment, mpi4py compiled once", compile_python, builder)
            python += timed("by hand: copy it to the others", copy, builder, others, "python_env")
            print(f"ratio, to the end of Open MPI: {open_mpi / by_hand:.2f}")
            print(f"ratio, everything against everything by hand: {whole / (by_hand + python):.2f}")
            print(f"ratio, everything against Open MPI alone by hand: {whole / by_hand:.2f}")
            if each:
                sandboxes.down("bench-hand")
                cluster = sandboxes.up(sandboxes.SandboxSpec(name="bench-hand", nodes=NODES))
                hosts = list(load(cluster.inventory).hosts)
                start = time.perf_counter()
                with ThreadPoolExecutor(NODES) as pool:
                    list(pool.map(install_compiler, hosts))
                    list(pool.map(lambda host: compile_open_mpi(host, tarball, inputs, jobs), hosts))
                seconds = time.perf_counter() - start
                print(f"  {'compile on each of the four':58} {seconds:7.1f} s")
                print(f"ratio, to the end of Open MPI against a compile on each: {open_mpi / seconds:.2f}")
    finally:
        sandboxes.down("bench-ours")
        sandboxes.down("bench-hand")


if __name__ == "__main__":
    main()
