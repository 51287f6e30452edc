"""``clusterctl run`` with the launchers none, jax, accelerate and deepspeed, on real nodes, by the examples."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterctl import sandbox as sandboxes
from launched_jobs import Ended, ended, killed, up
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
COPIED = ("--sync", str(EXAMPLES))
PAIR = ("--limit", "node2,node3")
STOPS = """\
import os, signal, time
print("up", flush=True)
if os.environ["NODE_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""
CONFIG = "distributed_type: MULTI_GPU\nnum_machines: 4\nnum_processes: 8\nmixed_precision: bf16\n"
VARIABLES = """\
{"horovod_install": "never", "nccl_install": "never", "python_env_requirements": ["accelerate", "jax", "deepspeed"]}
"""
# A rank of each launcher that trains nothing: what ends or stops it is the subject.
WAITS = """\
import os, time
rank = next(os.environ[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK", "NODE_RANK") if name in os.environ)
if rank == "0":
    print("up", flush=True)
time.sleep(600)
"""
# Each names its ranks in its own way; the last one stops in the middle of a job of two nodes.
HALTS = """\
import os, signal, time
rank = next(os.environ[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK", "NODE_RANK") if name in os.environ)
size = next(os.environ[name] for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE") if name in os.environ)
if int(rank) == int(size) - 1:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""
DEEPSPEED = "deepspeed==0.19.8"
OF_BUILD = ("setuptools", "wheel", "packaging", "ninja", "py-cpuinfo")


OWN = {"deepspeed": ("--no_local_rank",)}  # options of a launcher before the script


def run(cluster: Cluster, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), "--timeout", "240", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done


@pytest.fixture
def cluster(mpi_cluster: Cluster) -> Iterator[Cluster]:
    yield mpi_cluster
    assert mpi_cluster.is_clean()
    for node in ("node1", "node2", "node3", "node4"):
        mpi_cluster.on(node, "rm", "-rf", "/home/cluster/clusterctl")


def test_none_starts_one_command_on_each_node_that_find_each_other(cluster: Cluster) -> None:
    words = ("--launcher", "none", "--", "python", "none/sum.py")
    assert run(cluster, *COPIED, *words).stdout == "sum 6 of 4 nodes: right\n"
    shown = run(cluster, *PAIR, "--chdir", "/home/cluster/clusterctl/examples", "--print", *words).stdout
    assert cluster.on("node2", "su", "-l", "cluster", "-c", shown).splitlines() == ["sum 1 of 2 nodes: right"]


def test_the_exit_code_of_a_node_is_the_commands(cluster: Cluster) -> None:
    run(cluster, *PAIR, "--launcher", "none", "--", "sh", "-c", 'exit "$((NODE_RANK * 7))"', code=7)


def test_the_node_that_stops_a_job_of_none_is_named(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(STOPS, encoding="utf-8")
    words = ("--sync", str(tmp_path), "--stall-after", "4", "--restart-without-suspects", "0", "--search")
    said = run(cluster, *PAIR, *words, "--launcher", "none", "--", "python", "stops.py", code=124).stderr
    assert "node3 rank 1 is stopped" in said


def test_a_killed_node_ends_a_job_of_none(cluster: Cluster, tmp_path: Path) -> None:
    found = with_a_killed_node(cluster, tmp_path, "none", PAIR, "node3")
    assert "node3" in found.stderr


def with_a_killed_node(
    cluster: Cluster, folder: Path, launcher: str, limit: tuple[str, ...], node: str, *own: str
) -> Ended:
    """Kill a node under a job of two; the other one has nothing of the job afterwards."""
    (folder / "waits.py").write_text(WAITS, encoding="utf-8")
    program = ("python", "waits.py") if launcher in {"none", "jax"} else (*own, "waits.py")
    words = (*limit, "--sync", str(folder), "--launcher", launcher, "--", *program)
    with up(cluster, *words) as job, killed(cluster, node):
        found = ended(job)
        others = tuple(one.name for one in cluster.box.nodes if one.name != node)
        assert cluster.is_clean(others)
    assert found.code not in {0, 124}, found.stderr
    return found


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("jax", "--launcher jax needs jax, which is missing on node[1-4]; provision them with python_env_requirements"),
        ("accelerate", "--launcher accelerate needs PyTorch, which is missing on node[1-4]"),
    ],
)
def test_a_launcher_that_the_nodes_lack_is_refused(cluster: Cluster, launcher: str, words: str) -> None:
    said = run(cluster, *COPIED, "--launcher", launcher, "--", "python", "mpi/allreduce.py", code=1).stderr
    assert words in said
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel of DeepSpeed, of which PyPI has the source alone."""
    place = tmp_path_factory.mktemp("deepspeed")
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    pip = [str(place / "venv" / "bin" / "pip"), "--quiet"]
    subprocess.run([*pip, "install", *OF_BUILD], check=True)
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place / "wheels"), DEEPSPEED)
    subprocess.run([*pip, *wheel], check=True)
    return place / "wheels"


@pytest.fixture(scope="module")
def pair(sandbox: Callable[..., sandboxes.Sandbox], wheels: Path) -> Iterator[Cluster]:
    """Two nodes with PyTorch, accelerate, JAX and DeepSpeed."""
    cluster = Cluster(sandbox("launchers", nodes=2, stack=True))
    variables = cluster.box.inventory.parent / "group_vars" / "all.yml"
    variables.parent.mkdir(exist_ok=True)
    variables.write_text(VARIABLES, encoding="utf-8")
    own = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    links = subprocess.run(own, capture_output=True, text=True, check=False).stdout.split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_FIND_LINKS", " ".join([*links, str(wheels)]))
        cluster.provision()
    yield cluster
    cluster.remove_torch_litter()
    assert cluster.is_clean(("node1", "node2"))


@pytest.mark.long
def test_accelerate_trains_and_names_what_a_file_contradicts(pair: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "regression.py").write_text((EXAMPLES / "accelerate" / "regression.py").read_text(), encoding="utf-8")
    (folder / "a.yaml").write_text(CONFIG, encoding="utf-8")
    words = ("--sync", str(folder), "--launcher", "accelerate", "--")
    plain = run(pair, *words, "regression.py")
    assert plain.stdout.rstrip().endswith("on each of 4 processes: right")
    assert "Note:" not in plain.stderr
    done = run(pair, *words, "--config_file", "a.yaml", "regression.py")
    assert done.stdout.rstrip().endswith("on each of 4 processes: right")
    note = "Note: a.yaml has num_machines 4, num_processes 8; this run uses num_machines 2, num_processes 4."
    assert done.stderr.count(note) == 1


@pytest.mark.long
def test_jax_finds_the_cluster_without_arguments(pair: Cluster) -> None:
    words = ("--launcher", "jax", "--", "python", "jax/allreduce.py")
    assert run(pair, *COPIED, *words).stdout.splitlines()[-1] == "sum 3 of 2 processes: right"
    two = run(pair, *COPIED, "--nproc-per-node", "2", *words).stdout.splitlines()
    assert two[-1] == "sum 10 of 4 processes: right"


@pytest.mark.long
def test_deepspeeds_own_launcher_makes_the_environment_of_its_processes(pair: Cluster) -> None:
    """With a script of PyTorch, since DeepSpeed on CPUs compiles a part of itself on each node."""
    words = ("--launcher", "deepspeed", "--", "--no_local_rank", "torchrun/ddp.py")
    assert "on each of 4 processes: right" in run(pair, *COPIED, *words).stdout


@pytest.mark.long
def test_deepspeed_is_built_from_the_lock_of_a_project(pair: Cluster, tmp_path: Path) -> None:
    project = tmp_path / "trained"
    project.mkdir()
    (project / "requirements.txt").write_text(f"{DEEPSPEED}\nnumpy\ntorch\n", encoding="utf-8")
    (project / "ddp.py").write_text((EXAMPLES / "torchrun" / "ddp.py").read_text(), encoding="utf-8")
    words = ("--project", str(project), "--launcher", "deepspeed", "--", "--no_local_rank", "ddp.py")
    assert "on each of 4 processes: right" in run(pair, *words).stdout


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["accelerate", "deepspeed", "jax"])
def test_a_killed_node_ends_the_job_of_each_launcher(pair: Cluster, tmp_path: Path, launcher: str) -> None:
    found = with_a_killed_node(pair, tmp_path, launcher, (), "node2", *OWN.get(launcher, ()))
    assert "node2" in found.stderr


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["accelerate", "deepspeed", "jax"])
def test_the_node_of_a_stopped_rank_is_named_under_each_launcher(pair: Cluster, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "halts.py").write_text(HALTS, encoding="utf-8")
    program = ("python", "halts.py") if launcher == "jax" else (*OWN.get(launcher, ()), "halts.py")
    # DeepSpeed's own launcher imports PyTorch for a while before its ranks begin
    words = ("--sync", str(tmp_path), "--stall-after", "45", "--restart-without-suspects", "0", "--search")
    said = run(pair, *words, "--launcher", launcher, "--", *program, code=124).stderr
    rank = 1 if launcher == "jax" else 3
    assert f"node2 rank {rank} is stopped" in said
