"""Both nodes have the same UCX with its transports, and the libraries of RDMA that it loads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from testinfra.host import Host

    Login = Callable[..., subprocess.CompletedProcess[str]]

PREFIX = "/usr/local/ucx"
VERSION = "1.13.1"
NODES = ("node1", "node2")


@pytest.fixture(autouse=True)
def _with_ucx(host: Host) -> None:
    openmpi = host.file("/usr/local/openmpi/.clusterctl.json")
    if openmpi.exists and "ucx" not in json.loads(openmpi.content)["inputs"]:  # in the scenario of all roles
        pytest.skip("no node of this cluster has an RDMA device, so openmpi_ucx: auto leaves UCX out")


def test_every_node_has_the_same_build(login: Login) -> None:
    found = {login(node, "readlink", "-f", PREFIX).stdout.strip() for node in NODES}
    assert len(found) == 1
    (tree,) = found
    assert tree.startswith(f"{PREFIX}-{VERSION}-")


def test_a_plain_session_finds_its_transports(login: Login) -> None:
    for node in NODES:
        done = login(node, f"{PREFIX}/bin/ucx_info", "-d")
        assert done.returncode == 0, done.stderr
        for transport in ("self", "tcp", "posix", "cma"):
            assert f"Transport: {transport}\n" in done.stdout, (node, transport)
        assert "Device: eth0\n" in done.stdout


def test_rdma_has_its_libraries_on_every_node(host: Host) -> None:
    for module in ("libuct_ib.so", "libuct_rdmacm.so"):
        said = host.check_output(f"ldd {PREFIX}/lib/ucx/{module}")
        assert "not found" not in said, module
        assert f"{PREFIX}/lib/libucs.so.0" in said


def test_it_was_built_for_ranks_with_threads_and_says_so(host: Host) -> None:
    marker = json.loads(host.check_output(f"cat {PREFIX}/.clusterctl.json"))
    assert {"--enable-mt", "--with-verbs", "--with-rdmacm"} <= set(marker["inputs"]["configure"])
    assert "--enable-mt" in host.check_output(f"{PREFIX}/bin/ucx_info -v")
