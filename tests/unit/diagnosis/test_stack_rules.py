"""What is wrong with a training stack, from captured facts: every fault is named, and a healthy cluster has none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusterctl.diagnosis import skew, training_stack
from clusterctl.model.facts import NodeFacts
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))


from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.gpu import (
    driver_cuda,
    driver_version,
    read_gpu_information,
)
from clusterctl.model.findings import Finding

Record = dict[str, Any]
Change = Callable[[Record], object]

DATA = Path(__file__).resolve().parents[2] / "data"
NODES = ("node1", "node2", "node3", "node4")
TARGETS = ("openmpi", "python_env", "mpi4py", "nccl", "horovod")
BUNDLED = "/usr/local/python_env/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
INSTALLED = "/usr/local/nccl/lib/libnccl.so.2"
BUNDLED_REAL = "/usr/local/python_env-3.11-gpu/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"


def captured() -> Record:
    record: Record = json.loads((DATA / "stack" / "node.json").read_text(encoding="utf-8"))
    return record


def artifact(record: Record, name: str) -> Record:
    found: Record = next(entry for entry in record["artifacts"] if entry["link"] == f"/usr/local/{name}")
    return found


def library(record: Record, soname: str = "libnccl.so.2") -> Record:
    found: Record = next(entry for entry in record["libraries"] if entry["soname"] == soname)
    return found


def version_text(name: str) -> str:
    return (DATA / "node_probe" / f"nvidia-version.{name}.txt").read_text(encoding="utf-8")


def with_gpu(record: Record, driver: str = "open") -> Record:
    """Make a node with a GPU of a captured one: the driver's files are read by the probe's own parsers."""
    text = (DATA / "stack" / "gpu-information.txt").read_text(encoding="utf-8")
    record["gpus"] = [{"bus": "0000:70:00.0", **read_gpu_information(text), "driver": "nvidia"}]
    version = driver_version(version_text(driver))
    record["cuda"] |= {"driver_version": version, "major": driver_cuda(version), "libcuda": True}
    record["platform"] += f"-cuda{record['cuda']['major']}"
    framework = {"name": "pytorch", "version": "2.13.0", "cuda": "13", "nccl": "2.32.3"}
    nccl = artifact(record, "nccl")
    rebuilt(record, "python_env", framework=framework)
    rebuilt(record, "nccl", cuda="13")
    rebuilt(record, "horovod", framework=framework, nccl=nccl["key"], gpu_operations="NCCL")
    library(record)["others"].append(
        {"path": BUNDLED, "real": BUNDLED_REAL, "version": nccl["version"], "via": "asked for"}
    )
    return record


def rebuilt(record: Record, name: str, version: str = "", **inputs: Any) -> None:
    """Make an artifact another one; whatever was built against it is still built against the former."""
    entry = artifact(record, name)
    entry["inputs"] |= inputs
    entry["version"] = version or entry["version"]
    entry["key"] = f"another-{name}"
    entry["target"] = f"/usr/local/{name}-{entry['version']}-{entry['key']}"
    for found in files(record):
        if found["path"].startswith(f"{entry['link']}/"):
            found |= {"real": entry["target"] + found["path"].removeprefix(entry["link"]), "version": entry["version"]}


def files(record: Record) -> list[Record]:
    return [entry for found in record["libraries"] for entry in (found, *found["others"])]


def removed(record: Record, name: str) -> None:
    problem = f"/usr/local/{name} does not exist"
    artifact(record, name).update(target="", version="", key="", ok=False, problem=problem, inputs={})


def cluster(base: Callable[[], Record] = captured, **changes: Change) -> dict[str, NodeFacts]:
    nodes = {}
    for name in NODES:
        record = base()
        record["hostname"] = name
        changes.get(name, lambda _: None)(record)
        nodes[name] = NodeFacts.model_validate(record)
    return nodes


def gpu_node() -> Record:
    return with_gpu(captured())


def the_one(found: tuple[Finding, ...]) -> Finding:
    assert len(found) == 1, found
    assert not found[0].cause.endswith(".")
    assert found[0].cure
    return found[0]


# --- nothing is wrong ---


@pytest.mark.parametrize("base", [captured, gpu_node], ids=["cpu", "gpu"])
def test_a_healthy_cluster_has_no_finding(base: Callable[[], Record]) -> None:
    assert skew.stack_findings(cluster(base)) == ()


def test_the_captured_node_has_a_stack() -> None:
    """Otherwise nothing below would prove anything."""
    found = training_stack.of(NodeFacts.model_validate(captured()))
    assert (found.framework, found.framework_cuda, found.gpus) == ("pytorch", "", 0)
    assert all(artifact(captured(), name)["ok"] for name in TARGETS)
    assert {entry["soname"]: bool(entry["path"]) for entry in captured()["libraries"]} == {
        entry["soname"]: True for entry in training_stack.LIBRARIES
    }


def test_an_environment_of_the_user_is_named_with_its_nodes() -> None:
    def theirs(record: Record) -> None:
        artifact(record, "python_env")["inputs"] |= {"existing": "/opt/pytorch", "python": "3.11.2"}

    nodes = cluster(node1=theirs, node2=theirs)
    framework = training_stack.of(nodes["node1"])
    words = f"Python 3.11.2 and {framework.framework} {framework.framework_version}"
    note = f"node[1-2] ran the checks in /opt/pytorch with {words}, an environment that clusterctl did not make."
    assert training_stack.environment_notes(nodes) == (note,)
    assert training_stack.environment_notes(cluster()) == ()


def test_packages_of_mpi_that_come_from_an_environment_of_the_user_are_named_with_its_nodes() -> None:
    place = "/opt/pytorch/lib/python3.11/site-packages"

    def theirs(record: Record) -> None:
        for name in ("mpi4py", "horovod"):
            artifact(record, name)["inputs"]["taken_from"] = f"{place}/{name}"

    nodes = cluster(node1=theirs, node2=theirs)
    assert training_stack.environment_notes(nodes) == tuple(
        f"node[1-2]: {title} {nodes['node1'].artifact(title.lower()).version} is that of {place}/{title.lower()},"
        " built against the cluster's Open MPI."
        for title in ("mpi4py", "Horovod")
    )


def test_an_open_mpi_of_others_is_named_with_its_nodes() -> None:
    def theirs(record: Record) -> None:
        artifact(record, "openmpi")["inputs"] |= {"existing": "/opt/hpcx/ompi", "library": "/opt/hpcx-v2/ompi/lib"}

    nodes = cluster(node1=theirs)
    version = nodes["node1"].artifact("openmpi").version
    note = f"node1 ran the checks with Open MPI {version} of /opt/hpcx/ompi, which clusterctl did not make."
    assert training_stack.environment_notes(nodes) == (note,)
    assert nodes["node1"].artifact("openmpi").library_folder == "/opt/hpcx-v2/ompi/lib"
    assert nodes["node2"].artifact("openmpi").library_folder == nodes["node2"].artifact("openmpi").target


def test_nodes_with_and_without_a_gpu_are_one_healthy_cluster() -> None:
    def gpu(record: Record) -> None:
        with_gpu(record)

    assert skew.stack_findings(cluster(node1=gpu, node2=gpu)) == ()


def test_what_is_installed_nowhere_is_not_missed() -> None:
    def bare(record: Record) -> None:
        removed(record, "nccl")
        removed(record, "horovod")
        rebuilt(record, "python_env", framework={"name": "", "version": "", "cuda": "", "nccl": ""})
        library(record).update(path="", real="", version="", via="")

    assert skew.stack_findings(cluster(**dict.fromkeys(NODES, bare))) == ()
    assert skew.stack_findings({}) == ()


def test_a_login_node_without_a_framework_is_not_meant_to_have_horovod() -> None:
    def login(record: Record) -> None:
        removed(record, "horovod")
        rebuilt(record, "python_env", framework={"name": "", "version": "", "cuda": "", "nccl": ""})

    assert skew.stack_findings(cluster(node4=login)) == ()


def test_facts_that_nobody_asked_for_are_no_findings() -> None:
    def unasked(record: Record) -> None:
        record["libraries"] = []

    assert skew.stack_findings(cluster(**dict.fromkeys(NODES, unasked))) == ()


# --- NCCL ---


def other_nccl(record: Record, version: str = "2.29.7") -> None:
    rebuilt(record, "nccl", version)


def test_another_nccl_on_one_node_is_named_with_both_versions() -> None:
    found = the_one(skew.stack_findings(cluster(node3=other_nccl)))
    assert found.hosts[0] == "node3"
    assert found.cause == f"NCCL 2.29.7 is installed, and most nodes have {artifact(captured(), 'nccl')['version']}"
    assert "clusterctl provision" in found.cure


def test_without_a_majority_everybody_is_named() -> None:
    found = skew.stack_findings(cluster(node3=other_nccl, node4=other_nccl))
    assert [finding.hosts[0] for finding in found] == list(NODES)
    assert "others have 2.29.7, with no majority" in found[0].cause


def test_another_build_of_the_same_nccl_is_named_within_its_platform() -> None:
    def rebuild(record: Record) -> None:
        rebuilt(record, "nccl")

    found = the_one(skew.stack_findings(cluster(node2=rebuild)))
    assert found.hosts[0] == "node2"
    assert "-another-nccl of NCCL is installed" in found.cause

    def platform(record: Record) -> None:
        rebuilt(record, "nccl")
        record["platform"] = "debian-13-x86_64-glibc2.41-py3.13"

    assert skew.stack_findings(cluster(node2=platform)) == ()


def test_nccl_and_horovod_that_other_nodes_of_the_platform_have_are_missed() -> None:
    for title, name in (("NCCL", "nccl"), ("Horovod", "horovod")):
        found = the_one(skew.stack_findings(cluster(node2=lambda record, name=name: removed(record, name))))  # type: ignore[misc]
        assert (found.hosts[0], found.cause) == (
            "node2",
            f"{title} is missing, and other nodes of its platform have it",
        )


def loads(record: Record, path: str, version: str, via: str) -> None:
    installed = library(record)
    shadowed = {key: installed[key] for key in ("path", "real", "version", "via")}
    installed["others"] = [shadowed, *(entry for entry in installed["others"] if entry["path"] != path)]
    installed.update(path=path, real=path.replace("python_env/", "python_env-3.11-k/"), version=version, via=via)


def test_a_bundled_nccl_first_in_the_path_is_named_with_both_files_and_the_reason() -> None:
    def shadow(record: Record) -> None:
        loads(record, BUNDLED, "2.30.7", "LD_LIBRARY_PATH")

    found = the_one(skew.stack_findings(cluster(node2=shadow)))
    nccl = artifact(captured(), "nccl")
    assert found.hosts[0] == "node2"
    assert f"{BUNDLED} (the framework's own NCCL 2.30.7) and not {INSTALLED} (NCCL {nccl['version']})" in found.cause
    assert f"LD_LIBRARY_PATH names {BUNDLED.removesuffix('/libnccl.so.2')} first" in found.cause
    assert "out of LD_LIBRARY_PATH" in found.cure


def test_an_nccl_of_a_package_first_in_the_cache_is_named() -> None:
    def package(record: Record) -> None:
        loads(record, "/usr/lib/x86_64-linux-gnu/libnccl.so.2", "", "/etc/ld.so.cache")

    found = the_one(skew.stack_findings(cluster(node4=package)))
    assert found.hosts[0] == "node4"
    assert "(another NCCL)" in found.cause
    assert "because /etc/ld.so.cache names /usr/lib/x86_64-linux-gnu first" in found.cause
    assert "ldconfig" in found.cure


def test_the_link_that_the_loaders_cache_names_is_the_installed_one_unless_it_leads_elsewhere() -> None:
    link = "/usr/local/lib/clusterctl/libnccl.so.2"

    def linked(record: Record) -> None:
        library(record)["path"] = link

    def elsewhere(record: Record) -> None:
        library(record).update(path=link, real="/opt/x/libnccl.so.2", version="2.18.3")

    assert skew.stack_findings(cluster(**dict.fromkeys(NODES, linked))) == ()
    found = the_one(skew.stack_findings(cluster(**dict.fromkeys(NODES[1:], linked), node1=elsewhere)))
    assert f"loads {link} (NCCL 2.18.3) and not {INSTALLED}" in found.cause
    assert "because it leads to /opt/x/libnccl.so.2" in found.cause
    assert found.cure == skew.PROVISION


def test_an_nccl_of_the_systems_packages_is_the_installed_one_where_the_artifact_is_made_of_links() -> None:
    system = {"path": "/lib/x86_64-linux-gnu/libnccl.so.2", "real": "/usr/lib/x86_64-linux-gnu/libnccl.so.2.29.7"}

    def packages(record: Record) -> None:
        library(record).update(system, via="/etc/ld.so.cache")
        library(record)["others"][0] |= {"real": system["real"]}

    def shadowed(record: Record) -> None:
        packages(record)
        loads(record, "/opt/x/libnccl.so.2", "2.18.3", "LD_LIBRARY_PATH")

    assert skew.stack_findings(cluster(**dict.fromkeys(NODES, packages))) == ()
    found = the_one(skew.stack_findings(cluster(**dict.fromkeys(NODES[1:], packages), node1=shadowed)))
    assert "a session loads /opt/x/libnccl.so.2 (NCCL 2.18.3)" in found.cause


def test_an_installed_nccl_that_no_session_finds_is_named() -> None:
    def forgotten(record: Record) -> None:
        library(record).update(path="", real="", version="", via="")

    found = the_one(skew.stack_findings(cluster(node1=forgotten)))
    assert found.hosts[0] == "node1"
    assert found.cause.startswith("no session finds libnccl.so.2, although NCCL")
    assert "ldconfig" in found.cure


def test_one_that_only_a_default_folder_has_is_named_too() -> None:
    def stray(record: Record) -> None:
        library(record).update(path="/usr/lib/libnccl.so.2", real="/usr/lib/libnccl.so.2.18.1", version="2.18.1")
        library(record).update(via="default folders")

    found = the_one(skew.stack_findings(cluster(node1=stray)))
    assert "/etc/ld.so.cache does not name the installed one and /usr/lib is searched anyway" in found.cause


@pytest.mark.parametrize("align", ["framework", "cluster", "report", None])
def test_a_framework_s_own_nccl_is_a_finding_unless_a_report_was_all_that_was_wanted(align: str | None) -> None:
    def bundled(record: Record) -> None:
        next(entry for entry in files(record) if entry["path"] == BUNDLED)["version"] = "2.30.7"

    found = skew.stack_findings(cluster(gpu_node, node2=bundled), dict.fromkeys(NODES, align) if align else None)
    if align == "report":
        assert found == ()
        return
    one = the_one(found)
    assert one.hosts[0] == "node2"
    assert f"PyTorch 2.13.0 loads its own NCCL 2.30.7 ({BUNDLED}), and the cluster's is" in one.cause


# --- GPUs, drivers and CUDA ---


def test_a_driver_too_old_for_the_cuda_of_nccl_and_of_the_framework_is_named() -> None:
    def old(record: Record) -> None:
        version = driver_version(version_text("proprietary"))
        record["cuda"] |= {"driver_version": version, "major": driver_cuda(version)}

    nccl, framework = skew.stack_findings(cluster(gpu_node, node3=old))
    assert (nccl.hosts[0], framework.hosts[0]) == ("node3", "node3")
    version = artifact(captured(), "nccl")["version"]
    assert nccl.cause == f"NCCL {version} is built for CUDA 13, and driver 515.76 runs CUDA 11 at most"
    assert nccl.cure == ("install driver 580 or later, or set nccl_cuda to 11 and run 'clusterctl provision' again")
    assert framework.cause == "PyTorch 2.13.0 is built for CUDA 13, and driver 515.76 runs CUDA 11 at most"


def test_a_driver_before_all_that_are_known_is_named_as_well() -> None:
    def ancient(record: Record) -> None:
        record["cuda"] |= {"driver_version": "390.157", "major": driver_cuda("390.157")}

    nccl, _ = skew.stack_findings(cluster(gpu_node, node3=ancient))
    assert "driver 390.157 is older than any that is known here" in nccl.cause
    assert nccl.cure == "install driver 580 or later"


def test_a_cpu_build_beside_a_gpu_is_named() -> None:
    def cpu(record: Record) -> None:
        framework = {"name": "pytorch", "version": "2.13.0+cpu", "cuda": "", "nccl": ""}
        rebuilt(record, "python_env", framework=framework)
        artifact(record, "horovod")["inputs"]["framework"] = framework

    found = the_one(skew.stack_findings(cluster(gpu_node, node2=cpu)))
    assert (found.hosts[0], found.cause) == ("node2", "PyTorch 2.13.0+cpu is a CPU build beside 1 GPU")
    assert "python_env_framework_build" in found.cure


# --- the framework ---


def test_another_release_of_the_framework_is_named() -> None:
    def older(record: Record) -> None:
        framework = {**artifact(record, "python_env")["inputs"]["framework"], "version": "2.12.1+cpu"}
        rebuilt(record, "python_env", framework=framework)
        artifact(record, "horovod")["inputs"]["framework"] = framework

    found = the_one(skew.stack_findings(cluster(node1=older)))
    assert found.hosts[0] == "node1"
    assert found.cause == "framework PyTorch 2.12.1 is installed, and most nodes have PyTorch 2.13.0"


# --- built against ---


@pytest.mark.parametrize("name", ["mpi4py", "horovod"])
def test_what_was_built_against_another_open_mpi_is_named(name: str) -> None:
    def foreign(record: Record) -> None:
        artifact(record, name)["inputs"]["openmpi"] = "0123456789abcdef"

    found = the_one(skew.stack_findings(cluster(node2=foreign)))
    mpi = artifact(captured(), "openmpi")
    assert found.hosts[0] == "node2"
    assert "was built against another Open MPI (key 0123456789abcdef)" in found.cause
    assert found.cause.endswith(f"and {mpi['version']} (key {mpi['key']}) is installed")


def test_a_horovod_that_was_built_against_another_nccl_is_named() -> None:
    def foreign(record: Record) -> None:
        artifact(record, "horovod")["inputs"]["nccl"] = "0123456789abcdef"

    found = the_one(skew.stack_findings(cluster(gpu_node, node2=foreign)))
    assert (found.hosts[0], "was built against another NCCL (key 0123456789abcdef)" in found.cause) == ("node2", True)

    def without_nccl(record: Record) -> None:
        removed(record, "nccl")

    found_all = skew.stack_findings(cluster(gpu_node, **dict.fromkeys(NODES, without_nccl)))
    assert [finding.hosts[0] for finding in found_all] == list(NODES)
    assert found_all[0].cause.endswith("and no NCCL is installed")


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (
            {"name": "pytorch", "version": "2.12.1", "cuda": "", "nccl": ""},
            "was built against PyTorch 2.12.1 (CPU), and PyTorch 2.13.0",
        ),
        ({"name": "pytorch", "version": "2.13.0", "cuda": "12", "nccl": ""}, "against PyTorch 2.13.0 (CUDA 12), and"),
    ],
)
def test_a_horovod_that_was_built_against_another_framework_is_named(built: Record, words: str) -> None:
    def foreign(record: Record) -> None:
        artifact(record, "horovod")["inputs"]["framework"] = built

    found = the_one(skew.stack_findings(cluster(node4=foreign)))
    assert found.hosts[0] == "node4"
    assert words in found.cause


def test_a_horovod_whose_framework_is_gone_is_named() -> None:
    def gone(record: Record) -> None:
        artifact(record, "python_env")["inputs"]["framework"] = {"name": "", "version": "", "cuda": "", "nccl": ""}

    found = the_one(skew.stack_findings(cluster(node4=gone)))
    assert found.cause.endswith("and no framework is installed")


# --- Open MPI ---


def test_a_session_that_loads_another_libmpi_is_named() -> None:
    def shadow(record: Record) -> None:
        real = "/opt/mpi/lib/libmpi.so.40.30.4"
        library(record, "libmpi.so.40").update(path="/opt/mpi/lib/libmpi.so.40", real=real, version="")

    found = the_one(skew.stack_findings(cluster(node3=shadow)))
    mpi = artifact(captured(), "openmpi")
    assert found.hosts[0] == "node3"
    own = f"/usr/local/openmpi/lib/libmpi.so.40 (Open MPI {mpi['version']})"
    for words in (
        "loads /opt/mpi/lib/libmpi.so.40 (another Open MPI)",
        own,
        "LD_LIBRARY_PATH names /opt/mpi/lib first",
    ):
        assert words in found.cause


def test_findings_stand_in_a_stable_order() -> None:
    def shadow(record: Record) -> None:
        loads(record, BUNDLED, "2.30.7", "LD_LIBRARY_PATH")

    nodes = cluster(node1=shadow, node2=other_nccl, node4=shadow)
    found = skew.stack_findings(nodes)
    assert [finding.hosts[0] for finding in found] == ["node2", "node1", "node4"]
    assert skew.stack_findings(dict(reversed(nodes.items()))) == (found[0], found[2], found[1])
