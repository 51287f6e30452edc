"""``clusterctl run --launcher ray`` on real nodes, with Ray itself from the lock of a project."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launched_jobs import Ended, ended, killed, up
from validated import CLUSTERCTL, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "pi.py"
BOTH = ("node1", "node2")
LOCK = "ray==2.60.0\n"
# A task on each node; then the driver waits, or ends as it is told. With "stop", the task of the other node stops.
NAPS = """\
import os, signal, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
ray.init(log_to_driver=False)
@ray.remote
def nap(stops):
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
@ray.remote
def place():
    return os.getpid()
here = ray.get_runtime_context().get_node_id()
nodes = [node["NodeID"] for node in ray.nodes()]
assert len(nodes) == 2
ray.get([place.options(scheduling_strategy=At(name, soft=False)).remote() for name in nodes])
naps = [
    nap.options(scheduling_strategy=At(name, soft=False)).remote("stop" in sys.argv and name != here) for name in nodes
]
print("up", flush=True)
if sys.argv[1].isdigit():
    sys.exit(int(sys.argv[1]))
ray.get(naps)
"""
# It has found the port of Ray's head on its own node, and no secret.
STRANGER = """\
import os, subprocess, sys
address = subprocess.run(["sh", "-c", "cat /tmp/ray-*/ray_current_cluster"], capture_output=True, text=True).stdout
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = "0" * 64
import ray
try:
    ray.init(address, log_to_driver=False)
except Exception as error:
    print("refused", type(error).__name__, "uthentication" in str(error))
else:
    print("let in")
"""

Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of-user") / "naps"
    folder.mkdir()
    (folder / "requirements.txt").write_text(LOCK, encoding="utf-8")
    (folder / "naps.py").write_text(NAPS, encoding="utf-8")
    (folder / "pi.py").write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


@pytest.fixture
def cluster(fresh_cluster: Cluster) -> Iterator[Cluster]:
    yield fresh_cluster
    assert fresh_cluster.is_clean(BOTH)


def words(project: Path, *more: str) -> tuple[str, ...]:
    return ("--limit", ",".join(BOTH), "--project", str(project), "--launcher", "ray", *more)


def run(cluster: Cluster, *more: str) -> Ended:
    argv = [*CLUSTERCTL, "run", str(cluster.box.inventory), "--timeout", "900", *more]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def processes(cluster: Cluster, name: str) -> list[str]:
    return cluster.everywhere(lambda node: cluster.on(node, "sh", "-c", f"pgrep -x {name} || true").split(), BOTH)


def test_the_example_computes_on_all_nodes_and_leaves_nothing(cluster: Cluster, project: Path) -> None:
    done = run(cluster, *words(project, "--", "pi.py"))
    assert done.code == 0, done.stderr
    assert done.stdout == "pi 3.141592654 by 2 nodes: right\n"


def test_the_drivers_code_is_the_jobs(cluster: Cluster, project: Path) -> None:
    done = run(cluster, *words(project, "--", "python", "naps.py", "7"))
    assert (done.code, done.stdout) == (7, "up\n"), done.stderr


def test_two_jobs_share_the_nodes_and_nobody_else_gets_in(cluster: Cluster, project: Path) -> None:
    with up(cluster, *words(project, "--", "naps.py", "stay")) as first:
        python = cluster.on("node1", "sh", "-c", "tr '\\0' '\\n' < /proc/$(pgrep -x raylet)/environ | grep ^PATH=")
        told = cluster.on("node1", python.removeprefix("PATH=").partition(":")[0] + "/python", "-c", STRANGER)
        assert told.splitlines()[-1].startswith("refused"), told
        second = run(cluster, *words(project, "--", "pi.py"))
        assert (second.code, second.stdout) == (0, "pi 3.141592654 by 2 nodes: right\n"), second.stderr
        assert len(processes(cluster, "raylet")) == 2, "those of the first are still there"
        first.send_signal(signal.SIGINT)
        assert ended(first).code == 130


@pytest.mark.parametrize("victim", ["driver", "raylet", "controller"])
def test_what_is_killed_ends_the_job_everywhere(cluster: Cluster, project: Path, victim: str) -> None:
    with up(cluster, *words(project, "--", "naps.py", "stay")) as job:
        if victim == "controller":
            os.kill(job.pid, signal.SIGKILL)
        elif victim == "driver":
            cluster.on("node1", "pkill", "-KILL", "-f", "^[^ ]*python -u naps.py")
        else:
            cluster.on("node2", "pkill", "-KILL", "-x", "raylet")
        found = ended(job)
    assert found.code == {"driver": 137, "raylet": 1, "controller": -signal.SIGKILL}[victim], found.stderr
    if victim == "driver":
        assert "node1 rank 0" in found.stderr
    elif victim == "raylet":
        assert "Ray on node2: raylet has been ended by signal 9" in found.stderr
    assert cluster.is_clean(BOTH)
    assert not processes(cluster, "gcs_server")


def test_a_killed_node_ends_the_job(cluster: Cluster, project: Path) -> None:
    with up(cluster, *words(project, "--", "naps.py", "stay")) as job, killed(cluster, "node2"):
        found = ended(job)
        assert cluster.is_clean(("node1",))
    assert found.code not in {0, 124}, found.stderr
    assert "node2" in found.stderr


def test_the_node_whose_task_is_stopped_is_named(cluster: Cluster, project: Path) -> None:
    more = ("--stall-after", "40", "--restart-without-suspects", "0", "--search")
    done = run(cluster, *words(project, *more, "--", "naps.py", "stop"))
    assert done.code == 124, done.stderr
    assert "node2 rank 1 is stopped" in done.stderr


def test_an_environment_without_ray_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("click\n", encoding="utf-8")
    (tmp_path / "a.py").touch()
    done = run(cluster, *words(tmp_path, "--", "a.py"))
    assert done.code == 1
    assert "--launcher ray needs ray, which is missing on node[1-2]; add ray to the lock of the project" in done.stderr
