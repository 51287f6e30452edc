"""One file_set call against the same files laid out by builtin modules, on N sandbox nodes, in one run.

    python benchmarks/file_set.py [--nodes 16] [--repeat 3]

Ten paths: a directory, six files, a block in a file, a link and one path that must be absent. The first run lays them
out on nodes that have none of them; the second finds nothing to do. The two ways alternate, so that a busy moment hits
both; the connections are open before the clock starts. CPU seconds are the controller's (Ansible, its workers and ssh):
on a machine that does other things at the same time they are the figures to trust.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from clusterctl import sandbox
from clusterctl.inventory.ansible_inventory import ansible_program
from clusterctl.support import content

FOLDER = "/etc/clusterctl-bench"
FILES = {f"{FOLDER}/{number}.conf": f"# file {number}\n" + f"key{number} = value\n" * 20 for number in range(6)}
OWNED = {"owner": "root", "group": "root"}
BLOCK = "10.9.9.1 one\n10.9.9.2 two\n"
NAME = "bench-fileset"


def ours() -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = [{"path": FOLDER, "state": "directory", "mode": "0755", **OWNED}]
    files += [{"path": path, "content": text, "mode": "0644", **OWNED} for path, text in FILES.items()]
    files += [
        {"path": f"{FOLDER}.hosts", "state": "block", "marker": "bench", "content": BLOCK, "mode": "0644", **OWNED},
        {"path": f"{FOLDER}/current", "state": "link", "target": "0.conf"},
        {"path": f"{FOLDER}/old.conf", "state": "absent"},
    ]
    return [{"name": "Lay out everything", "clusterctl.hpc.file_set": {"files": files}}]


def builtin() -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = [
        {
            "name": "Make the folder",
            "ansible.builtin.file": {"path": FOLDER, "state": "directory", "mode": "0755", **OWNED},
        }
    ]
    tasks += [
        {"name": f"Write {path}", "ansible.builtin.copy": {"dest": path, "content": text, "mode": "0644", **OWNED}}
        for path, text in FILES.items()
    ]
    block = {"path": f"{FOLDER}.hosts", "block": BLOCK, "create": True, "mode": "0644", **OWNED}
    link = {"path": f"{FOLDER}/current", "src": "0.conf", "state": "link"}
    return [
        *tasks,
        {"name": "Write the block", "ansible.builtin.blockinfile": block},
        {"name": "Link the current one", "ansible.builtin.file": link},
        {"name": "Remove the old one", "ansible.builtin.file": {"path": f"{FOLDER}/old.conf", "state": "absent"}},
    ]


def reset() -> list[dict[str, Any]]:
    gone = [{"path": path, "state": "absent"} for path in (FOLDER, f"{FOLDER}.hosts")]
    return [{"name": "Start over", "clusterctl.hpc.file_set": {"files": gone}}]


def play(folder: Path, name: str, tasks: list[dict[str, Any]]) -> Path:
    path = folder / f"{name}.yml"
    body = [{"name": name.capitalize(), "hosts": "all", "gather_facts": False, "tasks": tasks}]
    path.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return path


def run(playbook: Path, inventory: Path, forks: int) -> tuple[float, float, bool]:
    """Return wall seconds, CPU seconds of the controller, and whether anything changed.

    Raises:
        SystemExit: the playbook failed; its last lines say why.
    """
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=120s",
        "ANSIBLE_NOCOLOR": "true",
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [ansible_program("ansible-playbook"), "-i", str(inventory), "-f", str(forks), str(playbook)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-1000:])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    recap = done.stdout.rpartition("PLAY RECAP")[2]
    return wall, cpu, any("changed=" in line and "changed=0" not in line for line in recap.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    ways = {"file_set": ours(), "builtin": builtin()}
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    try:
        inventory = sandbox.up(sandbox.SandboxSpec(name=NAME, nodes=given.nodes)).inventory
        with tempfile.TemporaryDirectory() as folder:
            over = play(Path(folder), "reset", reset())
            plays = {way: play(Path(folder), way, tasks) for way, tasks in ways.items()}
            for _ in range(given.repeat):
                for way, playbook in plays.items():
                    run(over, inventory, given.nodes)
                    for moment, expected in (("first", True), ("no-op", False)):
                        wall, cpu, changed = run(playbook, inventory, given.nodes)
                        if changed is not expected:
                            sys.exit(f"{way}, {moment} run: changed is {changed}, so the two are not compared alike.")
                        samples.setdefault((moment, way), []).append((wall, cpu))
    finally:
        sandbox.down(NAME)
    report(samples, given.nodes, given.repeat)


def report(samples: dict[tuple[str, str], list[tuple[float, float]]], nodes: int, repeat: int) -> None:
    print(f"{nodes} nodes, 10 paths, {repeat} rounds; load average now {os.getloadavg()[0]:.1f}")
    print(f"{'run':8}{'way':10}{'wall s':>8}{'spread':>16}{'CPU s':>8}{'spread':>16}")
    for (moment, way), figures in sorted(samples.items()):
        columns = ""
        for figure in zip(*figures, strict=True):
            spread = f"{min(figure):.1f} to {max(figure):.1f}"
            columns += f"{statistics.median(figure):8.1f}{spread:>16}"
        print(f"{moment:8}{way:10}{columns}")
    for moment in ("first", "no-op"):
        wall, cpu = (
            statistics.median(figure[index] for figure in samples[moment, "builtin"])
            / statistics.median(figure[index] for figure in samples[moment, "file_set"])
            for index in (0, 1)
        )
        print(f"{moment}: the builtin modules take {wall:.1f} times the wall time and {cpu:.1f} times the CPU time")


if __name__ == "__main__":
    main()
