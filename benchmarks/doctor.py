"""What doctor costs beside the least that can be asked of the same nodes: one `ssh node true` each, as many at once.

    python benchmarks/doctor.py [--nodes N] [--repeat N] [--inventory FILE]

Without --inventory, a sandbox of nodes that were never provisioned is started for it. `ssh node true`, doctor --quick
and doctor are run in turn, so that whatever else this machine does falls on all of them. In a sandbox, the processor
time of each node is printed as well: that of its sshd and of all that it has waited for, logins included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl import sandbox as sandboxes
from clusterctl.inventory import ansible_inventory
from clusterctl.remote import reach
from clusterctl.sandbox import container_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.model.hosts import Host

NAME = f"bench-doctor-{os.getpid()}"
AT_ONCE = 64
TARGET_S = 60.0
MOST = {"doctor --quick": 2.0, "doctor": 3.0}  # times `ssh node true`
MOST_CPU_S = 0.5
ENDINGS = {0, 10}  # clean, or with findings; anything else did not look at all nodes


def doctor(path: Path, *words: str) -> None:
    command = [sys.executable, "-m", "clusterctl", "doctor", str(path), "--format", "json", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in ENDINGS:
        sys.exit(f"doctor ended with {done.returncode}")


def least(hosts: tuple[Host, ...]) -> None:
    def one(host: Host) -> None:
        subprocess.run(reach.ssh_command(host, ["true"]), stdin=subprocess.DEVNULL, check=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, hosts))


def first_processes(box: sandboxes.Sandbox | None) -> list[str]:
    """Return the process on this machine that is sshd, the first process of each node."""
    if box is None:
        return []
    engine = container_engine.find()
    return [engine.text("inspect", "--format", "{{.State.Pid}}", node.container) for node in box.nodes]


def cpu_s(process: str) -> float:
    """Return the processor time of a process and of all that it or its children have waited for (proc_pid_stat(5))."""
    fields = Path("/proc", process, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measured(work: Callable[[], None], nodes: list[str]) -> tuple[float, float]:
    """Return the seconds of the clock, and the median over the nodes of their processor time."""
    before = [cpu_s(node) for node in nodes]
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    time.sleep(1)  # sshd waits for its last children
    used = [cpu_s(node) - earlier for node, earlier in zip(nodes, before, strict=True)]
    return seconds, statistics.median(used) if used else 0.0


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):6.2f} s, {min(values):6.2f} to {max(values):6.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--inventory", type=Path, help="nodes that are there already")
    options = parser.parse_args()
    path, box = options.inventory, None
    found: dict[str, list[tuple[float, float]]] = {}
    try:
        if path is None:
            sandboxes.down(NAME)
            box = sandboxes.up(sandboxes.SandboxSpec(name=NAME, nodes=options.nodes))
            path = box.inventory
        hosts = ansible_inventory.load(path).selected_hosts
        nodes = first_processes(box)
        works = {
            "ssh node true": lambda: least(hosts),
            "doctor --quick": lambda: doctor(path, "--quick"),
            "doctor": lambda: doctor(path),
        }
        for _ in range(options.repeat):
            for name, work in works.items():
                found.setdefault(name, []).append(measured(work, nodes))
    finally:
        if box is not None:
            sandboxes.down(NAME)
    load = os.getloadavg()[0]
    print(f"{len(hosts)} nodes, {options.repeat} runs each, load {load:.0f} on {os.cpu_count()} cores at the end")
    for name, each in found.items():
        print(f"  {name:<15} {spread([seconds for seconds, _ in each])}")
    for name, most in MOST.items():
        ratios = [one[0] / bare[0] for one, bare in zip(found[name], found["ssh node true"], strict=True)]
        words = f"median {statistics.median(ratios):.1f}, {min(ratios):.1f} to {max(ratios):.1f} times ssh node true"
        print(f"  {name:<15} {words}; at most {most:g}: {'yes' if statistics.median(ratios) <= most else 'NO'}")
        if nodes:
            used = [cpu for _, cpu in found[name]]
            kept = "yes" if statistics.median(used) < MOST_CPU_S else "NO"
            print(f"  {name:<15} {spread(used)} of a node's processor; below {MOST_CPU_S:g} s: {kept}")
    slowest = max(seconds for seconds, _ in found["doctor"])
    print(f"  doctor below {TARGET_S:.0f} s: {'yes' if slowest < TARGET_S else 'NO'}")


if __name__ == "__main__":
    main()
