"""The recipe of the cluster's Python: its keys, what the controller is asked for, refusals, and what is built where."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import python_env
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Artifact, Plan, Refusal
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import WheelError
from clusterctl.support import content
from recipe_clusters import BULLSEYE, Shelf, cluster, host

TARGET = BULLSEYE.replace("3.9", "3.13")
GPU = f"{BULLSEYE}-cuda12"
SHA256 = "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"
NUMPY = {"name": "numpy", "version": "2.0.2", "filename": "numpy-2.0.2-cp39.whl", "sha256": "1" * 64}
TORCH = {"name": "torch", "version": "2.8.0", "filename": "torch-2.8.0-cp39.whl", "sha256": "2" * 64}
TENSORFLOW = {**TORCH, "name": "tensorflow", "version": "2.12.0"}
NCCL = {"name": "nvidia-nccl-cu13", "version": "2.29.7", "filename": "nvidia_nccl.whl", "sha256": "3" * 64}
DRIVER = {"driver_major": 12, "driver_version": "550.54.15"}
# Keys of builds that exist already. Another key costs each site a build of minutes.
KEY = "fea49e136965251c"
MANAGED = {"python_env_python": "managed"}
IDLE = "8 GPUs that jobs cannot use: the driver is in a container below /run/nvidia/driver, where only pods find it"


def decided(*names: str, shelf: Shelf | None = None, platform: str = BULLSEYE, gpus: int = 0, **given: Any) -> Plan:
    """Return the plan of hosts with equal settings."""
    hosts = [host(name, given, platform=platform, gpus=gpus) for name in names or ("node1",)]
    return python_env.decide(cluster(hosts, "python_env", controller=shelf or Shelf(NUMPY, TORCH)), {})


def environment(**given: Any) -> Artifact:
    plan = decided(**given)
    assert not plan.refusals
    return plan.artifacts[-1]


# --- keys ---


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({}, True),
        ({"preflight_work_dir": "/scratch", "python_env_builder": "node1", "python_env_wheel_dir": "/srv"}, True),
        ({"nccl_align": "cluster"}, True),  # these wheels bring no NCCL
        ({"python_env_python_version": "3.12.1"}, True),
        (MANAGED, False),
    ],
)
def test_what_is_built_for_the_nodes_own_python_keeps_its_key(given: dict[str, Any], same: bool) -> None:
    found = environment(**given)
    assert (found.key == KEY, "interpreter" not in found.inputs) == (same, same)
    assert (found.version, found.tree) == (
        ("3.9", f"/usr/local/python_env-3.9-{KEY}") if same else ("3.13", f"/usr/local/python_env-3.13-{found.key}")
    )


def test_an_environment_of_the_managed_python_names_it_and_is_built_after_it_on_the_same_host() -> None:
    base, found = decided("node1", "node2", "node3", **MANAGED).artifacts
    assert (base.name, base.version, found.name, list(found.uses)) == ("cpython", "3.13.5", "python_env", ["cpython"])
    assert base.key == "1488fe8374b81928"
    assert (found.inputs["platform"], found.inputs["interpreter"]) == (TARGET, base.key)
    assert list(base.builders) == list(found.builders) == ["node2", "node3", "node1"]
    assert found.build["steps"][0]["argv"][4] == "/usr/local/cpython/bin/python3.13"
    assert "libssl-dev" in base.build["packages"]
    assert found.build["packages"] == []
    assert found.proof["stands_on"] == ["/usr/local/nccl", "/usr/local/cpython"]
    assert found.proof["checks"][0]["argv"][-1] == "/usr/local/cpython"


def test_each_release_and_source_of_the_interpreter_has_a_key_of_its_own() -> None:
    sites: list[dict[str, Any]] = [
        {},
        {"python_env_python_version": "3.13.6", "python_env_python_sha256": "4" * 64},
        {"python_env_python_sha256": "5" * 64},
        {"platform": BULLSEYE.replace("glibc2.31", "glibc2.36")},
    ]
    keys = [decided(**MANAGED, **given).artifacts[0].key for given in sites]
    assert len(set(keys)) == len(sites)
    elsewhere = {"python_env_python_sources": [{"path": "/srv/python.tar.xz", "sha256": SHA256}]}
    assert decided(**MANAGED, **elsewhere).artifacts[0].key == keys[0], "the same archive"


def test_the_source_is_pythons_own_and_the_distributions() -> None:
    def sources(**given: Any) -> Any:
        return decided(**MANAGED, **given).artifacts[0].build["files"][0]["source"]["sources"]

    assert sources() == [
        {"url": "https://www.python.org/ftp/python/3.13.5/Python-3.13.5.tar.xz", "sha256": SHA256},
        {"apt": {"package": "python3.13", "version": "3.13.5", "sha256": SHA256}},
    ]
    named = sources(python_env_python_version="3.12.1", python_env_python_sha256="3" * 64)
    assert named[0] == {"url": "https://www.python.org/ftp/python/3.12.1/Python-3.12.1.tar.xz", "sha256": "3" * 64}


# --- what the controller is asked for ---


def test_the_framework_is_the_newest_for_the_python_and_its_build_follows_the_gpus() -> None:
    shelf = Shelf(NUMPY, TORCH)
    decided(shelf=shelf, python_env_requirements=["scipy>=1.11"])
    decided(shelf=shelf, **MANAGED)
    decided(shelf=Shelf(NUMPY, TORCH), python_env_framework="none")
    own, managed = shelf.wishes
    assert (own.target, own.first_of) == (BULLSEYE, [["torch==2.8.0+cpu"], ["torch==2.8.0"]])
    assert own.requirements == ["numpy", "cloudpickle", "packaging", "psutil", "pyyaml", "scipy>=1.11"]
    assert (managed.target, managed.first_of[0]) == (TARGET, ["torch==2.13.0+cpu"])
    for build, first in (("auto", ["torch==2.8.0,!=2.8.0+cpu"]), ("cpu", ["torch==2.8.0+cpu"])):
        shelf = Shelf(NUMPY, TORCH, NCCL)
        decided(shelf=shelf, platform=GPU, gpus=8, python_env_framework_build=build)
        assert shelf.wishes[0].first_of[0] == first
    shelf = Shelf(NUMPY)
    decided(shelf=shelf, python_env_framework="none")
    assert (shelf.wishes[0].requirements, shelf.wishes[0].first_of) == (["numpy"], [])


def test_what_others_need_to_know_is_told_and_the_larger_build_is_warned_of() -> None:
    plan = decided("node1", "node2", shelf=Shelf(NUMPY, TORCH, taken=1))
    assert plan.told["wheels"] == {BULLSEYE: (NUMPY, TORCH)}
    assert plan.told["frameworks"][BULLSEYE]["version"] == "2.8.0"
    (warning,) = plan.warnings
    assert warning.startswith(f"{BULLSEYE}: the package index has no CPU build of pytorch 2.8.0, so the common one is")


# --- refusals ---


NO_VERSION = (
    "python_env_framework_version is 'latest', which is not a version; write one like 2.13.0, or leave it empty."
)
NO_RELEASE = "python_env_python_version is '3.13', which is not a release of Python; write one like 3.13.5."
NO_SOURCE = (
    "No source of Python 3.12.1 is known (known are 3.13.5); set python_env_python_sha256 to the sha256 of python.org's"
    " Python-3.12.1.tar.xz, or list sources in python_env_python_sources."
)
NO_CUDA = (
    "python_env_framework_version is 2.8.0+cpu, a build without CUDA, but python_env_framework_build is cuda; drop one"
    " of them."
)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"python_env_framework_version": "latest"}, NO_VERSION),
        ({**MANAGED, "python_env_python_version": "3.13"}, NO_RELEASE),
        ({**MANAGED, "python_env_python_version": "3.12.1"}, NO_SOURCE),
        ({"python_env_framework_version": "2.8.0+cpu", "python_env_framework_build": "cuda"}, NO_CUDA),
    ],
)
def test_what_cannot_be_is_refused_once_and_before_anything_is_asked_for(given: dict[str, Any], problem: str) -> None:
    shelf = Shelf()
    assert decided("node1", "node2", shelf=shelf, **given) == Plan((), [Refusal("", problem)])
    assert shelf.wishes == []


def test_a_platform_without_a_build_is_refused_with_the_hosts_that_it_has() -> None:
    shelf = Shelf()
    plan = decided(
        "node1", "node2", shelf=shelf, platform="debian-14-x86_64-glibc2.43-py3.14", python_env_framework="tensorflow"
    )
    assert [refusal.host for refusal in plan.refusals] == ["node1", "node2"]
    assert plan.refusals[0].problem.startswith("TensorFlow has no build for CPUs for Python 3.14 on x86_64")
    assert shelf.wishes == []


def test_gpus_that_jobs_cannot_use_are_refused_before_an_index_is_asked() -> None:
    shelf = Shelf()
    one = host("node1", {}, idle_gpus=IDLE)
    (refusal,) = python_env.decide(cluster([one], controller=shelf), {}).refusals
    assert refusal.problem.startswith(f"node1 has {IDLE}; a framework for CPUs would leave them unused.")
    assert shelf.wishes == []


def test_hosts_of_one_platform_that_ask_for_different_packages_are_named() -> None:
    shelf = Shelf()
    hosts = [
        host("node1", {}),
        host("node2", {"python_env_requirements": ["scipy"]}),
        host("node3", {}),
        host("node4", {"python_env_framework": "none"}, platform=GPU),
    ]
    (refusal,) = python_env.decide(cluster(hosts, controller=shelf), {}).refusals
    assert refusal.problem.endswith("which get the same bytes; they differ between node1, node2.")
    assert shelf.wishes == []


def test_an_index_without_the_wheels_is_one_sentence_and_a_refusal_before_asks_no_index() -> None:
    shelf = Shelf(refuses=WheelError("numpy has no wheel."))
    assert decided(shelf=shelf).refusals == [Refusal("", "numpy has no wheel.")]
    shelf = Shelf()
    before = {"openmpi": Plan((), [Refusal("", "no source")])}
    plan = python_env.decide(cluster([host("node1", {"python_env_framework_version": "x"})], controller=shelf), before)
    assert (len(plan.refusals), shelf.wishes) == (1, [])
    plan = python_env.decide(cluster([host("node1", {})], controller=shelf), before)
    assert (list(plan.refusals), list(plan.artifacts), plan.told, shelf.wishes) == ([], [], {}, [])


@pytest.mark.parametrize(
    ("asked", "gpus", "wheels", "problem"),
    [
        ("auto", 8, (TENSORFLOW,), "but what the index has of TensorFlow 2.12.0 brings no CUDA; name a version"),
        ("auto", 8, (TORCH,), "and pytorch 2.8.0 of the index brings no CUDA; name a version that does"),
        ("cuda", 0, (TORCH,), "but what the index has of PyTorch 2.8.0 brings no CUDA; name a version that does"),
        ("auto", 8, (TORCH, NCCL), ""),
        ("auto", 0, (TORCH,), ""),
        ("cpu", 8, (TENSORFLOW,), ""),
        ("auto", 8, (NUMPY,), ""),
    ],
)
def test_gpus_get_no_framework_without_cuda_unless_it_is_asked_for(
    asked: str, gpus: int, wheels: tuple[dict[str, str], ...], problem: str
) -> None:
    plan = decided(shelf=Shelf(*wheels), platform=GPU, gpus=gpus, python_env_framework_build=asked)
    if problem:
        assert problem in plan.refusals[0].problem
        assert plan.refusals[0].problem.endswith("or set python_env_framework_build to cpu.")
        assert (list(plan.artifacts), plan.told) == ([], {})
    else:
        assert plan.artifacts


def test_only_the_host_whose_driver_is_too_old_is_refused() -> None:
    hosts = [
        host("node1", {}, platform=GPU, gpus=8, cuda={**DRIVER, "driver_major": 13}),
        host("node2", {}, platform=GPU, gpus=8, cuda=DRIVER),
    ]
    (refusal,) = python_env.decide(cluster(hosts, controller=Shelf(TORCH, NCCL)), {}).refusals
    assert refusal == Refusal(
        "node2",
        "pytorch 2.8.0 was built for CUDA 13, and the NVIDIA driver 550.54.15 of node2 runs CUDA up to 12; install a"
        " newer driver there, choose a release or build for that CUDA (python_env_framework_version), or set"
        " python_env_framework_build to cpu.",
    )


# --- what is built, and for whom ---


@pytest.mark.parametrize(
    ("given", "linked"),
    [
        ({}, False),
        ({"nccl_align": "cluster"}, True),
        ({"nccl_align": "cluster", "python_env_nccl": "bundled"}, False),
        ({"python_env_nccl": "cluster"}, True),
    ],
)
def test_a_framework_loads_the_clusters_nccl_where_that_is_wanted(given: dict[str, Any], linked: bool) -> None:
    found = environment(shelf=Shelf(TORCH, NCCL), platform=GPU, gpus=1, **given)
    assert found.inputs["nccl_align"] == ("cluster" if linked else "bundled")
    assert ("libnccl.so.*" in found.install["closure_ignore"]) is linked
    assert (found.build["steps"][-1]["argv"] != ["true"]) is linked


def test_each_platform_gets_its_own_and_equal_hosts_share_one() -> None:
    hosts = [
        host("node1", {}),
        host("node2", {}, platform=GPU),
        host("node3", {}),
        host("node4", {"python_env_nccl": "cluster"}),
    ]
    found = python_env.decide(cluster(hosts, controller=Shelf(TORCH, NCCL)), {}).artifacts
    assert [list(one.hosts) for one in found] == [["node1", "node3"], ["node2"], ["node4"]]
    assert len({one.key for one in found}) == 3


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
    one = host("node1", {}, interpreter=interpreter)
    (found,) = python_env.decide(cluster([one], controller=Shelf(NUMPY, TORCH)), {}).artifacts
    assert found.build["steps"][0]["argv"][4] == taken
    assert found.build["packages"] == ["python3-distutils"]
    assert found.key == KEY


# --- its programs ---


@pytest.mark.programs
def test_a_python_without_a_module_names_it(tmp_path: Path) -> None:
    argv = [sys.executable, str(content.root() / "roles" / "python_env" / "files" / "modules_check.py")]
    whole = subprocess.run([*argv, "zlib", "_ssl"], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert (whole.returncode, whole.stdout.split(" has ")[1]) == (0, "zlib, _ssl.\n")
    done = subprocess.run([*argv, "zlib", "_none"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert re.match(r"Python 3\.\S+ lacks _none \(.*; install the headers of these libraries", done.stderr)


UV_FOUND = "Checked 34 packages in 450ms\nFound {} incompatibilit{}\n{}"
OF_PLATFORM = "The package `nvidia-cusparselt-cu13` was built for a different platform\n"
MISSING = "The package `torch` requires `sympy`, but it's not installed\n"


@pytest.mark.programs
@pytest.mark.parametrize(
    ("said", "status", "passes"),
    [
        ("Checked 34 packages in 450ms\nAll installed packages are compatible\n", 0, True),
        (UV_FOUND.format(1, "y", OF_PLATFORM), 1, True),
        (UV_FOUND.format(1, "y", MISSING), 1, False),
        (UV_FOUND.format(2, "ies", OF_PLATFORM + MISSING), 1, False),
        ("error: no Python\n", 2, False),
    ],
)
def test_a_wheel_that_names_another_platform_inside_is_no_fault_and_a_missing_package_is(
    said: str, status: int, passes: bool
) -> None:
    program = content.root() / "roles" / "python_env" / "files" / "dependencies_check.py"
    uv = [sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1]); sys.exit(int(sys.argv[2]))"]
    argv = [sys.executable, str(program), *uv, said, str(status)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0 if passes else status, said)
