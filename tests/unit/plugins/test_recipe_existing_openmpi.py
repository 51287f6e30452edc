"""The recipe for an Open MPI that the nodes have already: each refusal, and what stands on it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import horovod, mpi4py, openmpi, python_env, ucx
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Host, Plan, Refusal
from recipe_clusters import Shelf, cluster, host

PLATFORM = "debian-12-x86_64-glibc2.36-py3.11"
PATH = "/opt/hpcx/ompi"
FOLDERS = [f"{PATH}/lib", "/opt/hpcx/ucx/lib"]
LOOK: dict[str, Any] = {
    "path": PATH,
    "problem": "",
    "cure": "",
    "version": "4.1.7rc1",
    "machine": "x86_64",
    "library": "/opt/hpcx-v2.21/ompi/lib",
    "folders": FOLDERS,
    "options": ["--with-pmix=internal", "--with-ucx"],
    "components": {"pml/ucx": "4.1.7", "btl/tcp": "4.1.7"},
    "cuda": True,
    "fortran": True,
    "files": "0123456789abcdef",
}
WITHOUT_UCX = {"components": {"btl/tcp": "4.1.7"}, "options": ["--with-pmix=internal"]}


def on(name: str, *, path: str = PATH, given: dict[str, Any] | None = None, **look: Any) -> Host:
    """Return a host whose variables name the Open MPI."""
    variables = {"openmpi_existing": path, "python_env_framework": "none", **(given or {})}
    node = {"existing_openmpi": {**LOOK, "path": path, **look}, "python": {"version": "3.11.2"}}
    return host(name, variables, node=node, platform=PLATFORM)


def decided(*hosts: Host) -> Plan:
    whole = cluster(hosts, "ucx", "openmpi", controller=Shelf())
    return openmpi.decide(whole, {"ucx": ucx.decide(whole, {})})


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_equal_hosts_share_one_that_leads_to_theirs() -> None:
    (one,) = decided(on("node1"), on("node2")).artifacts
    assert (one.name, one.version, list(one.hosts)) == ("openmpi", "4.1.7rc1", ["node1", "node2"])
    assert (one.inputs["existing"], one.inputs["files"]) == (PATH, LOOK["files"])
    assert one.inputs["library"] == LOOK["library"], "by which ranks tell what they have mapped"
    assert one.install == {"links_to": [], "library_path": FOLDERS}
    assert f'"library_path": "{LOOK["library"]}/libmpi.so' in one.proof["checks"][2]["expect"]
    assert "ucx" in one.proof["checks"][3]["argv"]


def test_the_cluster_builds_no_ucx_for_it() -> None:
    rdma = [on("node1", given={"openmpi_ucx": "always"}), host("node2", {"openmpi_ucx": "always"}, platform=PLATFORM)]
    found = ucx.decide(cluster(rdma, "ucx"), {})
    assert [list(one.hosts) for one in found.artifacts] == [["node2"]]


@pytest.mark.parametrize("look", [{"version": "4.1.8"}, {"files": "f" * 16}, {"path": "/opt/amazon/openmpi"}])
def test_each_one_has_a_key_of_its_own(look: dict[str, Any]) -> None:
    assert decided(on("node1", **look)).artifacts[0].key != decided(on("node1")).artifacts[0].key


@pytest.mark.parametrize(
    ("hosts", "problem"),
    [
        (
            [on("node1", path="/opt/a b")],
            """openmpi_existing is '/opt/a b'; write an absolute path of letters, digits and the signs . _ + - alone,
            such as /opt/hpcx/ompi.""",
        ),
        (
            [on("node1"), on("node2", problem=f"{PATH} does not exist", cure="install it there too")],
            f"node2: {PATH} does not exist; install it there too.",
        ),
        (
            [on("node1"), host("node2", {}, platform=PLATFORM)],
            f"openmpi_existing must be the same on all hosts of one platform; it is {PATH} on node1, none on node2.",
        ),
        (
            [on("node1", version="4.0.7")],
            f"""{PATH} has Open MPI 4.0.7, and clusterctl can launch 4.1 and 5; install one of these series, or leave
            openmpi_existing empty.""",
        ),
        (
            [on("node1", machine="aarch64")],
            f"""{PATH} has libraries for aarch64, and the platform is {PLATFORM}; install the Open MPI for this
            platform.""",
        ),
        (
            [on("node1", given={"openmpi_ucx": "always"}, **WITHOUT_UCX)],
            f"""openmpi_ucx is always, and {PATH} was built without UCX; set openmpi_ucx to auto, or name an Open MPI
            with UCX.""",
        ),
        (
            [on("node1", given={"openmpi_fortran": True}, fortran=False)],
            f"""openmpi_fortran is True, and {PATH} was built without Fortran; set openmpi_fortran to false, or name an
            Open MPI with Fortran.""",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(hosts: list[Host], problem: str) -> None:
    found = decided(*hosts)
    assert [one.problem for one in found.refusals] == [one_line(problem)]
    assert not [one for one in found.artifacts if "existing" in one.inputs]


def test_what_differs_is_named_by_node() -> None:
    hosts = [on("node1"), on("node2"), on("node3", version="4.1.8"), on("node4", files="f" * 16, **WITHOUT_UCX)]
    (refusal,) = decided(*hosts).refusals
    problem = f"""node3: {PATH} has Open MPI 4.1.8 and the others Open MPI 4.1.7rc1; node4: {PATH} has
        --with-pmix=internal and the others --with-pmix=internal --with-ucx, library files with digest ffffffff and the
        others library files with digest 01234567, no pml/ucx, which the others have; make {PATH} the same on all nodes
        of the platform."""
    assert refusal == Refusal("node3", one_line(problem))


@pytest.mark.parametrize(
    ("look", "words"),
    [
        ({"library": "/opt/hpcx-v2.20/ompi/lib"}, "libraries in /opt/hpcx-v2.20/ompi/lib and node1 libraries in"),
        ({"folders": [f"{PATH}/lib"]}, f"its search path {PATH}/lib and node1 its search path {':'.join(FOLDERS)}"),
    ],
)
def test_where_its_libraries_lie_is_the_same_on_all_nodes(look: dict[str, Any], words: str) -> None:
    (refusal,) = decided(on("node1"), on("node2", **look)).refusals
    assert refusal.host == "node2"
    assert refusal.problem.startswith(f"node2: {PATH} has {words}")


def test_mpi4py_and_horovod_find_its_libraries_and_have_its_identity() -> None:
    torch = {"name": "torch", "version": "2.8.0", "filename": "torch.whl", "sha256": "0" * 64}
    found: dict[str, tuple[Any, Any]] = {}
    for files in ("0" * 16, "f" * 16):
        one = on("node1", files=files, given={"python_env_framework": "pytorch"})
        whole = cluster([one], "openmpi", "python_env", "mpi4py", "horovod", controller=Shelf(torch))
        plans = {"openmpi": openmpi.decide(whole, {}), "python_env": python_env.decide(whole, {})}
        (mpi,), (hvd,) = mpi4py.decide(whole, plans).artifacts, horovod.decide(whole, plans).artifacts
        assert mpi.inputs["openmpi"] == hvd.inputs["openmpi"] == plans["openmpi"].artifacts[0].key
        assert mpi.install["library_path"] == hvd.install["library_path"] == ["lib", *FOLDERS]
        for artifact in (mpi, hvd):
            assert artifact.build["steps"][-1]["environment"]["LD_LIBRARY_PATH"] == ":".join(FOLDERS)
        (compiles,) = [one["environment"] for one in hvd.build["steps"] if one["name"] == "compile"]
        assert compiles["LD_LIBRARY_PATH"] == ":".join(FOLDERS), "cmake links without the wrappers"
        check = next(one["content"] for one in hvd.build["files"] if one["dest"] == "horovod_check.py")
        assert f'"LD_LIBRARY_PATH": "{":".join(FOLDERS)}"' in check
        found[files] = (mpi.key, hvd.key)
    assert len({key for keys in found.values() for key in keys}) == 4


def test_a_role_that_is_used_alone_asks_the_node_as_well() -> None:
    one = on("node1", problem=f"{PATH} does not exist", cure="install it there too")
    node = {**one.node, "artifacts": [{"link": "/usr/local/openmpi", "key": "o" * 16, "version": "5.0.7"}]}
    there = host("node1", {"openmpi_existing": PATH}, node=node, platform=PLATFORM)
    (refusal,) = mpi4py.decide(cluster([there], "mpi4py"), {}).refusals
    assert refusal.problem == f"node1: {PATH} does not exist; install it there too."


@pytest.mark.parametrize("recipe", [mpi4py, horovod])
def test_a_role_that_is_used_alone_compares_the_nodes_as_well(recipe: Any) -> None:
    hosts = []
    for name, folders in (("node1", ["/srv/evil"]), ("node2", FOLDERS), ("node3", FOLDERS)):
        one = on(name, folders=folders)
        node = {**one.node, "artifacts": [{"link": "/usr/local/openmpi", "key": "o" * 16, "version": "5.0.7"}]}
        given = {"openmpi_existing": PATH, "python_env_framework": "pytorch"}
        hosts.append(host(name, given, node=node, platform=PLATFORM))
    torch = {"name": "torch", "version": "2.8.0", "filename": "torch.whl", "sha256": "0" * 64}
    whole = cluster(hosts, "python_env", "mpi4py", "horovod", controller=Shelf(torch))
    (refusal,) = recipe.decide(whole, {"python_env": python_env.decide(whole, {})}).refusals
    assert refusal.problem.startswith(f"node1: {PATH} has its search path /srv/evil and the others ")
