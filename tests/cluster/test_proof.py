"""Nodes with two networks: a setting that sends a job over the wrong one is named with its node and its file.

``validate`` finds it by ssh. ``clusterctl launch --prove`` finds it in pods and in a job of Slurm. There the nodes have
the distribution ``clusterctl-launch`` and no other package of clusterctl.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import planting
import pytest
import yaml
from clusterctl.model.results import Verdict
from slurm_nodes import SUBMIT, is_empty
from validated import CLUSTERCTL, Cluster, result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clusterctl import sandbox as sandboxes
    from clusterctl.model.results import CheckResult

pytestmark = [pytest.mark.cluster, pytest.mark.long]  # a sandbox of its own with PyTorch and Slurm

ROOT = Path(__file__).resolve().parents[2]
NODES = ("node1", "node2", "node3")
PODS = NODES[:2]
# Of two ranks of Gloo, that with the lower address listens and the other one connects. Traffic takes the network of the
# listener, so this one is lower than the sandbox's.
OTHER, CIDR = "eth1", "10.3.79.0/24"
RECORD = "/etc/clusterctl/fabric.json"
ENVIRONMENT = "/etc/environment"
HOME = "/opt/clusterctl-launch"
PATH = f"{HOME}/bin:/usr/local/openmpi/bin:/usr/local/bin:/usr/bin:/bin"
PROGRAM = ("sh", "-c", "echo started rank $RANK")
START = f"""#!/usr/bin/python3
import sys
sys.path.insert(0, "{HOME}/lib")
from clusterctl_launch import main
sys.exit(main())
"""
REFUSED, PROVED = "clusterctl: the program was not started", "have right sums over Gloo"


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three provisioned nodes of Slurm with a second network, which came after they were provisioned."""
    box = sandbox("proof", nodes=len(NODES), extras=("slurm",), stack=True)
    variables = box.inventory.parent / "group_vars" / "all.yml"
    variables.parent.mkdir(exist_ok=True)
    variables.write_text(json.dumps({"nccl_install": "never", "horovod_install": "never"}), encoding="utf-8")
    found = Cluster(box)
    found.provision()
    folder = tmp_path_factory.mktemp("launch")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT / "distributions" / "launch", check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "lib"), str(wheel)], check=True)
    (folder / "clusterctl").write_text(START, encoding="utf-8")
    (folder / "clusterctl").chmod(0o755)
    for node in NODES:
        container = box.node(node).container
        found.on(node, "sh", "-c", f"rm -rf {HOME}; mkdir -p {HOME}/bin")
        found.engine.run("cp", str(folder / "lib"), f"{container}:{HOME}/lib")
        found.engine.run("cp", str(folder / "clusterctl"), f"{container}:{HOME}/bin/clusterctl")
        found.on(node, "chmod", "-R", "a+rX", HOME)
    with found.second_network(OTHER, CIDR, NODES):
        yield found


def planted(cluster: Cluster, node: str, line: str) -> contextlib.AbstractContextManager[None]:
    """Add a line to the environment file of a node."""
    name = line.partition("=")[0]
    back = f"sed -i '/^{name}=/d' {ENVIRONMENT}"
    return planting.changed(cluster, node, f"echo '{line}' >> {ENVIRONMENT}", back)


def refused(found: CheckResult, node: str, setting: str) -> None:
    """Hold a check to a FAIL that names this node alone, the interface, and the setting with its file."""
    assert (found.verdict, found.hosts) == (Verdict.FAIL, (node,)), found.reason
    assert OTHER in found.reason
    assert "eth0" in found.reason
    assert f"by {setting} of {ENVIRONMENT}" in found.reason


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_validate_names_the_setting_that_sends_mpi_elsewhere(cluster: Cluster, node: str) -> None:
    """On the launch node, which is the first, mpirun hands the setting on to all ranks."""
    assert result(cluster.validate("network", search=False), "network").verdict is Verdict.PASS
    setting = f"OMPI_MCA_btl_tcp_if_include={OTHER}"
    with planted(cluster, node, setting):
        refused(result(cluster.validate("network", search=False), "network"), node, setting)


def test_validate_names_the_setting_that_sends_gloo_elsewhere(cluster: Cluster) -> None:
    assert result(cluster.validate("torchrun", search=False), "torchrun").verdict is Verdict.PASS
    setting = f"GLOO_SOCKET_IFNAME={OTHER}"
    with planted(cluster, "node2", setting):
        refused(result(cluster.validate("torchrun", search=False), "torchrun"), "node2", setting)


# --- in pods ----------------------------------------------------------------------------------------------------------


def in_pods(cluster: Cluster, *more: Mapping[str, str]) -> list[tuple[int, str, str]]:
    """Start the line of a rendered PyTorchJob in two containers, with what the operator sets and more."""
    argv = ("pytorchjob", "--name", "a", "--image", "a", "--nodes", "2", "--nproc-per-node", "1", "--prove", "--")
    done = subprocess.run([*CLUSTERCTL, "render", *argv, *PROGRAM], capture_output=True, text=True, check=True)
    replicas = yaml.safe_load(done.stdout)["spec"]["pytorchReplicaSpecs"]
    pods = []
    for rank, (node, kind) in enumerate(zip(PODS, ("Master", "Worker"), strict=True)):
        (container,) = replicas[kind]["template"]["spec"]["containers"]
        line = [word.replace("$$", "$") for word in container["command"]]  # as the kubelet does
        given = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": PODS[0], "MASTER_PORT": "23456", "PATH": PATH}
        given |= more[rank] if more else {}
        words = [f"--env={name}={value}" for name, value in given.items()]
        words = cluster.engine.argv("exec", *words, cluster.box.node(node).container, *line)
        pods.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ended = [(*pod.communicate(timeout=600), pod.returncode) for pod in pods]
    return [(code, output, errors) for output, errors, code in ended]


def test_a_proof_in_pods_lets_the_program_start(cluster: Cluster) -> None:
    first, second = in_pods(cluster)
    assert [first[0], second[0]] == [0, 0], first[2] + second[2]
    assert PROVED in first[2]
    assert "started rank 0" in first[1]
    assert "started rank 1" in second[1]


@pytest.mark.parametrize("provisioned", [True, False])
def test_a_pod_whose_setting_goes_elsewhere_is_named(cluster: Cluster, provisioned: bool) -> None:
    """Without a record of the role ``fabric``, the right interface is the one that leads to node 0."""
    with contextlib.ExitStack() as stack:
        for node in () if provisioned else PODS:
            stack.enter_context(planting.away(cluster, node, RECORD))
        first, second = in_pods(cluster, {}, {"GLOO_SOCKET_IFNAME": OTHER})
    assert [first[0], second[0]] == [10, 10], first[2] + second[2]
    assert f"went over {OTHER}, not over eth0, by GLOO_SOCKET_IFNAME={OTHER} of environment; set" in first[2]
    assert "clusterctl: proof FAIL: node2: " in first[2]
    assert REFUSED in first[2]
    assert "started" not in first[1] + second[1]


# --- in Slurm ---------------------------------------------------------------------------------------------------------


def in_slurm(cluster: Cluster, *options: str) -> tuple[int, str]:
    """Submit a rendered script, and return its exit code and what it said."""
    argv = ("slurm", "--name", "a", "--nodes", "2", "--nproc-per-node", "1", "--working-dir", HOME, "--prove")
    done = subprocess.run([*CLUSTERCTL, "render", *argv, *options, "--", *PROGRAM], capture_output=True, check=True)
    cluster.engine.run(
        "exec", "--interactive", cluster.box.node(SUBMIT).container, "sh", "-c", "cat >/tmp/job.sh", stdin=done.stdout
    )
    submit = f"PATH={PATH} sbatch --wait --quiet --chdir=/tmp --output=/tmp/job.out --open-mode=truncate /tmp/job.sh"
    said = cluster.on(SUBMIT, "sh", "-c", f"{submit}; echo code $?; cat /tmp/job.out; rm -f /tmp/job.sh /tmp/job.out")
    assert is_empty(cluster)
    head, _, text = said.partition("\n")
    return int(head.split()[-1]), text


def test_a_proof_in_slurm_lets_the_program_start(cluster: Cluster) -> None:
    code, said = in_slurm(cluster)
    assert code == 0, said
    assert PROVED in said
    assert {"started rank 0", "started rank 1"} <= set(said.splitlines())


def test_a_submission_whose_setting_goes_elsewhere_is_refused_in_slurm(cluster: Cluster) -> None:
    code, said = in_slurm(cluster, "-x", f"GLOO_SOCKET_IFNAME={OTHER}")
    assert code == 10, said
    for node in PODS:
        assert node in said.partition("proof FAIL")[2]
    assert f"went over {OTHER}, not over eth0, by GLOO_SOCKET_IFNAME={OTHER} of environment" in said
    assert REFUSED in said
    assert "started rank" not in said
