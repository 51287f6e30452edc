"""Ranks of the cluster's Python run on its Open MPI, for a user who is not root, and a foreign libmpi is seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from testinfra.backend.base import CommandResult
    from testinfra.host import Host

PYTHON = "/usr/local/python_env/bin/python"
CHECK = "/usr/local/mpi4py/libexec/clusterctl-mpi4py-check"
ELSEWHERE = "/opt/another-openmpi"


def ranks(host: Host, *arguments: str, options: str = "") -> CommandResult:
    """Start two ranks as the login user."""
    command = f"sudo -u cluster /usr/local/openmpi/bin/mpirun --host localhost:2 -np 2 {options} {PYTHON}"
    return host.run(command + " %s" * len(arguments), *arguments)


def answers(result: CommandResult) -> list[dict[str, Any]]:
    assert result.rc == 0, result.stderr
    return sorted((json.loads(line) for line in result.stdout.splitlines()), key=lambda answer: answer["rank"])


def openmpi_key(host: Host) -> str:
    return str(json.loads(host.file("/usr/local/openmpi/.clusterctl.json").content_string)["key"])


def test_ranks_run_on_the_installed_build(host: Host) -> None:
    said = answers(ranks(host, CHECK, openmpi_key(host), "/usr/local/mpi4py"))
    folder = host.check_output("realpath /usr/local/openmpi")
    assert [(answer["rank"], answer["size"]) for answer in said] == [(0, 2), (1, 2)]
    assert all(answer["library_path"].startswith(f"{folder}/lib/libmpi.so") for answer in said)


def test_python_objects_and_arrays_travel(host: Host) -> None:
    program = (
        "from mpi4py import MPI; import numpy as np, json; w = MPI.COMM_WORLD; a = np.arange(4.0) * (w.rank + 1);"
        " b = np.empty(4); w.Allreduce(a, b, op=MPI.MAX);"
        " print(json.dumps({'rank': w.rank, 'max': b.tolist(), 'all': w.allgather({'r': w.rank})}), flush=True)"
    )
    for answer in answers(ranks(host, "-c", program)):
        assert answer["max"] == [0.0, 2.0, 4.0, 6.0]
        assert answer["all"] == [{"r": 0}, {"r": 1}]


@pytest.fixture
def foreign_libmpi(host: Host) -> str:
    """Return a folder with a libmpi that is not the cluster's build."""
    host.check_output(f"mkdir -p {ELSEWHERE} && cp -aL /usr/local/openmpi/lib/. {ELSEWHERE}/")
    return ELSEWHERE


def test_a_foreign_libmpi_is_named(host: Host, foreign_libmpi: str) -> None:
    options = f"-x LD_LIBRARY_PATH={foreign_libmpi}"
    result = ranks(host, CHECK, openmpi_key(host), "/usr/local/mpi4py", options=options)
    assert result.rc != 0
    assert f"mpi4py runs on {foreign_libmpi}/libmpi.so" in result.stderr
    assert "no build of the cluster" in result.stderr


def test_the_artifact_names_the_openmpi_it_was_built_against(host: Host) -> None:
    marker = json.loads(host.file("/usr/local/mpi4py/.clusterctl.json").content_string)
    assert marker["inputs"]["openmpi"] == openmpi_key(host)


def test_nothing_tells_of_the_folder_it_was_built_in(host: Host) -> None:
    assert host.run("grep -rlI clusterctl-mpi4py- /usr/local/mpi4py/site-packages --include=*.json").stdout == ""
