"""The recipe of Horovod: its keys, its refusals, where it goes, and which operations it has for GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import horovod
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Host, Plan
from recipe_clusters import BULLSEYE, cluster, host, plan

OPENMPI = "a4e3643e491bb580"
NCCL = "9" * 16
PYTHON = "0123456789abcdef"
CPU = {"name": "pytorch", "version": "2.8.0", "cuda": "", "nccl": "", "sha256": "2" * 64}
CUDA = {**CPU, "cuda": "12", "nccl": "2.27.3"}
TENSORFLOW = {**CPU, "name": "tensorflow", "version": "2.12.0"}
# The key of a build that exists already. Another key costs each site a build of minutes.
KEY = "79b416b519087743"
GPUS = {"gpus": 8, "cuda": {"driver_major": 12}}
TOOLKIT = {"cuda": {"toolkit_version": "12.8"}}


@pytest.fixture(autouse=True)
def _without_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys shall not follow the wording of the role's programs."""
    monkeypatch.setattr(horovod, "role_file", lambda _role, name: name)
    sums = {"clusterctl-horovod-check": "sum of check", "edit_source.py": "sum of edits"}
    monkeypatch.setattr(horovod, "digest", sums.__getitem__)


def decided(
    framework: dict[str, str],
    members: Sequence[dict[str, Any]] = ({}, {}),
    *,
    nccl: Sequence[int] | None = None,
    installed: Sequence[str] = ("openmpi", "python_env", "nccl", "horovod"),
    kept: Sequence[dict[str, str]] = (),
    **given: Any,
) -> Plan:
    """Return the plan of hosts node1, node2, ...

    Args:
        framework: what their environment has.
        members: what preflight says of each.
        nccl: places of those that get NCCL; None where nothing was decided about it.
        installed: roles that this run installs.
        kept: artifacts that all hosts have already.
        given: values of variables.
    """
    node = {"artifacts": list(kept)}
    hosts: list[Host] = [host(f"node{at}", given, node=node, **member) for at, member in enumerate(members, 1)]
    python = plan("cpython", PYTHON, hosts, "3.13.5", frameworks={BULLSEYE: framework})
    plans = {"openmpi": plan("openmpi", OPENMPI, hosts), "python_env": python}
    if nccl is not None:
        plans["nccl"] = plan("nccl", NCCL, [hosts[at] for at in nccl])
    roles = [role for role in installed if role in {*plans, "horovod"}]
    return horovod.decide(cluster(hosts, *roles), plans)


def operations(framework: dict[str, str], member: dict[str, Any], **given: Any) -> list[str]:
    found = decided(framework, [member], **given)
    return [one.inputs["gpu_operations"] for one in found.artifacts] or [one.problem for one in found.refusals]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, KEY),
        ({"preflight_work_dir": "/scratch", "horovod_builder": "node2", "horovod_make_jobs": 3}, KEY),
        ({"horovod_gloo": "yes", "horovod_with": "pytorch", "horovod_gpu_operations": "none"}, KEY),  # text of -e
        ({"horovod_gloo": "no"}, ""),
        ({"horovod_skip_edits": ["pytorch-standard"]}, ""),
        ({"horovod_cxxflags": "-O0"}, ""),
        ({"horovod_arch_flags": "-march=native"}, ""),
        ({"horovod_archive": "/srv/horovod.tar.gz", "horovod_sha256": "a" * 64}, ""),
        ({"python_env_python": "managed"}, ""),
    ],
)
def test_what_shapes_its_bytes_shapes_its_key(given: dict[str, Any], key: str) -> None:
    (artifact,) = decided(CPU, **given).artifacts
    assert (artifact.key == KEY) == (key == KEY)
    assert artifact.hosts == ["node1", "node2"]


def test_it_is_built_for_the_managed_python_where_the_environment_has_that() -> None:
    (artifact,) = decided(CPU, python_env_python="managed").artifacts
    assert (artifact.inputs["platform"], artifact.inputs["interpreter"]) == (BULLSEYE.replace("3.9", "3.13"), PYTHON)
    assert "libpython3-dev" not in artifact.build["packages"]
    assert artifact.build["steps"][4]["argv"][-1].startswith("@WORK@/tools/lib/python3.13/")


@pytest.mark.parametrize(
    ("install", "framework", "gets"), [("auto", {}, False), ("never", CPU, False), ("always", CPU, True)]
)
def test_it_goes_where_it_is_wanted(install: str, framework: dict[str, str], gets: bool) -> None:
    found = decided(framework, horovod_install=install)
    assert (len(found.artifacts), len(found.refusals)) == (int(gets), 0)


REFUSED: list[tuple[dict[str, Any], dict[str, str], str]] = [
    (
        {"horovod_install": "always"},
        {},
        (
            "horovod_install is always, and the environment of node1 has no framework to build Horovod for; set"
            " python_env_framework to pytorch or tensorflow, or horovod_install to auto."
        ),
    ),
    (
        {"horovod_with": ["tensorflow"]},
        CPU,
        (
            "horovod_with asks for tensorflow, and the environment of node1 has pytorch; set python_env_framework to"
            " what Horovod is to be built for, or leave horovod_with empty."
        ),
    ),
    (
        {"horovod_gpu_operations": "NCCL"},
        CPU,
        (
            "horovod_gpu_operations is NCCL, and the pytorch 2.8.0 of node1 is a CPU build; set"
            " python_env_framework_build to cuda, or horovod_gpu_operations to auto or none."
        ),
    ),
    (
        {"horovod_gpu_operations": "NCCL", "nccl": []},
        CUDA,
        (
            "horovod_gpu_operations is NCCL, and node1 gets no NCCL; set nccl_install to always, or"
            " horovod_gpu_operations to auto, MPI or none."
        ),
    ),
    (
        {"horovod_gpu_operations": "MPI"},
        CUDA,
        (
            f"Horovod's MPI operations need nvcc, and no host of platform {BULLSEYE} has a CUDA toolkit in"
            " /usr/local/cuda; install CUDA 12 on one of them (its folder goes into horovod_cuda_home, the host into"
            " horovod_builder), or set horovod_gpu_operations to none."
        ),
    ),
    (
        {"installed": ["horovod"]},
        CPU,
        (
            "node1 has no Open MPI at /usr/local/openmpi that Horovod could be built against; run the role openmpi"
            " before horovod."
        ),
    ),
    (
        {"horovod_gpu_operations": "NCCL", "horovod_cuda_home": "/opt/cuda"},
        CUDA,
        "node1 has no NCCL at /usr/local/nccl that Horovod could be built against; run the role nccl before horovod.",
    ),
    (
        {"installed": ["openmpi", "horovod"], "python_env_python": "managed"},
        CPU,
        (
            "python_env_python is managed, and node1 has no Python at /usr/local/cpython that Horovod could be built"
            " for; run the role python_env before horovod."
        ),
    ),
]


@pytest.mark.parametrize(("given", "framework", "problem"), REFUSED)
def test_what_cannot_be_built_is_refused_for_each_host(
    given: dict[str, Any], framework: dict[str, str], problem: str
) -> None:
    found = decided(framework, **given)
    assert [(one.host, one.problem) for one in found.refusals] == [
        ("node1", problem),
        ("node2", problem.replace("node1", "node2")),
    ]
    assert not found.artifacts


@pytest.mark.parametrize(
    ("given", "named", "file"),
    [
        ({"horovod_version": "0.27.0"}, "Horovod 0.27.0", "horovod-0.27.0.tar.gz"),
        ({"horovod_archive": "/srv/x.tar.gz"}, "/srv/x.tar.gz", "x.tar.gz"),
    ],
)
def test_a_source_without_a_known_sum_is_refused_once(given: dict[str, str], named: str, file: str) -> None:
    found = decided(CUDA, [{}, GPUS], nccl=[1], horovod_cuda_home="/opt/cuda", **given)
    assert [(one.host, one.problem) for one in found.refusals] == [
        (
            "",
            (
                f"No sha256 of {named} is known (known are the releases 0.28.1); set horovod_sha256 to the 64 hex"
                f" digits that its publisher names for {file}."
            ),
        )
    ]


def test_a_cuda_framework_on_nodes_without_gpus_needs_no_nvcc() -> None:
    """The index has no CPU build of PyTorch for Python 3.9, so such nodes get the one with CUDA."""
    assert operations(CUDA, {}, nccl=[0]) == ["none"]


@pytest.mark.parametrize(
    ("framework", "member", "given", "expected"),
    [
        (CUDA, TOOLKIT, {"nccl": [0]}, "NCCL"),
        (CPU, TOOLKIT, {"nccl": [0]}, "none"),
        (CUDA, {}, {"nccl": [0], "horovod_cuda_home": "/opt/cuda-12.8"}, "NCCL"),
        (CUDA, TOOLKIT, {"nccl": []}, "none"),
        (CUDA, TOOLKIT, {}, "none"),
        (CUDA, TOOLKIT, {"horovod_gpu_operations": "MPI"}, "MPI"),
        (CUDA, GPUS, {"nccl": []}, "none"),
    ],
)
def test_operations_follow_framework_nccl_and_gpus(
    framework: dict[str, str], member: dict[str, Any], given: dict[str, Any], expected: str
) -> None:
    assert operations(framework, member, **given) == [expected]


@pytest.mark.parametrize(("nccl", "key"), [(None, "8" * 16), ([0], "8" * 16), ([], "")])
def test_an_nccl_of_an_earlier_run_counts_unless_the_host_shall_have_none(nccl: list[int] | None, key: str) -> None:
    there = {"link": "/usr/local/nccl", "key": "8" * 16, "version": "2.27.3"}
    (artifact,) = decided(CUDA, [TOOLKIT], nccl=nccl, kept=[there], installed=["openmpi", "horovod"]).artifacts
    assert artifact.inputs["nccl"] == key


def test_a_gpu_without_nvcc_is_refused_before_nccl_is_installed() -> None:
    (problem,) = operations(CUDA, GPUS, nccl=[0])
    assert problem.startswith("Horovod's NCCL operations need nvcc")


def test_hosts_with_and_without_nccl_get_builds_of_their_own() -> None:
    found = decided(CUDA, [{}, {**GPUS, **TOOLKIT}, GPUS, {}], nccl=[1, 2]).artifacts
    assert [(one.hosts, one.inputs["nccl"], one.builders[0]) for one in found] == [
        (["node1", "node4"], "", "node4"),
        (["node2", "node3"], NCCL, "node2"),  # node2 alone has a toolkit
    ]


@pytest.mark.parametrize(
    ("members", "given", "first"),
    [
        ([{}, {}, {}], {}, "node2"),
        ([{}, {}, {}], {"horovod_builder": "node3"}, "node3"),
        ([{}, {"builds": False}, {}], {}, "node3"),
        ([{}, {"trees": ["horovod"]}, {}], {}, "node1"),
        ([{}], {}, "node1"),
    ],
)
def test_it_is_built_beside_mpi4py(members: list[dict[str, Any]], given: dict[str, Any], first: str) -> None:
    (artifact,) = decided(CPU, members, **given).artifacts
    assert artifact.builders[0] == first


def test_the_build_names_the_headers_that_newer_compilers_do_not_bring_unasked() -> None:
    """Without them, GCC 16 refuses five files: uint8_t in Gloo, std::string and std::logic_error in Horovod."""
    (artifact,) = decided(CPU, horovod_cxxflags="-O1").artifacts
    (environment,) = [step["environment"] for step in artifact.build["steps"] if step["name"] == "compile"]
    flags = environment["CLUSTERCTL_CXXFLAGS"].split()
    assert flags[0] == "-O1"
    assert [flags[at + 1] for at, word in enumerate(flags) if word == "-include"] == ["cstdint", "stdexcept", "string"]


def test_the_check_before_the_build_knows_what_the_builder_must_have() -> None:
    (artifact,) = decided(CUDA, [TOOLKIT], nccl=[0]).artifacts
    needs = json.loads(artifact.build["steps"][0]["argv"][-1])
    assert (needs["openmpi_key"], needs["nccl_key"], needs["cuda"], needs["cc_list"]) == (
        OPENMPI,
        NCCL,
        "12",
        "70,80,90",
    )
    promise = json.loads(artifact.proof["checks"][0]["argv"][-1])
    assert (promise["operations"], promise["nccl_key"]) == (["MPI", "Gloo", "NCCL"], NCCL)


def test_a_build_for_tensorflow_leaves_out_what_has_no_compiled_half() -> None:
    (artifact,) = decided(TENSORFLOW).artifacts
    assert "site-packages/horovod/torch" in artifact.build["prune"]
    assert "/usr/local/python_env/lib/python3.9/site-packages/tensorflow" in artifact.install["waiting_paths"]
    assert "horovod.tensorflow" in artifact.build["steps"][-1]["argv"][-1]


def test_an_archive_of_ones_own_replaces_the_releases() -> None:
    sources = [
        decided(CPU, horovod_archive=archive, horovod_sha256="a" * 64)
        .artifacts[0]
        .build["files"][2]["source"]["sources"]
        for archive in ("/srv/x.tar.gz", "https://mirror.example/x.tar.gz")
    ]
    assert [list(source[0]) for source in sources] == [["path", "sha256"], ["url", "sha256"]]
