"""What 'clusterctl run … -- hostname' costs more than 'ssh LAUNCH-NODE mpirun … hostname'.

python benchmarks/run_overhead.py [--nodes 4] [--repeat 11] [--inventory FILE]

Without --inventory a sandbox of its own is started, provisioned with MPI alone and taken down at the end. Both run the
same mpirun line, the one that 'clusterctl run --print' shows, and are measured in turn, so that a busy moment hits
both. Beside seconds stand those that this machine's processors worked for it, which other work does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from clusterctl import sandbox
from clusterctl.inventory import ansible_inventory
from clusterctl.remote import reach

LIMIT_S = 1.5
HUNG_S = 20  # mpirun 5.0.7 now and then does not end after the last rank has; such a pair is left out, and told
PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
WITHOUT_STACK = {"python_env_framework": "none", "nccl_install": "never", "horovod_install": "never"}


def timed(command: list[str], lines: int) -> tuple[float, float] | None:
    """Run it, see that every rank has answered, and return wall and processor seconds; None where it did not end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode == 124:  # noqa: PLR2004 - timeout's own code, and ours
        return None
    if len(done.stdout.splitlines()) != lines:
        sys.exit(f"{lines} ranks were to answer, and {len(done.stdout.splitlines())} did")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(path: Path, repeat: int) -> None:
    hosts = ansible_inventory.load(path).hosts
    ours = [PROGRAM, "run", str(path)]
    shown = subprocess.run([*ours, "--print", "--", "hostname"], check=True, capture_output=True, text=True).stdout
    bare = [*reach.arguments(hosts[0]), f"timeout {HUNG_S} {shown.strip()}"]
    ranks = sum(host.slots or 1 for host in hosts)
    samples: dict[str, list[tuple[float, float]]] = {"ssh mpirun hostname": [], "clusterctl run": []}
    hung = [0, 0]
    while len(samples["clusterctl run"]) < repeat and sum(hung) < repeat:
        pair = timed(bare, ranks), timed([*ours, "--timeout", str(HUNG_S), "--", "hostname"], ranks)
        hung = [count + (one is None) for count, one in zip(hung, pair, strict=True)]
        if pair[0] and pair[1]:
            samples["ssh mpirun hostname"].append(pair[0])
            samples["clusterctl run"].append(pair[1])
    for name, both in samples.items():
        wall, work = zip(*both, strict=True)
        print(
            f"{name:20} median {statistics.median(wall):5.2f} s, spread {min(wall):.2f} to {max(wall):.2f} s; "
            f"processor here {statistics.median(work):.2f} s"
        )
    print(f"mpirun did not end: {hung[0]} times alone, {hung[1]} times under clusterctl")
    differences = [run[0] - plain[0] for plain, run in zip(*samples.values(), strict=True)]
    print(
        f"more, pair by pair: median {statistics.median(differences):.2f} s, spread {min(differences):.2f} to "
        f"{max(differences):.2f} s; promised are {LIMIT_S} s at most; load of the machine {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--inventory", type=Path, help="measure on provisioned nodes instead of a sandbox")
    arguments = parser.parse_args()
    if arguments.inventory is not None:
        measure(arguments.inventory, arguments.repeat)
        return
    name = f"bench-run-{os.getpid()}"
    try:
        box = sandbox.up(sandbox.SandboxSpec(name=name, nodes=arguments.nodes))
        variables = box.inventory.parent / "group_vars" / "all.yml"
        variables.parent.mkdir(exist_ok=True)
        variables.write_text(json.dumps(WITHOUT_STACK), encoding="utf-8")
        subprocess.run([PROGRAM, "provision", "--yes", "--no-validate", str(box.inventory)], check=True)
        measure(box.inventory, arguments.repeat)
    finally:
        sandbox.down(name)


if __name__ == "__main__":
    main()
