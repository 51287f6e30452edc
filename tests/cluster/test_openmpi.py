"""Open MPI on real nodes: one build a platform, ranks on all nodes, upgrade and way back by one rename."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import playing
import pytest
from clusterctl.sandbox import Sandbox
from playing import ssh

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

PREFIX = "/usr/local/openmpi"
INSTALL_PMIX = """
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends libpmix-dev >/dev/null
"""
ROLES = [
    {"role": "clusterctl.hpc.preflight"},
    {"role": "clusterctl.hpc.hosts", "vars": {"hosts_members": "{{ preflight_members }}"}},
    {"role": "clusterctl.hpc.ssh_mesh", "vars": {"ssh_mesh_members": "{{ preflight_members }}"}},
    {
        "role": "clusterctl.hpc.openmpi",
        "vars": {"openmpi_members": "{{ preflight_members }}", "openmpi_node": "{{ preflight_node }}"},
    },
]


def provision(box: Sandbox, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    plays = [{"hosts": "all", "gather_facts": False, "roles": ROLES}]
    return playing.play(box, folder, plays, variables, timeout_s=3600)


@pytest.fixture(scope="module")
def pair(sandbox: Start) -> Sandbox:
    return sandbox("mpi", nodes=2)


def hello(box: Sandbox) -> list[dict[str, Any]]:
    hosts = ",".join(f"{node.name}:2" for node in box.nodes)
    ranks = str(2 * len(box.nodes))
    done = ssh(
        box,
        box.nodes[0].name,
        f"{PREFIX}/bin/mpirun",
        "--host",
        hosts,
        "-np",
        ranks,
        f"{PREFIX}/libexec/clusterctl-hello",
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def runs(pair: Sandbox, tmp_path: Path, version: str) -> None:
    done = provision(pair, tmp_path, openmpi_version=version)
    assert done.returncode == 0, done.stdout[-4000:]
    ranks = hello(pair)
    assert sorted(rank["rank"] for rank in ranks) == [0, 1, 2, 3]
    assert {rank["host"] for rank in ranks} == {"node1", "node2"}
    (library,) = {rank["library_path"] for rank in ranks}
    assert library.startswith(f"{PREFIX}-{version}-")
    assert all(rank["library_version"].startswith(f"Open MPI v{version}") for rank in ranks)
    for wrapper, compiler in (("mpicc", "gcc"), ("mpicxx", "g++"), ("mpiCC", "g++")):
        assert ssh(pair, "node2", f"{PREFIX}/bin/{wrapper}", "--showme:command").stdout.strip() == compiler, wrapper


def test_each_series_runs_ranks_on_all_nodes_and_the_way_back_is_a_rename(pair: Sandbox, tmp_path: Path) -> None:
    runs(pair, tmp_path, "5.0.7")
    runs(pair, tmp_path, "4.1.4")
    trees = ssh(pair, "node2", "sh", "-c", "ls -di /usr/local/openmpi-*").stdout.splitlines()
    assert len(trees) == 2
    runs(pair, tmp_path, "5.0.7")
    assert ssh(pair, "node2", "sh", "-c", "ls -di /usr/local/openmpi-*").stdout.splitlines() == trees


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"openmpi_version": "5.0.99"}, "No source of Open MPI 5.0.99 is known"),
        ({"openmpi_version": "3.1.6", "openmpi_sha256": "0" * 64}, "only releases of 5.0 and 4.1 can be built"),
    ],
    ids=["unknown", "series"],
)
def test_a_version_that_cannot_be_had_is_refused_in_one_sentence(
    pair: Sandbox, tmp_path: Path, variables: dict[str, str], sentence: str
) -> None:
    done = provision(pair, tmp_path, **variables)
    assert done.returncode == 2
    assert sentence in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout


@pytest.mark.long
def test_an_external_pmix_is_built_in_where_the_release_suits_and_refused_elsewhere(
    pair: Sandbox, tmp_path: Path
) -> None:
    """Debian 12 has PMIx 4.2.2: too old for Open MPI 5.0, right for 4.1."""
    done = provision(pair, tmp_path, openmpi_version="4.1.4", openmpi_pmix="external")
    assert done.returncode == 2
    assert "openmpi_pmix is external: node1 builds Open MPI and has no PMIx" in " ".join(done.stdout.split())
    for node in pair.nodes:
        installed = ssh(pair, node.name, "sudo", "sh", "-ec", INSTALL_PMIX)
        assert installed.returncode == 0, installed.stderr
    done = provision(pair, tmp_path, openmpi_version="5.0.7", openmpi_pmix="external")
    assert done.returncode == 2
    assert "Open MPI 5.0 needs PMIx 4.2.4 or newer" in " ".join(done.stdout.split())
    done = provision(pair, tmp_path, openmpi_version="4.1.4", openmpi_pmix="external")
    assert done.returncode == 0, done.stdout[-4000:]
    assert sorted(rank["rank"] for rank in hello(pair)) == [0, 1, 2, 3]
    marker = json.loads(ssh(pair, "node2", "cat", f"{PREFIX}/.clusterctl.json").stdout)
    assert marker["inputs"]["pmix"] == {"prefix": "/usr/lib/x86_64-linux-gnu/pmix2", "version": "4.2.2"}
    loaded = ssh(pair, "node2", "ldd", f"{PREFIX}/lib/libopen-pal.so").stdout
    assert "libpmix.so.2 => /usr/lib/x86_64-linux-gnu/pmix2/lib/" in loaded
