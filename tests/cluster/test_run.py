"""``clusterctl run`` on four real nodes: ranks, output, code, interrupts, and what is missing where."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from validated import CLUSTERCTL, NODES, Cluster

pytestmark = pytest.mark.cluster

RANKS = 2 * len(NODES)
MPIRUN = "/usr/local/openmpi/bin/mpirun"
PROGRAM = """\
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
if world.rank == 0:
    print("sum", total, "of", world.size, os.environ["SEED"], os.getcwd(), sys.argv[1:])
"""


def run(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), "--timeout", "60", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def code(mpi_cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A folder on this machine at a path that nodes do not have."""
    folder = tmp_path / "run code"
    (folder / "build").mkdir(parents=True)
    (folder / "sum.py").write_text(PROGRAM)
    (folder / ".gitignore").write_text("build/\n")
    (folder / "build" / "left-out").write_text("")
    yield folder
    for node in NODES:
        mpi_cluster.on(node, "rm", "-rf", "/home/cluster/clusterctl", "/home/cluster/elsewhere")


COPIED = "/home/cluster/clusterctl/run code"


def test_copied_code_computes_with_the_callers_words(mpi_cluster: Cluster, code: Path) -> None:
    done = run(mpi_cluster, "--sync", str(code), "-x", "SEED=a b;$(id)", "--", "python", "sum.py", "-x", "c d")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"sum 28 of {RANKS} a b;$(id) {COPIED} ['-x', 'c d']\n"
    assert f"2 files of {code} copied to {COPIED} on node[1-4]." in done.stderr
    assert mpi_cluster.on("node4", "ls", "-A", COPIED).split() == [".gitignore", "sum.py"]
    assert mpi_cluster.on("node4", "stat", "-c", "%U", COPIED).strip() == "cluster"


def test_code_goes_where_the_caller_says(mpi_cluster: Cluster, code: Path) -> None:
    place = ("--sync", str(code), "--remote-dir", "elsewhere/code", "--chdir", "/", "-np", "3", "-x", "SEED=1")
    done = run(mpi_cluster, *place, "--", "python", "/home/cluster/elsewhere/code/sum.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sum 3 of 3 1 / []\n"
    done = run(mpi_cluster, "--sync", str(code), "--remote-dir", "/run/no", "--", "python", "sum.py")
    assert done.returncode == 2
    assert "could not be copied to /run/no (node[1-4]: " in done.stderr
    assert "--remote-dir" in done.stderr


def test_what_is_printed_is_what_runs(mpi_cluster: Cluster, code: Path) -> None:
    words = ("--sync", str(code), "-x", "SEED=a b;$(id)", "-np", "3", "--", "python", "sum.py", "it's")
    ran, shown = run(mpi_cluster, *words), run(mpi_cluster, "--print", *words)
    assert (ran.returncode, shown.returncode) == (0, 0), ran.stderr + shown.stderr
    pasted = mpi_cluster.on("node1", "su", "-l", "cluster", "-c", shown.stdout)
    assert pasted.splitlines()[-1] + "\n" == ran.stdout == f'sum 3 of 3 a b;$(id) {COPIED} ["it\'s"]\n'


def test_output_is_prefixed_and_the_code_comes_through(mpi_cluster: Cluster) -> None:
    done = run(mpi_cluster, "--prefix", "host", "--", "sh", "-c", "echo out; echo err >&2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"[{node}] out" for node in NODES for _ in range(2))
    assert sorted(line for line in done.stderr.splitlines() if line.endswith("err")) == sorted(
        f"[{node}] err" for node in NODES for _ in range(2)
    )
    done = run(mpi_cluster, "--prefix", "rank", "-np", "3", "--", "hostname")
    assert sorted(done.stdout.splitlines()) == ["[0] node1", "[1] node1", "[2] node2"]
    done = run(mpi_cluster, "--", "sh", "-c", 'test "$OMPI_COMM_WORLD_RANK" != 5 || exit 42; sleep 60')
    assert done.returncode == 42
    assert mpi_cluster.is_clean()


@pytest.mark.long
@pytest.mark.parametrize(
    ("bare", "copied", "why"),
    [
        (("--mca", "btl_tcp_if_exclude"), ("--mca", "btl_tcp_if_exclude"), "btl_tcp_if_include"),
        (("--prtemca", "prte_if_exclude"), ("--mca", "oob_tcp_if_exclude"), "Only one of these can be given"),
        (("-x", "OMPI_MCA_btl_tcp_if_exclude"), ("-x", "OMPI_MCA_btl_tcp_if_exclude"), "btl_tcp_if_include"),
    ],
)
def test_a_copied_exclusion_of_interfaces_stops_mpirun_and_not_run(
    mpi_cluster: Cluster, bare: tuple[str, str], copied: tuple[str, str], why: str
) -> None:
    def with_list(words: tuple[str, str], value: str) -> tuple[str, ...]:
        return ("-x", f"{words[1]}={value}") if words[0] == "-x" else (*words, value)

    world = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"
    program = ("/usr/local/python_env/bin/python", "-c", world)
    given = with_list(bare, "lo,docker0")
    line = shlex.join([MPIRUN, "-H", "node1:1,node2:1", "-np", "2", *given, "--mca", "btl", "tcp,self", *program])
    command = ["su", "-l", "cluster", "-c", f"timeout 60 {line} 2>&1 || echo failed"]
    said = mpi_cluster.on("node1", *command)
    assert said.endswith("failed"), said
    assert why in said
    done = run(mpi_cluster, *with_list(copied, "lo,docker0"), "--limit", "node1,node2", "-np", "2", "--", *program)
    assert (done.returncode, done.stdout) == (0, "2\n2\n"), done.stderr
    assert f"Note: {' '.join(copied)} is left out" in done.stderr
    refused = run(mpi_cluster, *with_list(copied, "eth0"), "--", *program)
    assert refused.returncode == 1
    assert "leaves out eth0, the cluster's network of node1" in refused.stderr


def test_ranks_are_placed_and_kept_as_asked(mpi_cluster: Cluster) -> None:
    words = ("--prefix", "host", "--map-by", "node", "--bind-to", "core", "--", "sh", "-c")
    done = run(mpi_cluster, *words, "grep Cpus_allowed_list /proc/self/status; echo $OMPI_COMM_WORLD_RANK")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {f"[node{rank % 4 + 1}] {rank}" for rank in range(RANKS)} <= set(lines)
    kept = [line.split() for line in lines if "Cpus_allowed_list" in line]
    assert len(kept) == RANKS
    assert all(cores.isdigit() for *_, cores in kept), "one core each"


def test_ranks_share_the_cores_of_a_machine_and_say_why(mpi_cluster: Cluster) -> None:
    words = ("--affinity", "auto", "--prefix", "host", "--limit", "node1,node2", "-np", "2")
    tell = ("--", "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
    done = run(mpi_cluster, *words, "-e", "slots=1", *tell)
    assert done.returncode == 0, done.stderr
    cores = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) >= len(cores):
        assert len(set(cores.values())) == len(cores), "containers of one machine share no core"
        assert "cores of NUMA node" in done.stderr
    refused = run(mpi_cluster, "--affinity", "auto", "--bind-to", "core", *tell)
    assert refused.returncode == 1
    assert "leave out --bind-to and --map-by" in refused.stderr


def test_much_output_does_not_make_us_grow(mpi_cluster: Cluster) -> None:
    script = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    command = [*CLUSTERCTL, "run", str(mpi_cluster.box.inventory), "-np", "1", "--limit", "node1", "--"]

    def peak(program: list[str]) -> int:
        done = subprocess.run(
            [sys.executable, "-c", script, *command, *program], capture_output=True, text=True, check=True, timeout=120
        )
        code, kibibytes = done.stdout.split()
        assert code == "0", done.stderr
        return int(kibibytes)

    # mpirun passes about a megabyte a second on; kept as lines, these would be a hundred times as much in memory.
    assert peak(["sh", "-c", "yes | head -c 4M"]) < peak(["true"]) + 24 * 1024


@pytest.mark.repeat
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_an_interrupt_leaves_no_rank_anywhere(mpi_cluster: Cluster, number: int, code: int) -> None:
    stubborn = ["sh", "-c", 'trap "" TERM INT; echo up; sleep 600']
    command = [*CLUSTERCTL, "run", str(mpi_cluster.box.inventory), "--", *stubborn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(RANKS)] == ["up\n"] * RANKS
        process.send_signal(number)
        assert process.wait(60) == code
    assert mpi_cluster.is_clean(within_s=30)


def test_a_deadline_ends_it(mpi_cluster: Cluster) -> None:
    command = [*CLUSTERCTL, "run", str(mpi_cluster.box.inventory), "--timeout", "4", "--", "sleep", "600"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 124
    assert "The job had not ended after 4 s and was ended." in done.stderr
    assert mpi_cluster.is_clean()


def test_nodes_without_the_program_are_named_before_anything_starts(mpi_cluster: Cluster) -> None:
    program = "/usr/local/bin/only-here"
    mpi_cluster.on("node2", "cp", "/bin/true", program)
    try:
        done = run(mpi_cluster, "--", "only-here")
        assert (done.returncode, done.stdout) == (1, "")
        assert "only-here is missing on node[1,3-4] (looked in the PATH of the nodes' sessions)" in done.stderr
        assert run(mpi_cluster, "--limit", "node2", "--", "only-here").returncode == 0
    finally:
        mpi_cluster.on("node2", "rm", program)
    for words, sentence in (
        (("-np", "9", "--", "hostname"), "9 ranks do not fit into 8 slots"),
        (("--launcher", "torchrun", "--", "x.py"), "needs PyTorch, which is missing on node[1-4]"),
        (("--launcher", "horovodrun", "--", "x.py"), "needs Horovod, which is missing on node[1-4]"),
        (("--chdir", "/no/such", "--", "hostname"), "The folder /no/such is not on node[1-4]"),
    ):
        done = run(mpi_cluster, *words)
        assert (done.returncode, sentence in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr


def test_more_ranks_than_slots_on_purpose(mpi_cluster: Cluster) -> None:
    done = run(mpi_cluster, "-np", "9", "--oversubscribe", "--", "hostname")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9
