"""The framework's environment on one node: the role python_env from the controller's cache, against pip and uv there.

    python benchmarks/framework_install.py [--repeat 5]

One sandbox node. The cache is warm, so the role's install task brings the pack over ssh, unpacks it, and checks every
file and library; the whole playbook, with its start, its look at the node and PyTorch's proof, is shown as well. pip
and uv get the same wheels, which lie on the node beforehand, and install them into a fresh virtual environment without
an index, with byte code as pip makes it by default. All are measured in turn, so that a busy moment hits each. On a
machine that is busy all the time the ratio says little, since what has two processes at work waits twice.
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
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pip
from clusterctl import sandbox as sandboxes
from clusterctl.inventory.ansible_inventory import load
from clusterctl.remote import reach
from clusterctl.state import paths
from clusterctl.support import content

if TYPE_CHECKING:
    from clusterctl.model.hosts import Host

TARGET = 3
LINK = "/usr/local/python_env"
TASK = "Install the software beside its other versions"
NAMES = (
    "install task, from the cache",
    "whole playbook around it",
    "pip, wheels on the node",
    "uv with byte code, wheels there",
)
PLACE = "/var/tmp/framework-install"  # noqa: S108 - on a node that nobody else uses
PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "roles": ["clusterctl.hpc.preflight", "clusterctl.hpc.python_env"],
    }
]


def on(host: Host, *argv: str, stdin: Any = subprocess.DEVNULL) -> str:
    """Run a command on the node as root; a failure ends the benchmark with its output on the screen."""
    command = reach.ssh_command(host, argv, as_user="root")
    return subprocess.run(command, check=True, stdin=stdin, stdout=subprocess.PIPE, text=True).stdout


def play(inventory: Path, book: Path) -> float:
    """Run the playbook and return the seconds of its install task."""
    timings = book.parent / "timings"
    environment = {
        **os.environ,
        "ANSIBLE_CALLBACKS_ENABLED": "ansible.builtin.junit",
        "JUNIT_OUTPUT_DIR": str(timings),
        "ANSIBLE_CONFIG": str(content.root() / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", str(inventory), str(book)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    seconds = 0.0
    for path in timings.glob("*.xml"):
        cases = ET.parse(path).iter("testcase")  # noqa: S314 - what ansible just wrote
        seconds = sum(float(case.attrib["time"]) for case in cases if TASK in case.attrib["name"])
        path.unlink()
    return seconds


def push(host: Host, folder: Path, names: list[str], dest: str) -> None:
    with subprocess.Popen(["tar", "-C", str(folder), "-cf", "-", *names], stdout=subprocess.PIPE) as source:
        on(host, "sh", "-c", f"mkdir -p {dest} && tar -C {dest} -xf -", stdin=source.stdout)


def prepare(host: Host, inventory: Path, book: Path) -> str:
    """Warm the cache, bring the wheels, pip and uv to the node; return a line about what is installed."""
    play(inventory, book)
    marker = json.loads(on(host, "cat", f"{LINK}/.clusterctl.json"))
    wheels = sorted(marker["inputs"]["wheels"])
    cache = paths.cache_dir().value / "wheels"
    push(host, cache, wheels, f"{PLACE}/wheels")
    push(host, Path(pip.__file__).parents[1], ["pip"], f"{PLACE}/pip")
    uv = next(iter(sorted(cache.glob("uv-*.whl"), reverse=True)))
    push(host, cache, [uv.name], PLACE)
    on(host, "python3", "-m", "zipfile", "-e", f"{PLACE}/{uv.name}", f"{PLACE}/uv")
    on(host, "sh", "-c", f"chmod 755 {PLACE}/uv/*.data/scripts/uv && mv {PLACE}/uv/*.data/scripts/uv {PLACE}/uv.bin")
    size = on(host, "sh", "-c", f"du -sm {PLACE}/wheels {LINK}/ | cut -f1").split()
    framework = marker["inputs"]["framework"]
    return (
        f"{framework['name']} {framework['version']} and {len(wheels) - 1} more packages:"
        f" {size[0]} MB of wheels, {size[1]} MB installed"
    )


def by_role(host: Host, inventory: Path, book: Path) -> tuple[float, float]:
    """Return the seconds of the install task and of the whole playbook."""
    on(host, "sh", "-c", f"rm -rf {LINK} {LINK}-*; sync")
    start = time.perf_counter()
    return play(inventory, book), time.perf_counter() - start


def by_hand(host: Host, *install: str) -> float:
    on(host, "sh", "-c", f"rm -rf {PLACE}/fresh; sync")
    start = time.perf_counter()
    on(host, "python3", "-m", "venv", "--without-pip", f"{PLACE}/fresh")
    wheels = on(host, "sh", "-c", f"ls {PLACE}/wheels/*.whl").split()
    on(host, *install, "--no-index", "--no-deps", *wheels)
    seconds = time.perf_counter() - start
    on(host, f"{PLACE}/fresh/bin/python", "-c", "import torch; assert torch.arange(9).sum() == 36")
    return seconds


def line(name: str, seconds: list[float]) -> str:
    return f"{name:34} median {statistics.median(seconds):6.2f} s, spread {min(seconds):.2f} to {max(seconds):.2f} s"


def measure(inventory: Path, repeat: int) -> None:
    (host,) = load(inventory).hosts
    pip_install = ["env", f"PYTHONPATH={PLACE}/pip", "python3", "-m", "pip", "-q", "--disable-pip-version-check"]
    pip_install += ["--no-cache-dir", "--python", f"{PLACE}/fresh/bin/python", "install"]
    uv_install = [
        "env",
        "UV_NO_CACHE=1",
        f"{PLACE}/uv.bin",
        "-q",
        "pip",
        "install",
        f"--python={PLACE}/fresh/bin/python",
    ]
    samples: tuple[list[float], ...] = ([], [], [], [])
    tasks, plays, pips, uvs = samples
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "play.json"
        book.write_text(json.dumps(PLAY), encoding="utf-8")
        print(prepare(host, inventory, book), flush=True)
        for _ in range(repeat):
            task, whole = by_role(host, inventory, book)
            tasks.append(task)
            plays.append(whole)
            pips.append(by_hand(host, *pip_install))
            uvs.append(by_hand(host, *uv_install, "--compile-bytecode"))
    for name, values in zip(NAMES, samples, strict=True):
        print(line(name, values))
    ratio, whole_ratio = (statistics.median(pips) / statistics.median(values) for values in (tasks, plays))
    print(f"pip takes {ratio:.1f} times the task's time (at least {TARGET}), {whole_ratio:.1f} times the playbook's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    name = f"framework-{os.getpid()}"
    try:
        measure(sandboxes.up(sandboxes.SandboxSpec(name=name, nodes=1)).inventory, options.repeat)
    finally:
        sandboxes.down(name)


if __name__ == "__main__":
    main()
