"""``clusterctl run`` with torchrun and horovodrun, on four nodes with the training stack."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from validated import CLUSTERCTL, NODES, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("stack"), pytest.mark.usefixtures("torch_litter")]

RANKS = 2 * len(NODES)
PYTORCH = """\
import os, sys
import torch
torch.distributed.init_process_group("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
total = torch.tensor([float(rank)])
torch.distributed.all_reduce(total)
names = [None] * size
torch.distributed.all_gather_object(names, os.uname().nodename)
if rank == 0:
    print("sum", total.item(), "of", size, names, os.environ["SEED"], sys.argv[1:], flush=True)
torch.distributed.destroy_process_group()
sys.exit(0)
"""
HOROVOD = """\
import os, sys
import torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum)
names = hvd.allgather_object(os.uname().nodename)
if hvd.rank() == 0:
    print("sum", total.item(), "of", hvd.size(), names, os.environ["SEED"], sys.argv[1:], flush=True)
hvd.shutdown()
"""
ANSWER = f"sum 28.0 of {RANKS} {[node for node in NODES for _ in range(2)]} a b ['--lr', '0 1']"
# The ways to launch it differ in what they launch and how, which two nodes show as well as four.
PAIR = ("--limit", "node2,node3")
OF_PAIR = "sum 6.0 of 4 ['node2', 'node2', 'node3', 'node3'] a b ['--lr', '0 1']"


def run(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def code(stack_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run-stack")
    (folder / "ddp.py").write_text(PYTORCH)
    (folder / "hvd.py").write_text(HOROVOD)
    yield folder
    for node in NODES:
        stack_cluster.on(node, "rm", "-rf", "/home/cluster/clusterctl", "/home/cluster/.horovod")


def test_an_unchanged_script_runs_everywhere_by_torchrun(stack_cluster: Cluster, code: Path) -> None:
    words = ("--sync", str(code), "-x", "SEED=a b", "--launcher", "torchrun", "--", "ddp.py", "--lr", "0 1")
    done = run(stack_cluster, *words)
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout.splitlines()
    shown = run(stack_cluster, *PAIR, "--print", *words)
    pasted = stack_cluster.on("node2", "su", "-l", "cluster", "-c", shown.stdout)
    assert OF_PAIR in pasted.splitlines()


def test_horovodrun_runs_by_the_same_command(stack_cluster: Cluster, code: Path) -> None:
    words = ("--sync", str(code), "-x", "SEED=a b", "--launcher", "horovodrun", "--", "python", "hvd.py", "--lr", "0 1")
    done = run(stack_cluster, *PAIR, *words)
    assert done.returncode == 0, done.stderr
    assert OF_PAIR in done.stdout.splitlines()


@pytest.mark.long
def test_mpirun_does_as_well(stack_cluster: Cluster, code: Path) -> None:
    words = ("--sync", str(code), "-x", "SEED=a b", "--prefix", "rank", "--", "python", "hvd.py", "--lr", "0 1")
    done = run(stack_cluster, *PAIR, *words)
    assert done.returncode == 0, done.stderr
    assert f"[0] {OF_PAIR}" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("launcher", "program"), [("torchrun", ("ddp.py",)), ("horovodrun", ("python", "hvd.py"))], ids=str
)
def test_a_detached_job_of_a_launcher_needs_no_controller(
    stack_cluster: Cluster, code: Path, launcher: str, program: tuple[str, ...]
) -> None:
    pair, inventory = PAIR, str(stack_cluster.box.inventory)
    words = ("--sync", str(code), "-x", "SEED=a b", "--launcher", launcher, "--", *program, "--lr", "0 1")
    done = run(stack_cluster, "--detach", *pair, *words)
    try:
        assert done.returncode == 0, done.stderr
        name = done.stdout.strip()
        followed = subprocess.run(
            [*CLUSTERCTL, "jobs", "logs", "-f", *pair, inventory, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert followed.returncode == 0, followed.stderr
        assert followed.stdout.rstrip().endswith(OF_PAIR)  # horovodrun tags its lines
        stack_cluster.remove_torch_litter()
        assert stack_cluster.is_clean(("node2", "node3"))
    finally:
        for node in NODES:
            stack_cluster.on(node, "rm", "-rf", "/home/cluster/.local")
