"""``clusterctl launch`` in containers that get what a scheduler sets and nothing else, started as ``render`` says."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import locked
import pytest
import yaml
from validated import CLUSTERCTL, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("stack"), pytest.mark.usefixtures("torch_litter")]

ROOT = Path(__file__).resolve().parents[2]
HOME = "/opt/clusterctl-in-a-pod"
PODS = ("node1", "node2")
# What `clusterctl launch` imports; the wheel's other requirements are for provisioning.
NEEDED = ("pydantic", "typer", "rich", "PyYAML", "packaging", "ClusterShell")
SEARCHED = "/usr/local/openmpi/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A whole batch of doubles on one process, or a share of it on each of several: the same mean, the same steps.
RELATIVE = 1e-9
TRAINING = r"""
import json, os, socket, sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(1234)
alone = "TORCHELASTIC_RUN_ID" not in os.environ
if not alone:
    distributed.init_process_group("gloo")
rank, size = (0, 1) if alone else (distributed.get_rank(), distributed.get_world_size())
inputs = torch.randn(64, 8, dtype=torch.float64)
wanted = (inputs @ torch.randn(8, 1, dtype=torch.float64)).tanh()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
trained = model if alone else DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(trained(inputs[rank::size]), wanted[rank::size]).backward()
    optimizer.step()
with torch.no_grad():
    loss = nn.functional.mse_loss(model(inputs), wanted).item()
answer = {"rank": rank, "size": size, "host": socket.gethostname(), "loss": loss, "arguments": sys.argv[1:]}
answer["interface"] = os.environ.get("GLOO_SOCKET_IFNAME", "")
sys.stdout.write(json.dumps(answer) + "\n")
sys.stdout.flush()
if not alone:
    distributed.barrier()
    distributed.destroy_process_group()
os._exit(0)  # Gloo's threads may outlive the interpreter, and then abort (pytorch/pytorch issue 190489)
"""
START = f"""#!/usr/bin/python3
import sys
sys.path.insert(0, "{HOME}/lib")
from clusterctl.cli.main import main
sys.exit(main())
"""
# Stands in for Slurm: one task on each of two nodes, with the variables that srun gives it.
SRUN = rf"""#!/bin/bash
while [[ $1 == -* ]]; do shift; done
task() {{
    ssh "node$(($1 + 1))" env PATH={HOME}/bin:{SEARCHED} SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_NNODES=2 \
        SLURM_STEP_NUM_NODES=2 SLURM_NODEID="$1" SLURM_PROCID="$1" SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='1\(x2\)' \
        SLURM_JOB_NODELIST='node[1-2]' SLURM_STEP_NODELIST='node[1-2]' "${{@:2}}"
}}
words=(); for word in "$@"; do words+=("$(printf %q "$word")"); done
task 0 "${{words[@]}}" & first=$!
task 1 "${{words[@]}}" & second=$!
wait $first && wait $second
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, stack_cluster: Cluster) -> Path:
    """The wheel and what it needs for a node's Python, as pip puts them into an image."""
    wheels, target = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("lib")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(wheels), str(ROOT))
    version = stack_cluster.on("node1", "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    pins = wheels / "locked.txt"
    pins.write_text(locked.requirements(NEEDED, version), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    wanted = ["--python-version", version, "--implementation", "cp", "--only-binary", ":all:"]
    run(*pip, *wanted, "--require-hashes", "--requirement", str(pins))
    run(*pip, "--no-index", *map(str, wheels.glob("*.whl")))
    return target


@pytest.fixture(scope="module")
def cluster(library: Path, stack_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two containers with clusterctl and a training script in them."""
    own = tmp_path_factory.mktemp("own")
    for name, text in {"clusterctl": START, "srun": SRUN, "train.py": TRAINING}.items():
        (own / name).write_text(text, encoding="utf-8")
        (own / name).chmod(0o755)
    try:
        for node in PODS:
            container = stack_cluster.box.node(node).container
            stack_cluster.on(node, "mkdir", "-p", HOME)
            stack_cluster.engine.run("cp", str(own), f"{container}:{HOME}/bin")
            stack_cluster.engine.run("cp", str(library), f"{container}:{HOME}/lib")
            stack_cluster.on(node, "chmod", "-R", "a+rX", HOME)
        yield stack_cluster
    finally:
        for node in PODS:
            stack_cluster.on(node, "rm", "-rf", HOME)


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> float:
    """The loss that a single process trains to."""
    argv = ("/usr/local/python_env/bin/python", f"{HOME}/bin/train.py")
    return float(json.loads(cluster.on("node1", *argv))["loss"])


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def render(*arguments: str) -> str:
    return run(*CLUSTERCTL, "render", *arguments)


def start(
    cluster: Cluster, node: str, argv: Sequence[str], environment: Mapping[str, str], user: str = "root"
) -> subprocess.Popen[str]:
    """Start a program in a container as a scheduler does: no session, no login, these variables."""
    given = [f"--env={name}={value}" for name, value in {"PATH": f"{HOME}/bin:{SEARCHED}", **environment}.items()]
    words = cluster.engine.argv("exec", "--user", user, *given, cluster.box.node(node).container, *argv)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(*processes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=600)
        found.append((process.returncode, output, errors))
    return found


def answers(*texts: str) -> list[dict[str, Any]]:
    lines = [line for text in texts for line in text.splitlines() if line.startswith('{"rank"')]
    return sorted((json.loads(line) for line in lines), key=lambda answer: int(answer["rank"]))


def left_running(cluster: Cluster, within_s: float = 10) -> list[str]:
    """Return what is still running after some seconds: mpirun does not wait for its ssh sessions to end."""
    script = f"pgrep -af 'torch.distributed.run|{HOME}'; true"
    end = time.monotonic() + within_s
    while True:
        found = [line for node in PODS for line in cluster.on(node, "sh", "-c", script).splitlines()]
        found = [line for line in found if "pgrep -af" not in line]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def test_a_pytorchjobs_pods_train_what_one_process_trains(cluster: Cluster, alone: float) -> None:
    program = ("python", f"{HOME}/bin/train.py", "--title", "it's $HOME; $(id)")
    sizes = ("--nodes", "2", "--nproc-per-node", "2", "-x", "TORCH_SHOW_CPP_STACKTRACES=0")
    job = yaml.safe_load(render("pytorchjob", "--name", "ddp", "--image", "train", *sizes, "--", *program))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    pods = []
    for rank, kind in enumerate(("Master", "Worker")):
        container = replicas[kind]["template"]["spec"]["containers"][0]
        scheduler = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "node1", "MASTER_PORT": "23456"}
        variables = {it["name"]: it["value"] for it in container["env"]} | scheduler
        command = [word.replace("$$", "$") for word in container["command"]]  # as the kubelet does
        pods.append(start(cluster, PODS[rank], command, variables))
    done = ended(*pods)
    assert [code for code, _, _ in done] == [0, 0], done
    found = answers(*(output for _, output, _ in done))
    assert [(it["rank"], it["size"], it["host"]) for it in found] == [
        *((0, 4, "node1"), (1, 4, "node1"), (2, 4, "node2"), (3, 4, "node2"))
    ]
    assert all(it["loss"] == pytest.approx(alone, rel=RELATIVE) for it in found)
    assert all(it["arguments"] == list(program[2:]) for it in found)
    assert {it["interface"] for it in found} == {"eth0"}
    for rank, (_, _, errors) in enumerate(done):
        assert f"clusterctl: node {rank} of 2, meeting at node1 port 23456 (MASTER_ADDR)" in errors
        assert "clusterctl: NCCL_SOCKET_IFNAME==eth0: " in errors
    assert left_running(cluster) == []


@pytest.mark.long
def test_a_slurm_script_trains_what_one_process_trains(cluster: Cluster, alone: float) -> None:
    program = ("python", f"{HOME}/bin/train.py", "--title", "it's $HOME")
    script = render("slurm", "--name", "ddp", "--nodes", "2", "--nproc-per-node", "1", "--", *program)
    ((code, output, errors),) = ended(
        start(cluster, "node1", ("bash", "-c", script), {"HOME": "/home/cluster"}, "cluster")
    )
    assert code == 0, errors
    found = answers(output)
    assert [(it["rank"], it["size"], it["host"]) for it in found] == [(0, 2, "node1"), (1, 2, "node2")]
    assert all(it["loss"] == pytest.approx(alone, rel=RELATIVE) for it in found)
    assert all(it["arguments"] == list(program[2:]) for it in found)
    assert "port 24711 follows from SLURM_JOB_ID=4711" in errors
    assert left_running(cluster) == []


def test_an_mpijobs_launcher_trains_what_one_process_trains(cluster: Cluster, alone: float, tmp_path: Path) -> None:
    program = ("python", f"{HOME}/bin/train.py")
    sizes = ("--nodes", "2", "--nproc-per-node", "1", "--launcher", "torchrun")
    job = yaml.safe_load(render("mpijob", "--name", "ddp", "--image", "train", *sizes, "--", *program))
    container = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    hosts = tmp_path / "hosts"
    hosts.write_text("node1 slots=1\nnode2 slots=1\n")
    hosts.chmod(0o644)
    cluster.engine.run("cp", str(hosts), f"{cluster.box.node('node1').container}:{HOME}/hosts")
    variables = {it["name"]: it["value"] for it in container["env"]}
    variables |= {"MASTER_ADDR": "node1", "HOME": "/home/cluster"}  # the worker's name is a service's in Kubernetes
    variables |= {f"{name}_default_hostfile": f"{HOME}/hosts" for name in ("OMPI_MCA_orte", "PRTE_MCA_prte")}
    ((code, output, errors),) = ended(start(cluster, "node1", container["command"], variables, "cluster"))
    assert code == 0, errors
    found = answers(output)
    assert [(it["rank"], it["size"], it["host"]) for it in found] == [(0, 2, "node1"), (1, 2, "node2")]
    assert all(it["loss"] == pytest.approx(alone, rel=RELATIVE) for it in found)
    assert left_running(cluster) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": ""}, "clusterctl: RANK is not set, so nothing says which of the nodes this is (WORLD_SIZE=2, "),
        ({"SLURM_NNODES": "4"}, "clusterctl: WORLD_SIZE=2 and SLURM_NNODES=4 contradict each other about "),
        (
            {"MASTER_ADDR": "node1.elsewhere"},
            "clusterctl: MASTER_ADDR is node1.elsewhere, which does not resolve here (",
        ),
    ],
)
def test_a_fault_ends_with_one_sentence_and_nothing_running(
    cluster: Cluster, changed: Mapping[str, str], words: str
) -> None:
    given = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "23456", **changed}
    argv = ("clusterctl", "launch", "--wait", "0", "--", f"{HOME}/bin/train.py")
    ((code, output, errors),) = ended(start(cluster, "node2", argv, given))
    assert (code, output) == (1, "")
    assert errors.startswith(words)
    assert len(errors.splitlines()) == 1
    assert left_running(cluster) == []


def test_what_is_stopped_takes_its_workers_along(cluster: Cluster) -> None:
    given = {"WORLD_SIZE": "1", "RANK": "0"}
    wait = "import sys, time; sys.stdout.write('here\\n'); sys.stdout.flush(); time.sleep(600)"
    pod = start(cluster, "node1", ("clusterctl", "launch", "--nproc-per-node=2", "--", "python3", "-c", wait), given)
    try:
        assert pod.stdout.readline() == "here\n"
        cluster.on("node1", "pkill", "-TERM", "-f", "^/usr/local/python_env/bin/python -m torch.distributed.run")
        ((code, _, errors),) = ended(pod)
    finally:
        pod.kill()
    assert code != 0, errors
    assert cluster.on("node1", "sh", "-c", "pgrep -af 'time.slee[p]'; true") == ""
    assert left_running(cluster) == []


def test_print_is_what_a_shell_can_run(cluster: Cluster, alone: float) -> None:
    given = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "23457"}
    argv = ("clusterctl", "launch", "--print", "--nproc-per-node=1", "--", f"{HOME}/bin/train.py")
    ((code, line, errors),) = ended(start(cluster, "node1", argv, given))
    assert code == 0, errors
    assert shlex.split(line)[0] == "/usr/local/python_env/bin/python"
    (answer,) = answers(cluster.on("node1", "sh", "-c", line))
    assert answer["loss"] == pytest.approx(alone, rel=RELATIVE)
