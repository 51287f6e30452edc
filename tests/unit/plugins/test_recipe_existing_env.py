"""The recipe for an environment that the user made: each refusal, what is told to other recipes, and the keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import existing_env, horovod, mpi4py, python_env
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Host, Plan, Refusal
from recipe_clusters import Shelf, cluster, host, plan

PLATFORM = "debian-12-x86_64-glibc2.36-py3.11"
GPU = f"{PLATFORM}-cuda12"
PATH = "/opt/pytorch"
FOLDER = f"{PATH}/lib/python3.11/site-packages"
PACKAGES = {
    "numpy": "2.3.1",
    "torch": "2.7.0+cu126",
    "cloudpickle": "3",
    "packaging": "25",
    "psutil": "7",
    "pyyaml": "6",
}
LOOK: dict[str, Any] = {
    "path": PATH,
    "folder": PATH,
    "problem": "",
    "cure": "",
    "kind": "venv",
    "interpreter": f"{PATH}/bin/python",
    "real": "/usr/bin/python3.11",
    "version": "3.11.2",
    "machine": "x86_64",
    "base": "/usr",
    "headers": False,
    "shares": False,
    "folders": [FOLDER],
    "packages": PACKAGES,
    "cuda": {"torch": "12.6"},
    "nccl": {"path": f"{FOLDER}/nvidia/nccl/lib/libnccl.so.2", "version": "2.26.2"},
    "mpi": {},
}
OWN = {"base": "/opt/python", "real": "/opt/python/bin/python3.12", "version": "3.12.4", "headers": True}
CPU = {"packages": {**PACKAGES, "torch": "2.7.0+cpu"}, "cuda": {}, "nccl": {"path": "", "version": ""}}
DRIVER = {"driver_major": 11, "driver_version": "470.1"}


def on(
    name: str, *, platform: str = PLATFORM, path: str = PATH, gpus: int = 0, driver: Any = None, **look: Any
) -> Host:
    """Return a host whose variables name the environment; ``given`` of ``look`` has more variables."""
    given = {"python_env_existing": path, **look.pop("given", {})}
    node = {"existing_python": {**LOOK, "path": path, **look}, "python": {"version": "3.11.2"}}
    return host(name, given, node=node, platform=platform, gpus=gpus, cuda=driver or {})


def decided(*hosts: Host) -> Plan:
    return python_env.decide(cluster(hosts, "python_env", "openmpi", "mpi4py", "horovod", controller=Shelf()), {})


def one_line(text: str) -> str:
    return " ".join(text.split())


def said(*hosts: Host) -> list[str]:
    found = decided(*hosts)
    assert not found.artifacts
    return [one.problem for one in found.refusals]


def test_equal_hosts_share_an_environment_that_leads_to_theirs() -> None:
    found = decided(on("node1"), on("node2"))
    (one,) = found.artifacts
    assert (one.name, one.version, list(one.hosts)) == ("python_env", "3.11", ["node1", "node2"])
    assert (one.inputs["existing"], one.inputs["python"], one.inputs["packages"]) == (PATH, "3.11.2", PACKAGES)
    assert one.proof["checks"][0]["argv"][3:] == ["pytorch", "2.7.0+cu126", "", FOLDER]
    assert found.told["frameworks"] == {
        PLATFORM: {"name": "pytorch", "version": "2.7.0+cu126", "cuda": "12", "nccl": "2.26.2", "sha256": ""}
    }


def test_links_may_lead_to_an_environment_elsewhere_and_nowhere_else() -> None:
    (one,) = decided(on("node1")).artifacts
    assert (one.build["links_to"], one.install["links_to"]) == ([], [])
    its = {"folder": "/srv/env", "interpreter": "/srv/env/bin/python", "folders": ["/srv/env/lib/python3.11"]}
    own = {"base": "/data/python", "real": "/data/python/bin/python3.12", "version": "3.12.4", "headers": True}
    (one,) = decided(on("node1", path="/srv/env", **its, **own)).artifacts
    assert one.build["links_to"] == ["/srv/env", "/data/python", "/data/python/bin"]
    assert one.install["links_to"] == one.build["links_to"]


def test_each_package_and_python_has_a_key_of_its_own() -> None:
    looks: list[dict[str, Any]] = [{}, {"packages": {**PACKAGES, "numpy": "2.3.2"}}, {"version": "3.11.3"}, OWN]
    assert len({decided(on("node1", **look)).artifacts[0].key for look in looks}) == len(looks)


def test_another_platform_may_have_wheels_or_another_environment() -> None:
    other = host("node2", {"python_env_framework": "none"}, platform=GPU)
    wheel = {"name": "numpy", "version": "2.0.2", "filename": "numpy.whl", "sha256": "1" * 64}
    hosts = [on("node1"), other, on("node3", platform="debian-13-x86_64-glibc2.41-py3.13", path="/opt/other")]
    found = python_env.decide(cluster(hosts, "python_env", controller=Shelf(wheel)), {})
    assert [list(one.hosts) for one in found.artifacts] == [["node1"], ["node3"], ["node2"]]
    assert set(found.told["frameworks"]) == {one.platform for one in hosts}


@pytest.mark.parametrize(
    ("hosts", "problem"),
    [
        (
            [on("node1", path="opt/x")],
            """python_env_existing is 'opt/x'; write an absolute path of letters, digits and the signs . _ + -
            alone, such as /opt/pytorch.""",
        ),
        (
            [host("node1", {"python_env_existing": PATH}, platform=PLATFORM)],
            """node1 was not asked about /opt/pytorch; set python_env_existing in the inventory or with -e, where
            the look at the nodes reads it.""",
        ),
        (
            [on("node1"), on("node2", problem="/opt/pytorch does not exist", cure="make it there too")],
            "node2: /opt/pytorch does not exist; make it there too.",
        ),
        (
            [on("node1", given={"python_env_python": "managed"})],
            """python_env_existing is /opt/pytorch, which has its own Python, and python_env_python is managed;
            set one of them.""",
        ),
        (
            [on("node1", given={"python_env_lock": "uv.lock"})],
            "python_env_existing is /opt/pytorch, and python_env_lock is uv.lock; set one of them.",
        ),
        (
            [on("node1", given={"python_env_requirements": ["scipy"]})],
            """Nothing is installed into /opt/pytorch, and python_env_requirements names packages; install them
            there yourself and leave python_env_requirements empty, or leave python_env_existing empty.""",
        ),
        (
            [on("node1", version="3.8.10")],
            "/opt/pytorch has Python 3.8.10, and the checks need 3.9 or newer; make it with a newer Python.",
        ),
        (
            [on("node1", machine="aarch64")],
            f"""/usr/bin/python3.11, the Python of /opt/pytorch, is a program for aarch64, and the platform is
            {PLATFORM}; make the environment on a node of this platform.""",
        ),
        (
            [on("node1", packages={"torch": "2.7.0"})],
            "/opt/pytorch has no numpy, which the checks of clusterctl need; install it there.",
        ),
        (
            [on("node1"), host("node2", {}, platform=PLATFORM)],
            """python_env_existing must be the same on all hosts of one platform; it is /opt/pytorch on node1,
            none on node2.""",
        ),
        (
            [on("node1", packages={"numpy": "2.3.1"})],
            """/opt/pytorch has no PyTorch, and python_env_framework is pytorch; install it there, or set
            python_env_framework to none.""",
        ),
        (
            [on("node1", packages={"numpy": "2.3.1", "tensorflow": "2.21.0"})],
            """/opt/pytorch has no PyTorch, and python_env_framework is pytorch; install it there, or set
            python_env_framework to tensorflow or none.""",
        ),
        (
            [on("node1", given={"python_env_framework_version": "2.8.0"})],
            """python_env_framework_version is 2.8.0, and /opt/pytorch has PyTorch 2.7.0+cu126; install that
            release there, or leave python_env_framework_version empty.""",
        ),
        (
            [on("node1", given={"python_env_framework_build": "cuda"}, **CPU)],
            """python_env_framework_build is cuda, and PyTorch 2.7.0+cpu of /opt/pytorch is a build without CUDA;
            install a build with CUDA there, or set python_env_framework_build to cpu.""",
        ),
        (
            [on("node1", platform=GPU, gpus=8, **CPU)],
            f"""{GPU} has GPUs, and PyTorch 2.7.0+cpu of /opt/pytorch is a build without CUDA; install a build with
            CUDA there, or set python_env_framework_build to cpu.""",
        ),
        (
            [on("node1", platform=GPU, gpus=8, driver=DRIVER)],
            """PyTorch 2.7.0+cu126 of /opt/pytorch was built for CUDA 12, and the NVIDIA driver 470.1 of node1
            runs CUDA up to 11; install a newer driver, or a build for that CUDA.""",
        ),
        (
            [on("node1", given={"nccl_align": "cluster"})],
            """PyTorch of /opt/pytorch loads its own NCCL 2.26.2, and nothing is changed there; set nccl_align to
            framework or report, and leave python_env_nccl empty.""",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(hosts: list[Host], problem: str) -> None:
    assert said(*hosts) == [one_line(problem)]


def test_what_differs_is_named_by_node_and_package_in_one_refusal() -> None:
    hosts = [
        on("node1"),
        on("node2"),
        on("node3", packages={**PACKAGES, "numpy": "2.1.0"}),
        on("node4", packages={"numpy": "2.3.1"}, cuda={}),
    ]
    (refusal,) = decided(*hosts).refusals
    problem = """node3: /opt/pytorch has numpy 2.1.0 and the others 2.3.1; node4: /opt/pytorch has no cloudpickle,
        packaging, psutil, pyyaml, torch, which the others have; make /opt/pytorch the same on all nodes of the
        platform."""
    assert refusal == Refusal("node3", one_line(problem))


def test_two_nodes_are_compared_by_name_and_another_python_counts() -> None:
    other = {**OWN, "cuda": {"torch": ""}, "packages": {**PACKAGES, "scipy": "1.17.0"}}
    problem = """node2: /opt/pytorch has Python 3.12.4 of /opt/python/bin/python3.12 and node1 Python 3.11.2 of
        /usr/bin/python3.11, the base /opt/python and node1 the base /usr, torch without CUDA and node1 torch for CUDA
        12.6, scipy 1.17.0, which node1 lacks; make /opt/pytorch the same on all nodes of the platform."""
    assert said(on("node1"), on("node2", **other)) == [one_line(problem)]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("base", "/opt/python", "the base /opt/python and node1 the base /usr"),
        ("interpreter", f"{PATH}/bin/python3", f"{PATH}/bin/python3 and node1 {PATH}/bin/python"),
        ("folders", ["/srv/evil"], f"packages in /srv/evil and node1 packages in {FOLDER}"),
    ],
)
def test_what_the_clusters_leads_to_is_the_same_on_all_nodes(field: str, value: Any, words: str) -> None:
    problem = f"node2: {PATH} has {words}; make {PATH} the same on all nodes of the platform."
    assert said(on("node1"), on("node2", **{field: value})) == [problem]


def test_a_framework_that_is_not_wanted_is_not_asked_for() -> None:
    found = decided(on("node1", packages={"numpy": "2.3.1"}, given={"python_env_framework": "none"}))
    assert found.told["frameworks"][PLATFORM]["name"] == ""
    assert found.artifacts


# --- what is built for it ---


def built(recipe: Any, one: Host, **given: Any) -> Any:
    """Return what mpi4py or Horovod decides for a host that has everything else."""
    everything = cluster([one], "python_env", "openmpi", "mpi4py", "horovod", "nccl", controller=Shelf())
    plans = {"openmpi": plan("openmpi", "o" * 16, [one]), "nccl": plan("nccl", "n" * 16, [one])}
    plans["python_env"] = python_env.decide(everything, {})
    assert not plans["python_env"].refusals
    return recipe.decide(everything, plans, **given)


def test_mpi4py_for_a_venv_of_the_distributions_python_is_the_build_that_exists_already() -> None:
    own = host("node1", {}, platform=PLATFORM, node={"python": {"version": "3.11.2"}})
    plans = {"openmpi": plan("openmpi", "o" * 16, [own])}
    (usual,) = mpi4py.decide(cluster([own], "python_env", "openmpi", "mpi4py"), plans).artifacts
    (found,) = built(mpi4py, on("node1")).artifacts
    assert found.key == usual.key
    assert found.build["packages"] == usual.build["packages"]
    assert found.build["steps"][0]["argv"][-2] == f"{PATH}/bin/python"


def test_mpi4py_for_an_environment_with_its_own_python_has_a_key_and_headers_of_its_own() -> None:
    (found,) = built(mpi4py, on("node1", **OWN)).artifacts
    assert found.inputs["platform"] == PLATFORM.replace("3.11", "3.12")
    assert found.inputs["interpreter"]
    assert not [name for name in found.build["packages"] if "python" in name]


@pytest.mark.parametrize(
    ("look", "problem"),
    [
        (
            {**OWN, "headers": False},
            """mpi4py is compiled with Python.h, and /opt/python on node1, the Python of /opt/pytorch, has none;
            install the headers of Python 3.12 there.""",
        ),
        ({**OWN, "base": "/usr", "headers": False}, "install the headers of Python 3.12 there."),
        ({}, ""),
    ],
)
def test_a_python_without_headers_is_refused_before_a_build(look: dict[str, Any], problem: str) -> None:
    found = [one.problem for one in built(mpi4py, on("node1", **look)).refusals]
    assert [one.endswith(one_line(problem)) for one in found] == ([True] if problem else [])


def with_mpi4py(name: str, library: str, **more: Any) -> Host:
    packages = {**PACKAGES, "mpi4py": "4.0.1"}
    its = {"folder": FOLDER, "library": library, "nccl": "", "framework": ""}
    return on(name, packages=packages, mpi={"mpi4py": its}, **more)


def test_an_mpi4py_that_was_built_against_the_clusters_open_mpi_is_taken() -> None:
    theirs = with_mpi4py("node1", "/usr/local/openmpi/lib/libmpi.so.40", given={"mpi4py_version": "9"})
    found = built(mpi4py, theirs)
    (one,) = found.artifacts
    assert (one.version, one.inputs["taken_from"], list(found.warnings)) == ("4.0.1", f"{FOLDER}/mpi4py", [])
    assert [step["name"] for step in one.build["steps"]] == ["folder", "link", "check", "load"], "nothing is compiled"
    assert "packages" not in one.build
    assert (one.build["links_to"], one.install["links_to"]) == ([], [])
    ((*_mpirun, key, folder),) = (check["argv"] for check in one.proof["checks"])
    assert (key, folder) == (one.inputs["openmpi"], f"{FOLDER}/mpi4py")


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("libmpi.so.40", "takes libmpi.so.40 of the system; jobs get the cluster's own mpi4py"),
        ("/opt/mpich/lib/libmpi.so.12", "was built against /opt/mpich/lib/libmpi.so.12; jobs"),
        ("/usr/local/openmpi-0.9-0000/lib/libmpi.so.40", "was built against /usr/local/openmpi-0.9-0000/lib"),
        ("", "names no library of MPI; jobs"),
    ],
)
def test_an_mpi4py_of_another_mpi_is_told_and_ours_is_built(library: str, words: str) -> None:
    found = built(mpi4py, with_mpi4py("node1", library))
    (one,) = found.artifacts
    plain = built(mpi4py, on("node1"))
    assert one.key == plain.artifacts[0].key
    (warning,) = found.warnings
    assert warning.startswith(f"mpi4py 4.0.1 of /opt/pytorch {words}")
    assert warning.endswith("build it with MPICC=/usr/local/openmpi/bin/mpicc)")
    assert not plain.warnings


def test_nodes_whose_mpi4py_loads_different_libraries_are_refused() -> None:
    hosts = [with_mpi4py("node1", "/usr/local/openmpi/lib/libmpi.so.40"), with_mpi4py("node2", "libmpi.so.40")]
    (problem,) = said(*hosts)
    assert "mpi4py for libmpi.so.40 and node1 mpi4py for /usr/local/openmpi/lib/libmpi.so.40" in problem


def with_horovod(**its: Any) -> Host:
    """Return a host with a Horovod that fits the cluster; ``its`` are other values of what the look tells of it."""
    more = {name: its.pop(name) for name in ("given", "packages", "cuda", "headers", "base") if name in its}
    fits = {"folder": FOLDER, "library": f"{OPENMPI}/lib/libmpi.so.40", "nccl": "", "framework": "2.7.0+cpu", **its}
    packages = {**CPU["packages"], "horovod": "0.28.0", **more.pop("packages", {})}
    return on("node1", **{**CPU, "packages": packages, "mpi": {"horovod-pytorch": fits}, **more})


OPENMPI = "/usr/local/openmpi"
WITH_NCCL = {
    "nccl": "/usr/local/nccl/lib/libnccl.so.2",
    "framework": "2.7.0+cu126",
    "packages": {"torch": "2.7.0"},  # as PyPI names it
    "cuda": {"torch": "12.6"},
    "given": {"horovod_gpu_operations": "NCCL"},
}


def test_a_horovod_that_was_built_for_this_cluster_is_taken() -> None:
    theirs = with_horovod(given={"horovod_version": "9"}, base="/opt/python", headers=False)
    found = built(horovod, theirs)
    (one,) = found.artifacts
    path = f"{FOLDER}/horovod"
    assert (one.version, one.inputs["taken_from"], list(found.warnings)) == ("0.28.0", path, [])
    steps = [step["name"] for step in one.build["steps"]]
    assert steps == ["folder", "link", "horovodrun", "check", "load"], "nothing is compiled"
    assert not {"packages", "needs_bytes"} & set(one.build)
    assert (one.build["links_to"], one.install) == ([], {"links_to": []})
    told = {name: one.inputs[name] for name in ("openmpi", "nccl", "gpu_operations", "with", "framework")}
    assert told == {
        "openmpi": "o" * 16,
        "nccl": "",
        "gpu_operations": "none",
        "with": "pytorch",
        "framework": {"name": "pytorch", "version": "2.7.0+cpu", "cuda": "", "nccl": "", "sha256": ""},
    }
    ranks, horovodrun = one.proof["checks"]
    promise = json.loads(ranks["argv"][-1])
    assert (promise["folder"], promise["taken"], promise["operations"]) == (path, True, ["MPI"])
    assert horovodrun["expect"] == ["0.28.0"]


def test_a_horovod_with_the_clusters_nccl_is_taken_and_needs_no_nvcc() -> None:
    (one,) = built(horovod, with_horovod(**WITH_NCCL)).artifacts
    assert (one.inputs["taken_from"], one.inputs["nccl"]) == (f"{FOLDER}/horovod", "n" * 16)
    assert json.loads(one.proof["checks"][0]["argv"][-1])["operations"] == ["MPI", "NCCL"]


def test_cmake_names_the_folders_that_the_links_lead_to() -> None:
    libraries = {
        "library": f"/usr/local/openmpi-1.0-{'o' * 16}/lib/libmpi.so.40",
        "nccl": f"/usr/local/nccl-1.0-{'n' * 16}/lib/libnccl.so.2",
    }
    (one,) = built(horovod, with_horovod(**{**WITH_NCCL, **libraries})).artifacts
    assert one.inputs["taken_from"]


WITH_MPI = "build it with PATH=/usr/local/openmpi/bin:$PATH"


@pytest.mark.parametrize(
    ("its", "why", "cure"),
    [
        ({"library": "libmpi.so.40"}, "takes libmpi.so.40 of the system", WITH_MPI),
        ({"library": "/opt/x/libmpi.so.12"}, "was built against /opt/x/libmpi.so.12", WITH_MPI),
        ({"library": ""}, "names no library of MPI", WITH_MPI),
        ({"framework": "2.6.0+cpu"}, "was built for pytorch 2.6.0+cpu", WITH_MPI),
        ({"framework": "2.7.0"}, "was built for pytorch 2.7.0", WITH_MPI),
        ({"framework": ""}, "does not tell which pytorch it was built for", WITH_MPI),
        (
            {"nccl": "/usr/local/nccl/lib/libnccl.so.2"},
            "takes /usr/local/nccl/lib/libnccl.so.2, and its operations for GPUs are to be none",
            WITH_MPI,
        ),
        (
            {**WITH_NCCL, "nccl": ""},
            "names no library of NCCL",
            f"{WITH_MPI} HOROVOD_NCCL_HOME=/usr/local/nccl HOROVOD_NCCL_LINK=SHARED HOROVOD_GPU_OPERATIONS=NCCL",
        ),
        (
            {**WITH_NCCL, "given": {"horovod_gpu_operations": "MPI"}},
            "does not tell whether its operations for GPUs are those of MPI",
            "set horovod_gpu_operations to auto",
        ),
    ],
)
def test_a_horovod_of_something_else_is_told_and_ours_is_built(its: dict[str, Any], why: str, cure: str) -> None:
    given = {"horovod_cuda_home": "/opt/cuda", **its.get("given", {})}
    found = built(horovod, with_horovod(**{**its, "given": given}))
    assert [one.version for one in found.artifacts] == ["0.28.1"]
    assert list(found.warnings) == [
        f"Horovod 0.28.0 of /opt/pytorch {why}; jobs get the cluster's own Horovod (to use yours, {cure})"
    ]


def test_a_horovod_that_nobody_wants_is_not_told() -> None:
    found = built(horovod, with_horovod(library="libmpi.so.40", given={"horovod_install": "never"}))
    assert (found.artifacts, found.warnings) == ([], ())


def test_horovod_is_compiled_with_the_framework_where_it_lies() -> None:
    (found,) = built(horovod, on("node1")).artifacts
    files = {one["dest"]: one.get("content") for one in found.build["files"]}
    assert files["framework.pth"] == f"{FOLDER}\n"
    assert f"{FOLDER}/torch/lib" in found.install["waiting_paths"]
    assert found.inputs["folders"] == [FOLDER]


def test_horovod_names_the_packages_that_it_would_lack() -> None:
    packages = {"numpy": "2.3.1", "torch": "2.7.0", "packaging": "25", "pyyaml": "6"}
    (refusal,) = built(horovod, on("node1", packages=packages, cuda={})).refusals
    problem = """Horovod imports cloudpickle and psutil, and /opt/pytorch has not; install them there, or set
        horovod_install to never."""
    assert refusal.problem == one_line(problem)


def test_roles_that_are_used_alone_ask_the_node_as_well() -> None:
    one = on("node1", problem="/opt/pytorch does not exist", cure="make it there too")
    plans = {"openmpi": plan("openmpi", "o" * 16, [one])}
    (refusal,) = mpi4py.decide(cluster([one], "openmpi", "mpi4py"), plans).refusals
    assert refusal.problem == "node1: /opt/pytorch does not exist; make it there too."
    assert existing_env.of(one) is None
