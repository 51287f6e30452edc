"""Every node loads the NCCL that was installed, programs are built against it, and another one in the way is named."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from testinfra.host import Host

    Login = Callable[..., subprocess.CompletedProcess[str]]

HOME = "/usr/local/nccl"
CHECK = f"{HOME}/libexec/clusterctl-nccl-check"
PROGRAM = r"""
#include <nccl.h>
#include <stdio.h>
int main(void) {
    int version = 0;
    ncclUniqueId id;
    if (ncclGetVersion(&version) != ncclSuccess || ncclGetUniqueId(&id) != ncclSuccess) return 1;
    printf("%d %d\n", version, NCCL_VERSION_CODE);
    return 0;
}
"""
OTHER = "int ncclGetVersion(int *version) { *version = 21805; return 0; }"


@pytest.fixture
def folder(host: Host) -> str:
    return str(host.check_output(f"realpath {HOME}"))


@pytest.fixture
def version(host: Host) -> str:
    return str(json.loads(host.file(f"{HOME}/.clusterctl.json").content_string)["version"])


def said(text: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_a_session_without_root_loads_this_very_library(login: Login, host: Host, folder: str, version: str) -> None:
    node = host.check_output("hostname")
    answer = said(login(node, CHECK).stdout)
    assert answer == {"version": version, "header": version, "path": f"{folder}/lib/libnccl.so.2"}


def test_the_loader_has_it_and_nothing_else_of_ours_in_its_cache(host: Host) -> None:
    lines = host.check_output("/sbin/ldconfig -p").splitlines()
    ours = [line.strip() for line in lines if "clusterctl" in line or HOME in line]
    assert ours == ["libnccl.so.2 (libc6,x86-64) => /usr/local/lib/clusterctl/libnccl.so.2"]


def test_the_unversioned_name_and_the_headers_are_there(host: Host) -> None:
    assert host.file(f"{HOME}/lib/libnccl.so").linked_to.endswith("/lib/libnccl.so.2")
    for name in ("nccl.h", "nccl_device"):
        assert host.file(f"/usr/include/{name}").linked_to.startswith(host.check_output(f"realpath {HOME}"))


def test_the_marker_tells_cuda_and_source(host: Host) -> None:
    inputs = said(host.file(f"{HOME}/.clusterctl.json").content_string)["inputs"]
    assert (inputs["cuda"], inputs["source"]) == ("13", "wheel")
    assert re.fullmatch(r"[0-9a-f]{64}", inputs["sha256"][0])


def test_a_program_is_compiled_by_pkg_config_and_runs(host: Host, version: str) -> None:
    if host.backend.get_hostname() != "node1":
        pytest.skip("the other nodes have no compiler")
    host.run(
        "mkdir -p /opt/prog/cuda && cp /dev/null /opt/prog/cuda/cuda_fp16.h && cp /dev/null /opt/prog/cuda/cuda_bf16.h"
    )
    stand_in = "#include <stddef.h>\ntypedef struct s *cudaStream_t; typedef struct e *cudaEvent_t;"
    host.check_output("printf '%%s' %s > /opt/prog/cuda/cuda_runtime.h", stand_in)
    host.check_output("printf '%%s' %s > /opt/prog/p.c", PROGRAM)
    pkg = f"PKG_CONFIG_PATH={HOME}/lib/pkgconfig pkg-config"
    assert host.check_output(f"{pkg} --modversion nccl") == version
    host.check_output(
        f"cd /opt/prog && gcc -Icuda -DCUDART_VERSION=13000 $({pkg} --cflags nccl) -o p p.c $({pkg} --libs nccl)"
    )
    found, header = host.check_output("/opt/prog/p").split()
    assert found == header
    # and by /usr/include alone, as programs look that know nothing of pkg-config
    host.check_output(f"cd /opt/prog && gcc -Icuda -DCUDART_VERSION=13000 -o q p.c -L{HOME}/lib -lnccl && ./q")


@pytest.fixture
def other(host: Host) -> Iterator[str]:
    """Return a folder with an NCCL of another version."""
    if host.backend.get_hostname() != "node1":
        pytest.skip("the other nodes have no compiler")
    place = "/opt/other/lib"
    host.check_output(f"mkdir -p {place}")
    host.check_output(
        f"printf '%%s' %s | gcc -shared -fPIC -x c - -o {place}/libnccl.so.2 -Wl,-soname,libnccl.so.2", OTHER
    )
    yield place
    host.check_output("rm -r /opt/other")


def test_another_nccl_in_the_way_is_named_with_who_leads_to_it(host: Host, other: str, version: str) -> None:
    result = host.run(f"env LD_LIBRARY_PATH={other} {CHECK} --prove {HOME} {version}")
    assert result.rc == 1
    assert f"the loader takes NCCL 2.18.5 of {other}/libnccl.so.2 instead of {version}" in result.stderr
    assert f"LD_LIBRARY_PATH is '{other}'" in result.stderr


def test_another_version_than_the_wanted_is_named(host: Host, version: str) -> None:
    result = host.run(f"{CHECK} --prove {HOME} 2.18.5")
    assert result.rc == 1
    assert f"is NCCL {version} instead of 2.18.5" in result.stderr
