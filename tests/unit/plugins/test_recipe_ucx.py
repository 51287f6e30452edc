"""The recipe of UCX: when a cluster gets it, how it is built, what stands on it, and its refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import mpi4py, openmpi, ucx
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Host, Plan
from recipe_clusters import cluster, host, plan


def hosts(*provides: list[str], **given: Any) -> list[Host]:
    return [host(f"node{n}", given, provides=its) for n, its in enumerate(provides, 1)]


def decided(its: list[Host], *roles: str) -> tuple[Plan, Plan]:
    """Return the plans of UCX and Open MPI."""
    whole = cluster(its, *(roles or ("ucx", "openmpi")))
    plans = {"ucx": ucx.decide(whole, {})}
    return plans["ucx"], openmpi.decide(whole, plans)


def options(found: Plan) -> list[str]:
    (artifact,) = found.artifacts
    return list(artifact.inputs["configure"])


@pytest.mark.parametrize(
    ("asked", "provides", "comes"),
    [
        ("auto", ([], []), False),
        ("auto", (["libcuda"], ["rdma"]), True),  # all get it, because ranks with and without it do not meet
        ("always", ([], []), True),
        ("never", (["rdma"], ["rdma"]), False),
        ("auto", (["libcuda", "cuda_toolkit"], ["libcuda", "nvlink"]), True),
        # UCX without CUDA does not use NVLink
        ("auto", (["libcuda", "nvlink"], ["libcuda"]), False),
        ("auto", (["libcuda", "nvlink"], ["libcuda", "cuda_toolkit"]), False),  # node1 builds, without a toolkit
        ("auto", (["libcuda", "nvlink", "cuda_toolkit"], []), False),  # not every host of the platform has CUDA
        ("never", (["libcuda", "nvlink", "cuda_toolkit"], []), False),
    ],
)
def test_it_comes_where_it_is_asked_for_or_a_host_has_rdma_or_nvlink(
    asked: str, provides: tuple[list[str], ...], comes: bool
) -> None:
    library, mpi = decided(hosts(*provides, openmpi_ucx=asked))
    assert bool(library.artifacts) is comes
    (built,) = mpi.artifacts
    assert ("--without-ucx" in options(mpi)) is not comes
    assert ("--with-ucx=/usr/local/ucx" in options(mpi)) is comes
    assert ("ucx" in built.inputs) is comes
    assert built.uses == (["ucx"] if comes else [])
    if comes:
        (artifact,) = library.artifacts
        assert artifact.hosts == ["node1", "node2"]
        assert built.inputs["ucx"] == artifact.key
        assert built.builders == artifact.builders, "one host builds both, one after the other"
        assert built.install["waiting_paths"] == ["/usr/local/ucx/lib"]


_JOINED = ["libcuda", "nvlink", "cuda_toolkit"]


def test_nvlink_counts_only_where_the_build_has_cuda() -> None:
    def comes(*its: Host) -> bool:
        library, _mpi = decided(list(its))
        assert all(f"--with-cuda={cuda}" in options(library) for cuda in ["/usr/local/cuda"] if library.artifacts)
        return bool(library.artifacts)

    assert comes(*hosts(_JOINED, _JOINED))
    assert not comes(*hosts(_JOINED, _JOINED, openmpi_cuda="never"))
    assert comes(*hosts(["libcuda", "nvlink"], _JOINED, openmpi_builder="node2"))
    assert not comes(*hosts(_JOINED, ["libcuda"], openmpi_builder="node2"))
    other = {"platform": "debian-12-x86_64-glibc2.36-py3.11"}
    elsewhere = host("node9", {}, provides=["libcuda", "cuda_toolkit"], **other)
    assert not comes(*hosts(["libcuda", "nvlink"]), elsewhere), "a toolkit of another platform builds nothing here"


def test_hosts_that_a_run_leaves_out_count_as_in_a_run_of_all() -> None:
    first, second = hosts(_JOINED, [])
    second = replace(second, member={**second.member, "platform": "debian-12-x86_64-glibc2.36-py3.11"})
    whole = cluster([first, second], "ucx", "openmpi")
    assert [one.hosts for one in ucx.decide(whole, {}).artifacts] == [["node1"], ["node2"]]
    assert [one.hosts for one in ucx.decide(replace(whole, hosts=[second]), {}).artifacts] == [["node2"]]


def test_without_rdma_the_key_of_open_mpi_stays() -> None:
    """The settings of UCX split no group and shape no key of an Open MPI without it."""
    first, second = hosts([], [])
    (one,) = decided([first, second])[1].artifacts
    other = hosts([], [], ucx_version="1.18.1")[1]
    (same,) = decided([first, other])[1].artifacts
    assert (one.key, one.hosts) == (same.key, ["node1", "node2"])
    assert not {"ucx"} & set(one.inputs)
    assert one.install == {}


def test_what_shapes_its_bytes_shapes_its_key_and_that_of_open_mpi() -> None:
    def keys(*provides: list[str], **given: Any) -> tuple[str, str]:
        library, mpi = decided(hosts(*(provides or ([], [])), openmpi_ucx="always", **given))
        return library.artifacts[0].key, mpi.artifacts[0].key

    usual = keys()
    assert keys(preflight_work_dir="/scratch", ucx_make_jobs=4) == usual
    for given in (
        {"ucx_version": "1.18.1"},
        {"ucx_cflags": "-O3"},
        {"ucx_extra_configure_options": ["--with-xpmem"]},
        {"openmpi_cuda": "always"},
    ):
        assert not set(keys(**given)) & set(usual), given
    cuda = ["libcuda", "cuda_toolkit"]
    assert keys(cuda, cuda) != keys([*cuda, "gdrcopy"], [*cuda, "gdrcopy"])
    assert keys([*cuda, "gdrcopy"], cuda) == keys(cuda, cuda), "gdrcopy counts where every host has it"


def test_cuda_and_gdrcopy_are_in_where_all_hosts_have_them() -> None:
    its = [["rdma", "libcuda", "cuda_toolkit", "gdrcopy"], ["libcuda", "gdrcopy"]]
    library, mpi = decided(hosts(*its))
    assert {"--with-cuda=/usr/local/cuda", "--with-gdrcopy"} <= set(options(library))
    assert "--with-cuda=/usr/local/cuda" in options(mpi)
    library, mpi = decided(hosts(["rdma"], []))
    assert {"--without-cuda", "--without-gdrcopy", "--with-verbs", "--with-rdmacm", "--enable-mt"} <= set(
        options(library)
    )


def test_a_host_gets_the_libraries_of_rdma_that_it_lacks() -> None:
    (artifact,) = decided(hosts(["rdma"]))[0].artifacts
    assert artifact.install["libraries"] == {
        "libibverbs.so.1": ["libibverbs1", "ibverbs-providers"],
        "librdmacm.so.1": ["librdmacm1"],
        "libmlx5.so.1": ["ibverbs-providers"],
    }
    assert set(artifact.install["libraries"]) <= set(artifact.install["closure_ignore"])
    assert artifact.install["library_path"] == ["lib", "lib/ucx"], "libuct_rdmacm.so needs libuct_ib.so"
    assert {"libibverbs-dev", "librdmacm-dev"} <= set(artifact.build["packages"])


def test_a_release_without_a_known_source_and_one_that_is_too_old_are_refused() -> None:
    (unknown,) = decided(hosts([], openmpi_ucx="always", ucx_version="1.99.0"))[0].refusals
    assert unknown.problem == (
        "No source of UCX 1.99.0 is known (known are 1.20.1, 1.19.1, 1.18.1, 1.17.0, 1.16.0, 1.15.0, 1.13.1); set"
        " ucx_sha256 to the sha256 of upstream's ucx-1.99.0.tar.gz, or list sources in ucx_sources."
    )
    old = decided(hosts([], openmpi_ucx="always", ucx_version="1.8.1", ucx_sha256="a" * 64))[0].refusals
    assert [one.problem for one in old] == [
        "ucx_version is 1.8.1, and only releases 1.11 and newer of UCX 1 can be built."
    ]
    assert not decided(hosts([], ucx_version="1.99.0"))[0].refusals, "it is not asked for"


def test_open_mpi_alone_takes_the_ucx_that_a_host_has_and_refuses_a_host_without() -> None:
    there = {"link": "/usr/local/ucx", "key": "f" * 16, "version": "1.13.1"}
    has = host("node1", {"openmpi_ucx": "always"}, node={"artifacts": [there]})
    lacks = host("node2", {"openmpi_ucx": "always"})
    found = decided([has, lacks], "openmpi")[1]
    assert [one.inputs["ucx"] for one in found.artifacts] == ["f" * 16]
    (refused,) = found.refusals
    assert (refused.host, refused.problem) == ("node2", ucx.without("node2", "always"))
    assert refused.problem.endswith("run the role ucx before openmpi, or set openmpi_ucx to never.")


def test_what_is_built_on_open_mpi_sees_the_ucx_that_waits_for_its_link() -> None:
    its = hosts(["rdma"])
    plans = {"openmpi": plan("openmpi", "a" * 16, its), "python_env": plan("cpython", "b" * 16, its, "3.13.5")}
    (artifact,) = mpi4py.decide(cluster(its, "openmpi", "python_env", "mpi4py"), plans).artifacts
    assert "ucx" in artifact.uses
    assert "/usr/local/ucx/lib" in artifact.install["waiting_paths"]


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ([{"state": "ACTIVE"}], ""),
        (
            [{"state": "DOWN"}],
            (
                "node1: every port of mlx5_0 is down, so jobs with this host go over TCP until one is up; connect it,"
                " or set openmpi_ucx to never."
            ),
        ),
        (
            [],
            (
                "node1: the driver of mlx5_0 shows no port, so jobs with this host go over TCP until one is up; look"
                " in the kernel's log, or set openmpi_ucx to never."
            ),
        ),
    ],
)
def test_ports_that_are_down_are_told_and_stop_nothing(ports: list[dict[str, str]], words: str) -> None:
    def one(asked: str) -> Plan:
        node = {"rdma": [{"name": "mlx5_0", "driver": "mlx5_core", "ports": ports}]}
        return decided([host("node1", {"openmpi_ucx": asked}, node=node, provides=["rdma"])])[0]

    found = one("auto")
    assert (list(found.warnings), len(found.artifacts)) == ([words] if words else [], 1)
    assert one("never") == Plan([], [], [])
