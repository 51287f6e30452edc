"""The recipe of mpi4py: its keys, its refusals, and what stands on what."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import mpi4py
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Plan
from recipe_clusters import BULLSEYE, cluster, host, plan

OPENMPI = "a4e3643e491bb580"
PYTHON = "0123456789abcdef"
# Keys of builds that exist already. Another key costs each site a build of minutes.
KEY = "babb02f3159bae75"
KEYS: list[tuple[dict[str, Any], str]] = [
    ({}, KEY),
    ({"preflight_work_dir": "/scratch", "mpi4py_builder": "node2", "mpi4py_wheel_dir": "/srv"}, KEY),
    ({"mpi4py_version": "4.0.3"}, ""),
    ({"mpi4py_cflags": "-O2"}, ""),
    ({"python_env_python": "managed"}, ""),
]
WITHOUT_OPENMPI = (
    "node2 has no Open MPI at /usr/local/openmpi that mpi4py could be built against; run the role openmpi"
    " before mpi4py."
)
WITHOUT_PYTHON = (
    "python_env_python is managed, and node1 has no Python at /usr/local/cpython that mpi4py could be built for; run"
    " the role python_env before mpi4py."
)
UNKNOWN = (
    "No sha256 of mpi4py 3.1 is known (known are 4.1.2, 4.1.1, 4.0.3); set mpi4py_sha256 to the 64 hex digits that its"
    " publisher names for mpi4py-3.1.tar.gz."
)


@pytest.fixture(autouse=True)
def _without_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys shall not follow the wording of the check."""
    monkeypatch.setattr(mpi4py, "digest", lambda _text: "sum of check")


def decided(*names: str, interpreter: str = "", **given: Any) -> Plan:
    """Return the plan where this run brings Open MPI and Python to all hosts."""
    hosts = [host(name, given, interpreter=interpreter) for name in names or ("node1", "node2")]
    plans = {
        "openmpi": plan("openmpi", OPENMPI, hosts),
        "python_env": plan("cpython", PYTHON, hosts, "3.13.5"),
    }
    return mpi4py.decide(cluster(hosts, "openmpi", "python_env", "mpi4py"), plans)


@pytest.mark.parametrize(("given", "key"), KEYS)
def test_what_shapes_its_bytes_shapes_its_key(given: dict[str, Any], key: str) -> None:
    (artifact,) = decided(**given).artifacts
    assert (artifact.key == KEY) == (key == KEY)
    assert artifact.hosts == ["node1", "node2"]


def test_it_is_built_for_the_managed_python_where_the_environment_has_that() -> None:
    (artifact,) = decided(python_env_python="managed").artifacts
    assert (artifact.inputs["platform"], artifact.inputs["interpreter"]) == (BULLSEYE.replace("3.9", "3.13"), PYTHON)
    assert artifact.build["packages"] == ["gcc", "libc6-dev"], "headers come with that Python"
    assert "/usr/local/cpython/bin/python3" in artifact.build["steps"][0]["argv"]
    assert "/usr/local/cpython" in artifact.proof["stands_on"]
    (artifact,) = decided().artifacts
    assert artifact.build["packages"] == ["gcc", "libc6-dev", "libpython3-dev", "python3-distutils"]
    assert "/usr/bin/python3" in artifact.build["steps"][0]["argv"]


@pytest.mark.parametrize(
    ("interpreter", "taken"),
    [
        ("/usr/bin/python3.11", "/usr/bin/python3.11"),
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("/opt/tools/bin/python3.12", "/usr/bin/python3"),  # such as a virtual environment
        ("/usr/bin/python3.11-config", "/usr/bin/python3"),
        ("auto_silent", "/usr/bin/python3"),
    ],
)
def test_a_newer_python_beside_the_distributions_own_is_taken_where_ansible_uses_it(
    interpreter: str, taken: str
) -> None:
    (artifact,) = decided(interpreter=interpreter).artifacts
    assert artifact.build["steps"][0]["argv"][-2] == taken


@pytest.mark.parametrize(("version", "package"), [("3.11.9", "python311-devel"), ("3.13.5", "python313-devel")])
def test_suse_has_headers_for_each_python(version: str, package: str) -> None:
    suse = {"distribution": {"family": "Suse", "major": "15", "id": "opensuse-leap"}, "python": {"version": version}}
    hosts = [host("node1", {}, node=suse)]
    (artifact,) = mpi4py.decide(cluster(hosts, "openmpi"), {"openmpi": plan("openmpi", OPENMPI, hosts)}).artifacts
    assert artifact.build["packages"] == ["gcc", "glibc-devel", package]
    assert artifact.build["package_options"] == {}


def test_hosts_that_keep_another_open_mpi_get_a_build_of_their_own() -> None:
    def keeps(name: str, key: str) -> Any:
        there = {"link": "/usr/local/openmpi", "key": key, "version": "5.0.7"}
        return host(name, {}, node={"artifacts": [there] if key else []})

    hosts = [keeps("node1", OPENMPI), keeps("node2", ""), keeps("node3", "f" * 16), keeps("node4", OPENMPI)]
    found = mpi4py.decide(cluster(hosts, "mpi4py"), {})
    assert [(one.hosts, one.builders, one.inputs["openmpi"]) for one in found.artifacts] == [
        (["node1", "node4"], ["node1", "node4"], OPENMPI),
        (["node3"], ["node3"], "f" * 16),
    ]
    assert [(one.host, one.problem) for one in found.refusals] == [("node2", WITHOUT_OPENMPI)]


def test_the_managed_python_of_an_earlier_run_is_found_on_the_node() -> None:
    there = {"link": "/usr/local/cpython", "key": "fedcba9876543210", "version": "3.13.5"}
    hosts = [
        host("node1", {"python_env_python": "managed"}, node={"artifacts": artifacts}) for artifacts in ([there], [])
    ]
    plans = {"openmpi": plan("openmpi", OPENMPI, hosts)}
    found = mpi4py.decide(cluster(hosts, "openmpi", "mpi4py"), plans)
    (artifact,) = found.artifacts
    assert artifact.inputs["interpreter"] == "fedcba9876543210"
    assert [one.problem for one in found.refusals] == [WITHOUT_PYTHON]


def test_a_version_without_a_known_sum_is_refused_once() -> None:
    found = decided("node1", "node2", "node3", mpi4py_version="3.1")
    assert [(one.host, one.problem) for one in found.refusals] == [("", UNKNOWN)]
    assert not found.artifacts


def test_two_ranks_prove_which_libmpi_they_have_loaded() -> None:
    (artifact,) = decided().artifacts
    (check,) = artifact.proof["checks"]
    assert check["argv"][0] == "/usr/local/openmpi/bin/mpirun"
    assert check["argv"][-3:] == ["@REAL@/libexec/clusterctl-mpi4py-check", OPENMPI, "@REAL@"]
    assert artifact.install == {
        "library_path": ["lib"],
        "waiting_paths": ["/usr/local/ucx/lib", "/usr/local/openmpi/lib"],
    }
