"""What 'clusterctl run … -- hostname' costs more than 'ssh LAUNCH-NODE mpirun … hostname'.

python benchmarks/run_overhead.py [--nodes 4] [--repeat 11] [--inventory FILE] [--project]

With --project, the time until a program of a project starts: after a change of its lock of 30 pure wheels, which the
cache has, then with the same lock, and without a project. The nodes are containers here, whose clock is this machine's.

Without --inventory a sandbox of its own is started, provisioned with MPI alone and taken down at the end. Both run the
same mpirun line, the one that 'clusterctl run --print' shows, and are measured in turn, so that a busy moment hits
both. Beside seconds stand those that this machine's processors worked for it, which other work does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterctl import sandbox
from clusterctl.inventory import ansible_inventory
from clusterctl.remote import reach

LIMIT_S = 0.8
CHANGED_S, UNCHANGED_S = 15.0, 0.5
# Pure wheels of the lock for development that need no other package; one of them is left out of a project's lock.
PURE = """
annotated-types attrs babel bracex certifi click colorama distlib distro docutils execnet filelock h11 idna iniconfig
itsdangerous jmespath jsonpointer markdown markdown-it-py mdurl mergedeep packaging pathspec platformdirs pluggy
pygments six sortedcontainers typing-extensions urllib3
"""
LEFT_OUT = 10  # of these, from the first one on: none of the others needs one of them
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
        f"{max(differences):.2f} s; the aim is {LIMIT_S} s at most; load of the machine {os.getloadavg()[0]:.1f}"
    )


def until_started(command: list[str]) -> tuple[float, float]:
    """Return the seconds until the program prints, and the processor time that the command took here."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said, errors = process.communicate()
    if process.returncode:
        sys.exit(errors)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(said) - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_project(path: Path, repeat: int) -> None:
    lock = (Path(__file__).parents[1] / "tools" / "locks" / "dev.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^(([a-z0-9-]+)==\S+ (?:\\\n    --hash=\S+ ?)+)", lock, re.MULTILINE))
    of, names = {name: text for text, name in pins.items()}, PURE.split()
    samples: dict[str, list[tuple[float, float]]] = {"changed lock": [], "same lock": [], "no project": []}
    said = "import time; print(time.clock_gettime(time.CLOCK_MONOTONIC))"  # the clock of perf_counter
    with tempfile.TemporaryDirectory() as folder:
        project = ["--project", folder]
        for without in (None, *names[: min(repeat, LEFT_OUT)]):
            text = "\n".join(of[name].rstrip() for name in names if name != without)
            Path(folder, "requirements.txt").write_text(text + "\n", encoding="utf-8")
            for name in samples if without else ("changed lock",):
                words = [] if name == "no project" else project
                python = "python" if words else "/usr/bin/python3"
                took = until_started([PROGRAM, "run", str(path), *words, "-np", "1", "--", python, "-c", said])
                samples[name] += [took] if without else []
    for name, both in samples.items():
        wall, work = zip(*both, strict=True)
        print(
            f"{name:12} median {statistics.median(wall):6.2f} s, spread {min(wall):.2f} to {max(wall):.2f} s; "
            f"processor here {statistics.median(work):.2f} s"
        )
    more = [same[0] - none[0] for same, none in zip(samples["same lock"], samples["no project"], strict=True)]
    print(
        f"same lock, more than without a project: median {statistics.median(more):.2f} s; the aims are {UNCHANGED_S} s,"
        f" and {CHANGED_S:g} s for a changed lock; load of the machine {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--inventory", type=Path, help="measure on provisioned nodes instead of a sandbox")
    parser.add_argument("--project", action="store_true", help="measure the start of a program of a project")
    arguments = parser.parse_args()
    what = measure_project if arguments.project else measure
    if arguments.inventory is not None:
        what(arguments.inventory, arguments.repeat)
        return
    name = f"bench-run-{os.getpid()}"
    try:
        box = sandbox.up(sandbox.SandboxSpec(name=name, nodes=arguments.nodes))
        variables = box.inventory.parent / "group_vars" / "all.yml"
        variables.parent.mkdir(exist_ok=True)
        variables.write_text(json.dumps(WITHOUT_STACK), encoding="utf-8")
        subprocess.run([PROGRAM, "provision", "--yes", "--no-validate", str(box.inventory)], check=True)
        what(box.inventory, arguments.repeat)
    finally:
        sandbox.down(name)


if __name__ == "__main__":
    main()
