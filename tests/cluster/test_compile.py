"""What users compile and start: C, C++ and mpi4py across two nodes, on inventories of names, addresses and aliases."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

PROGRAMS = Path(__file__).with_name("programs")
COPIED = f"/home/cluster/clusterctl/{PROGRAMS.name}"
RANKS, STEPS = 4, 64 * 4
PACKAGES = "g++ libc6-dev"  # g++ brings gcc
PAIR = ("node1", "node2")


def clusterctl(verb: str, inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*CLUSTERCTL, verb, str(inventory), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


@pytest.fixture(scope="module")
def compiled(fresh_cluster: Cluster) -> Cluster:
    """Two nodes with the compiled programs; the first has the compilers."""
    install = f"apt-get -q update && apt-get -q install -y --no-install-recommends {PACKAGES}"
    fresh_cluster.on("node1", "sh", "-c", install)
    build = "mpicc -O2 -o ring ring.c && mpicxx -O2 -o heat heat.cpp && mpic++ -O2 -o pingpong pingpong.cpp"
    words = ("--sync", str(PROGRAMS), "--limit", "node[1-2]", "--launch-node", "node1", "-np", "1")
    done = clusterctl("run", fresh_cluster.box.inventory, *words, "--", "sh", "-c", build)
    assert done.returncode == 0, done.stderr
    copy = f"cd {COPIED} && scp -q ring heat pingpong node2:{COPIED}/"
    fresh_cluster.on("node1", "su", "-l", "cluster", "-c", copy)
    return fresh_cluster


def inventory_of(cluster: Cluster, folder: Path, names: dict[str, str]) -> Path:
    """Write an inventory with other names of the same nodes: a name and what stands behind it on its line."""
    text = cluster.box.inventory.read_text(encoding="utf-8")
    hosts = "".join(f"{name} {rest} slots=2\n" for name, rest in names.items())
    inventory = folder / "inventory.ini"
    inventory.write_text(f"[nodes]\n{hosts}\n{text[text.index('[nodes:vars]') :]}", encoding="utf-8")
    return inventory


def addresses(cluster: Cluster, folder: Path) -> Path:
    return inventory_of(cluster, folder, {cluster.box.node(name).address: "" for name in PAIR})


def aliases(cluster: Cluster, folder: Path) -> Path:
    pair = zip(("alpha", "beta"), PAIR, strict=True)
    return inventory_of(
        cluster, folder, {name: f"ansible_host={cluster.box.node(node).address}" for name, node in pair}
    )


def test_c_on_an_inventory_of_bare_addresses(compiled: Cluster, tmp_path: Path) -> None:
    inventory = addresses(compiled, tmp_path)
    done = clusterctl("run", inventory, "--chdir", COPIED, "--", "./ring")
    assert (done.returncode, done.stdout) == (0, "ring 6 of 4\n"), done.stderr
    first, second = (compiled.box.node(name).address for name in PAIR)
    done = clusterctl("run", inventory, "-np", "2", "--prefix", "host", "--launch-node", second, "--", "hostname")
    assert (done.returncode, done.stdout) == (0, f"[{second}] node2\n" * 2), done.stderr
    checked = clusterctl("validate", inventory, "--checks", "hello", "--no-history")
    assert checked.returncode == 0, checked.stderr
    assert first in clusterctl("run", inventory, "-np", "3", "--prefix", "host", "--", "hostname").stdout


def test_cpp_on_an_inventory_of_aliases(compiled: Cluster, tmp_path: Path) -> None:
    inventory = aliases(compiled, tmp_path)
    done = clusterctl("run", inventory, "--chdir", COPIED, "--", "./heat")
    assert (done.returncode, done.stdout) == (0, f"heat {STEPS} right\n"), done.stderr
    shown = clusterctl("run", inventory, "--print", "--launch-node", "beta", "--", "./heat").stdout
    assert f" -H node2:2,{compiled.box.node('node1').address}:2 " in shown
    checked = clusterctl("validate", inventory, "--checks", "hello", "--no-history")
    assert checked.returncode == 0, checked.stderr


def test_a_benchmark_in_cpp_and_mpi4py(compiled: Cluster) -> None:
    words = ("--limit", "node[1-2]", "--chdir", COPIED)
    done = clusterctl(
        "run", compiled.box.inventory, *words, "--mca", "mpi_yield_when_idle", "1", "--", "./pingpong", "20"
    )
    assert done.returncode == 0, done.stderr
    lines = [
        re.fullmatch(r" *(\d+) bytes +([\d.]+) us one way +([\d.]+) MB/s 0 wrong", line)
        for line in done.stdout.splitlines()
    ]
    assert [int(line[1]) for line in lines if line] == [1, 16, 256, 4096, 65536], done.stdout
    done = clusterctl("run", compiled.box.inventory, *words, "--", "python", "pi.py")
    assert (done.returncode, done.stdout) == (0, f"pi 3.14159265 of {RANKS}\n"), done.stderr


def test_a_node_without_the_compiler_has_wrappers_that_say_so(compiled: Cluster) -> None:
    for wrapper, compiler in (("mpicc", "gcc"), ("mpicxx", "g++"), ("mpic++", "g++"), ("mpiCC", "g++")):
        said = compiled.on("node2", "sh", "-c", f"/usr/local/openmpi/bin/{wrapper} -c {COPIED}/ring.c 2>&1 || true")
        assert f"unable to find the specified compiler\n{compiler} in your PATH" in said.replace("  ", " "), said
