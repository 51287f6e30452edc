"""Horovod on real nodes: with both series of Open MPI, across nodes, and what it says where it cannot be had."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import playing
import pytest
from clusterctl.sandbox import Sandbox
from clusterctl.state import paths

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

MEMBERS = "{{ preflight_members }}"
COLLECTIVES = """
import json, torch, horovod.torch as hvd
hvd.init()
rank = hvd.rank()
gathered = hvd.allgather(torch.full((rank + 1,), float(rank)))
total = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum)
print(json.dumps({"rank": rank, "size": hvd.size(), "sum": total.tolist(), "gathered": gathered.tolist()}), flush=True)
hvd.shutdown()
"""


class Cluster:
    """Two nodes and what plays did to them."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder = box, folder

    def play(self, tasks: list[dict[str, Any]], **variables: Any) -> tuple[dict[str, int], str]:
        """Run tasks; return how much each host changed (-1 where it failed) and the text."""
        look = {"role": "clusterctl.hpc.preflight"}
        play = {"hosts": "all", "gather_facts": False, "roles": [look], "tasks": tasks}
        # two builds on a machine that others use as well
        done = playing.play(self.box, self.folder, [play], variables, timeout_s=3600)
        text = done.stdout + done.stderr
        return playing.changes(text), text

    def said(self, node: str, *argv: str) -> str:
        return playing.said(self.box, node, *argv, timeout_s=300)

    def marker(self, node: str, artifact: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.said(node, "cat", f"/usr/local/{artifact}/.clusterctl.json"))
        return read


def role(name: str, **variables: Any) -> dict[str, Any]:
    return {"import_role": {"name": f"clusterctl.hpc.{name}"}, "vars": variables}


MESH = [role("hosts", hosts_members=MEMBERS), role("ssh_mesh", ssh_mesh_members=MEMBERS)]
STACK = [role("software", software_roles=["openmpi", "python_env", "horovod"], python_env_framework="pytorch")]
HOROVOD = [role("horovod", python_env_framework="pytorch")]


@pytest.fixture(scope="module")
def cluster(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    made = Cluster(sandbox("horovod", nodes=2, stack=True), tmp_path_factory.mktemp("horovod"))
    recap, text = made.play(MESH)
    assert min(recap.values(), default=-1) >= 0, text[-4000:]
    return made


# The older series proves the combination, for which unoptimized code will do: it compiles in half the time.
@pytest.mark.parametrize(
    ("version", "flags"),
    [
        pytest.param("4.1.4", {"horovod_cxxflags": "-O0 -g0"}, id="4.1.4", marks=pytest.mark.long),
        pytest.param("5.0.7", {}, id="5.0.7"),
    ],
)
def test_ranks_on_both_nodes_agree_with_each_series_of_open_mpi(
    cluster: Cluster, version: str, flags: dict[str, str]
) -> None:
    recap, text = cluster.play(STACK, openmpi_version=version, **flags)
    assert min(recap.values(), default=-1) >= 0, text[-4000:]
    openmpi = cluster.marker("node1", "openmpi")
    assert openmpi["version"] == version
    for node in ("node1", "node2"):
        assert cluster.marker(node, "horovod")["inputs"]["openmpi"] == openmpi["key"]
        cluster.said(node, "sh", "-c", f"cat > collectives.py <<'END'\n{COLLECTIVES}\nEND")
    ranks = ["/usr/local/openmpi/bin/mpirun", "--host", "node1:1,node2:1", "-np", "2"]
    lines = cluster.said("node1", *ranks, "/usr/local/python_env/bin/python", "collectives.py").splitlines()
    answers = sorted((json.loads(line) for line in lines if line.startswith("{")), key=lambda answer: answer["rank"])
    assert answers == [{"rank": rank, "size": 2, "sum": [3.0], "gathered": [0.0, 1.0, 1.0]} for rank in (0, 1)]


@pytest.mark.long
def test_a_package_more_in_the_environment_is_no_other_horovod(cluster: Cluster) -> None:
    before = cluster.marker("node1", "horovod")
    recap, text = cluster.play(STACK, openmpi_version="5.0.7", python_env_requirements=["tabulate"])
    assert min(recap.values()) >= 0, text[-4000:]
    assert cluster.marker("node1", "horovod") == before


def refused(cluster: Cluster, **variables: Any) -> str:
    """Return what was said of a Horovod that must not be installed; what stands on the nodes stays as it was."""
    before = cluster.marker("node1", "horovod")
    recap, text = cluster.play(HOROVOD, **variables)
    assert recap["node1"] == -1
    assert cluster.marker("node1", "horovod") == before
    assert "Traceback" not in text
    return " ".join(text.split())


def test_what_cannot_be_built_is_refused_before_anything_is_changed(cluster: Cluster) -> None:
    said = refused(cluster, horovod_version="0.27.0", horovod_gpu_operations="NCCL")
    assert "No sha256 of Horovod 0.27.0 is known (known are the releases 0.28.1); set" in said
    for node in ("node1", "node2"):
        assert f"of {node} is a CPU build; set python_env_framework_build to cuda, or" in said


def test_a_builder_without_the_memory_is_refused_before_it_gets_a_compiler(cluster: Cluster) -> None:
    said = refused(cluster, horovod_cxxflags="-O0 -g0", horovod_job_memory_bytes=10**13)
    assert "node1: free some memory there or name another host (horovod_builder): building horovod 0.28.1 needs" in said
    assert "installing packages" not in said


@pytest.mark.long
def test_an_archive_of_something_else_is_named_in_the_first_seconds(cluster: Cluster) -> None:
    other = next((paths.cache_dir().value / "sources").glob("mpi4py-*.tar.gz"))
    sha256 = hashlib.sha256(other.read_bytes()).hexdigest()
    said = refused(cluster, horovod_archive=str(other), horovod_sha256=sha256)
    assert "node1: The source is no tree of Horovod: it has no horovod/__init__.py; name an archive of one." in said


def test_a_horovod_that_is_wanted_no_longer_leaves_and_its_folder_stays(cluster: Cluster) -> None:
    tree = cluster.said("node1", "readlink", "-f", "/usr/local/horovod")
    for changes in (1, 0):
        recap, text = cluster.play(HOROVOD, horovod_install="never")
        assert recap == {"node1": changes, "node2": changes}, text[-4000:]
    assert cluster.said("node2", "sh", "-c", "ls -d /usr/local/horovod*") == tree
