"""One mpirun sends between both nodes through UCX, as UCX's own log tells, and each library comes from this build."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from testinfra.host import Host

    Login = Callable[..., subprocess.CompletedProcess[str]]

PREFIX = "/usr/local"
VERSION = "1.13.1"
THROUGH_UCX = ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"]


@pytest.fixture(autouse=True)
def _with_ucx(host: Host) -> None:
    if not host.exists(f"{PREFIX}/ucx/bin/ucx_info"):
        pytest.skip("no node of this cluster has an RDMA device, so openmpi_ucx: auto leaves UCX out")


def marker(host: Host, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.check_output(f"cat {PREFIX}/{name}/.clusterctl.json"))
    return found


@pytest.mark.parametrize("launcher", ["node1", "node2"])
def test_ranks_on_both_nodes_talk_through_ucx(login: Login, launcher: str) -> None:
    hello = f"{PREFIX}/openmpi/libexec/clusterctl-hello"
    line = [f"{PREFIX}/openmpi/bin/mpirun", "--host", "node1:2,node2:2", "-np", "4", *THROUGH_UCX]
    done = login(launcher, *line, "-x", "UCX_TLS=tcp,sm,self", "-x", "UCX_LOG_LEVEL=info", hello)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert len(re.findall(r'"rank": \d', said)) == 4
    assert re.search(r"UCX +INFO .*tag\(tcp/", said), "UCX's log names TCP for the messages between the nodes"


def test_open_mpi_stands_on_this_ucx(host: Host) -> None:
    assert marker(host, "openmpi")["inputs"]["ucx"] == marker(host, "ucx")["key"]
    assert f"libucp.so.0 => {PREFIX}/ucx/lib/" in host.check_output(f"ldd {PREFIX}/openmpi/lib/libmpi.so")
    assert VERSION in host.check_output(f"{PREFIX}/ucx/bin/ucx_info -v")


def test_rdma_has_its_libraries_on_every_node(host: Host) -> None:
    for module in ("libuct_ib.so", "libuct_rdmacm.so"):
        assert "not found" not in host.check_output(f"ldd {PREFIX}/ucx/lib/ucx/{module}"), module
