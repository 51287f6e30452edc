"""One mpirun runs ranks on both nodes, and each rank has this very build's library mapped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from testinfra.host import Host

    Login = Callable[..., subprocess.CompletedProcess[str]]

VERSION = "5.0.7"
PREFIX = "/usr/local/openmpi"
NODES = ("node1", "node2")


@pytest.mark.parametrize("launcher", NODES)
def test_mpirun_runs_ranks_on_both_nodes(login: Login, launcher: str) -> None:
    # a plain session of the login user, without any environment that would help prted to be found
    hello = [f"{PREFIX}/bin/mpirun", "--host", "node1:2,node2:2", "-np", "4", f"{PREFIX}/libexec/clusterctl-hello"]
    done = login(launcher, *hello)
    assert done.returncode == 0, done.stderr
    ranks: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(rank["rank"] for rank in ranks) == [0, 1, 2, 3]
    assert {rank["host"] for rank in ranks} == set(NODES)
    assert {rank["library_path"] for rank in ranks} == {f"{target(login)}/lib/libmpi.so.40.40.7"}
    assert all(rank["library_version"].startswith(f"Open MPI v{VERSION}") for rank in ranks)


def target(login: Login) -> str:
    found = {login(node, "readlink", "-f", PREFIX).stdout.strip() for node in NODES}
    assert len(found) == 1, "the nodes run different builds"
    return found.pop()


def test_it_carries_what_training_needs(host: Host) -> None:
    told = host.check_output(f"{PREFIX}/bin/ompi_info --parsable")
    for component in ("btl:tcp", "btl:sm", "btl:self", "pml:ob1", "coll:tuned", "coll:han", "io:ompio"):
        assert f"mca:{component}:version" in told, component
    assert "--with-pmix=internal" in told


def test_every_node_has_the_wrappers_for_c_and_cpp(host: Host) -> None:
    for wrapper, compiler in (("mpicc", "gcc"), ("mpicxx", "g++"), ("mpic++", "g++"), ("mpiCC", "g++")):
        assert host.check_output(f"{PREFIX}/bin/{wrapper} --showme:command") == compiler, wrapper


def test_no_node_but_the_builder_got_a_compiler(host: Host) -> None:
    if host.backend.get_hostname() == "node1":
        pytest.skip("the builder, where something was to be built")
    assert not host.exists("gcc")


def test_everybody_may_use_it(host: Host) -> None:
    listing = host.check_output(f"find {PREFIX}/ -not -type l -not -perm -o+r -printf '%p\\n'")
    assert listing == ""
