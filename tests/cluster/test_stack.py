"""The training stack on four real nodes: it stays, planted faults are named, and the fourth node joined three."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator

import pytest
from clusterctl.model.results import CheckResult, CheckStarted, ValidationEvent, Verdict
from clusterctl.validation.checks import registry
from prompt import Prompt
from validated import Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("stack")]

MARKER = ".clusterctl.json"

# Runs on a node: put a tree beside an installed artifact whose marker tells something else, and switch the link to it.
PLANT = f"""
import json, os, subprocess, sys
link, marker, inputs = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
tree = link + "-planted"
subprocess.run(["cp", "-al", os.path.realpath(link), tree], check=True)
with open(tree + "/{MARKER}") as stream:
    told = json.load(stream)
told["inputs"].update(inputs)
told.update(marker)
os.remove(tree + "/{MARKER}")  # it is the installed one's, too
with open(tree + "/{MARKER}", "w") as stream:
    json.dump(told, stream)
print(os.readlink(link))
os.symlink(tree, link + ".planted")
os.replace(link + ".planted", link)
"""


class Stack(Cluster):
    """The nodes, and the faults that can be planted in their stacks."""

    def look(self) -> CheckResult:
        """Return what is said of the nodes' state; no job is launched for it."""
        started: list[str] = []

        def hear(event: ValidationEvent) -> None:
            if isinstance(event, CheckStarted):
                started.append(event.check)

        record = self.validate("provisioned", on_event=hear)
        assert started == list(registry.GATE)
        return result(record, "provisioned")

    @contextlib.contextmanager
    def another(self, node: str, name: str, *, inputs: dict[str, str] | None = None, **marker: str) -> Iterator[None]:
        """Give a node another build of an artifact for a while."""
        link = f"/usr/local/{name}"
        before = self.on(node, "python3", "-c", PLANT, link, json.dumps(marker), json.dumps(inputs or {})).strip()
        try:
            yield
        finally:
            self.on(node, "ln", "-sfn", before, link)
            self.on(node, "rm", "-r", f"{link}-planted")

    @contextlib.contextmanager
    def bundled_nccl_first(self, node: str, version: str) -> Iterator[str]:
        """Put an NCCL such as a CUDA framework's wheels bring it first in a node's LD_LIBRARY_PATH."""
        site = self.on(node, "sh", "-c", "echo /usr/local/python_env/lib/python3*/site-packages").strip()
        folder = f"{site}/nvidia/nccl/lib"
        assert self.on(node, "sh", "-c", f"ls -d {site}/nvidia 2>/dev/null; true") == "", "a CPU build brings none"
        self.on(node, "mkdir", "-p", folder, f"{site}/nvidia_nccl_cu13-{version}.dist-info")
        self.on(node, "sh", "-c", f'ln "$(realpath /usr/local/nccl/lib/libnccl.so.2)" {folder}')
        start_up = "/home/cluster/.bashrc"
        self.on(node, "cp", "-p", start_up, f"{start_up}.before")
        self.on(node, "sed", "-i", f"1i export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH", start_up)
        try:
            yield f"{folder}/libnccl.so.2"
        finally:
            self.on(node, "mv", f"{start_up}.before", start_up)
            self.on(node, "rm", "-r", f"{site}/nvidia", f"{site}/nvidia_nccl_cu13-{version}.dist-info")


def is_named(found: CheckResult, node: str) -> bool:
    assert (found.verdict, found.hosts) == (Verdict.FAIL, (node,)), found.reason
    assert all(line.startswith(f"{node}: ") for line in found.evidence)
    return True


@pytest.fixture
def cluster(stack_cluster: Cluster) -> Stack:
    return Stack(stack_cluster.box)


def test_a_second_provision_finds_nothing_to_do(cluster: Stack) -> None:
    record, _ = cluster.provision()
    assert record["outcome"] == "nothing to do"


def test_an_nccl_of_another_version_is_named(cluster: Stack) -> None:
    with cluster.another("node3", "nccl", version="2.29.7", key="planted"):
        found = cluster.look()
    assert is_named(found, "node3")
    assert "NCCL 2.29.7 is installed, and most nodes have 2." in found.reason


def test_a_bundled_nccl_first_in_the_path_is_named(cluster: Stack) -> None:
    with cluster.bundled_nccl_first("node2", "2.30.7") as path:
        found = cluster.look()
    assert is_named(found, "node2")
    assert f"a session loads {path} (the framework's own NCCL 2.30.7)" in found.reason
    assert "because LD_LIBRARY_PATH names" in found.reason


def test_a_horovod_for_another_mpi_is_named_by_the_command_too(cluster: Stack) -> None:
    with cluster.another("node4", "horovod", inputs={"openmpi": "0123456789abcdef"}):
        found = cluster.look()
        done, _ = cluster.run("validate", "--checks", "provisioned")
    assert is_named(found, "node4")
    cause = "was built against another Open MPI (key 0123456789abcdef)"
    assert cause in found.reason
    assert done.returncode == 10
    shown = " ".join((done.stdout + done.stderr).split())
    assert "node4" in shown
    assert cause in shown


def test_nothing_of_the_faults_is_left(cluster: Stack) -> None:
    assert cluster.look().verdict is Verdict.PASS
    record, _ = cluster.provision()
    assert record["outcome"] == "nothing to do"


def test_the_fourth_node_has_joined_the_others(stack_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The time is told, not judged: the first three took from the same caches (see benchmarks/fifth_node.py)."""
    record, seconds = stack_cluster.last
    assert record["outcome"] == "done"
    assert {host["host"]: host["outcome"] for host in record["hosts"]}["node4"] == "changed"
    with capsys.disabled():
        print(f"\n  three nodes {stack_cluster.first_s:.1f} s, a fourth joins in {seconds:.1f} s")  # noqa: T201 - a figure
    assert Stack(stack_cluster.box).look().verdict is Verdict.PASS


TRAINED = """
import sys
import torch
if sys.argv[1] == "horovod":
    import horovod.torch as hvd
    hvd.init()
    rank, total = hvd.rank(), hvd.allreduce(torch.ones(2), op=hvd.Sum)
else:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, total = dist.get_rank(), torch.ones(2)
    dist.all_reduce(total)
    dist.destroy_process_group()
print(f"trained {rank} {total.tolist()}\\n", end="", flush=True)
"""


@pytest.mark.usefixtures("torch_litter")
def test_a_person_at_the_prompt_trains_by_horovodrun_and_by_torchrun(stack_cluster: Cluster) -> None:
    folder, prompt = "/tmp/prompt", Prompt(stack_cluster, "cluster")  # noqa: S108 - a folder of the nodes
    torchrun = (
        'mpirun -np 2 -H node1:1,node2:1 --bind-to none sh -c \'exec "$0" -m torch.distributed.run '
        '--node-rank="$OMPI_COMM_WORLD_RANK" "$@"\' python --nnodes=2 --nproc-per-node=1 --master-addr=node1 '
        f"--master-port=29511 {folder}/t.py torchrun"
    )
    try:
        for node in ("node1", "node2"):
            stack_cluster.on(node, "sh", "-c", f"mkdir {folder} && printf %s {shlex.quote(TRAINED)} > {folder}/t.py")
        imported, which, horovod, torch = prompt.typed(
            "python -c 'import mpi4py, torch, horovod.torch; print(torch.ones(2).sum().item())'",
            "which torchrun horovodrun",
            f"horovodrun -np 2 -H node1:1,node2:1 python {folder}/t.py horovod",
            torchrun,
        )
    finally:
        for node in ("node1", "node2"):
            stack_cluster.on(node, "rm", "-rf", folder, "/home/cluster/.horovod")  # the cache of horovodrun
    assert imported == ["2.0"]
    assert which == ["/usr/local/python_env/bin/torchrun", "/usr/local/horovod/bin/horovodrun"]
    for lines in (horovod, torch):
        found = sorted(line.partition("trained ")[2] for line in lines if "trained " in line)
        assert found == ["0 [2.0, 2.0]", "1 [2.0, 2.0]"], lines
