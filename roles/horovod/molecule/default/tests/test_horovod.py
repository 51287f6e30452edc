"""Ranks on both nodes compute right over Horovod, for a user who is not root, and what is wrong with one is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from testinfra.backend.base import CommandResult
    from testinfra.host import Host

PYTHON = "/usr/local/python_env/bin/python"
CHECK = "/usr/local/horovod/libexec/clusterctl-horovod-check"
HOROVODRUN = "/usr/local/horovod/bin/horovodrun"
MPIRUN = "/usr/local/openmpi/bin/mpirun"
ELSEWHERE = "/opt/another-openmpi"
COLLECTIVES = """
import json, torch, horovod.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
parts = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
model = torch.nn.Linear(3, 1)
torch.nn.init.constant_(model.weight, float(rank + 7))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
print(json.dumps({
    "rank": rank, "size": size, "local_rank": hvd.local_rank(), "mpi": hvd.mpi_enabled(),
    "sum": hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum).tolist(),
    "half": hvd.allreduce(torch.tensor([rank + 0.5], dtype=torch.float16), op=hvd.Average).tolist(),
    "gathered": parts.tolist(), "weight": model.weight.tolist(),
}), flush=True)
hvd.shutdown()
"""


def marker(host: Host, artifact: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(host.file(f"/usr/local/{artifact}/.clusterctl.json").content_string)
    return said


def promise(host: Host, **changes: Any) -> str:
    wanted = {
        "framework": "pytorch",
        "controllers": ["MPI", "Gloo"],
        "operations": ["MPI", "Gloo"],
        "openmpi_key": marker(host, "openmpi")["key"],
        "nccl": "/usr/local/nccl",
        "nccl_key": "",
        "folder": "/usr/local/horovod",
        "taken": False,
    }
    return json.dumps(wanted | changes)


def ranks(host: Host, where: str, *arguments: str, options: str = "") -> CommandResult:
    """Start a rank on each of the places as the login user."""
    command = f"sudo -iu cluster {MPIRUN} --host {where} -np 2 {options} {PYTHON}"
    return host.run(command + " %s" * len(arguments), *arguments)


def answers(result: CommandResult) -> list[dict[str, Any]]:
    assert result.rc == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return sorted((json.loads(line) for line in lines), key=lambda answer: answer["rank"])


@pytest.fixture
def program(host: Host) -> str:
    """Return a program on this node and its neighbour; each test's node starts it."""
    path = "/home/cluster/collectives.py"
    host.run_test("sudo -u cluster sh -c %s", f"cat > {path} <<'END'\n{COLLECTIVES}\nEND")
    for node in ("node1", "node2"):
        host.check_output(f"sudo -iu cluster scp -q {path} {node}:{path}")
    return path


def test_the_two_nodes_compute_together(host: Host, program: str) -> None:
    said = answers(ranks(host, "node1:1,node2:1", program))
    assert [(one["rank"], one["size"], one["local_rank"], one["mpi"]) for one in said] == [
        (0, 2, 0, True),
        (1, 2, 0, True),
    ]
    for one in said:
        assert one["sum"] == [3.0]
        assert one["half"] == [1.0]
        assert one["gathered"] == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert one["weight"] == [[7.0, 7.0, 7.0]]


def test_horovodrun_starts_ranks_without_mpi(host: Host, program: str) -> None:
    result = host.run(f"sudo -iu cluster {HOROVODRUN} --gloo -np 2 -H localhost:2 {PYTHON} {program}")
    assert result.rc == 0, result.stderr
    assert result.stdout.count('"mpi": false, "sum": [3.0]') == 2


def test_check_build_names_what_was_asked_for(host: Host) -> None:
    said = host.check_output(f"sudo -iu cluster {HOROVODRUN} --check-build")
    for entry in ("[X] PyTorch", "[ ] TensorFlow", "[X] MPI", "[X] Gloo", "[ ] NCCL"):
        assert entry in said


def test_ranks_run_on_the_installed_build(host: Host) -> None:
    said = answers(ranks(host, "localhost:2", CHECK, promise(host)))
    folder = host.check_output("realpath /usr/local/openmpi")
    assert [one["rank"] for one in said] == [0, 1]
    assert all(one["library_path"].startswith(f"{folder}/lib/libmpi.so") for one in said)


@pytest.fixture
def foreign_libmpi(host: Host) -> str:
    """Return a folder with a libmpi that is not the cluster's build."""
    host.check_output(f"mkdir -p {ELSEWHERE} && cp -aL /usr/local/openmpi/lib/. {ELSEWHERE}/")
    return ELSEWHERE


def test_a_foreign_libmpi_is_named(host: Host, foreign_libmpi: str) -> None:
    result = ranks(host, "localhost:2", CHECK, promise(host), options=f"-x LD_LIBRARY_PATH={foreign_libmpi}")
    assert result.rc != 0
    assert f"Horovod runs on {foreign_libmpi}/libmpi.so" in result.stderr


def test_a_backend_that_is_not_built_in_is_named(host: Host) -> None:
    wanted = promise(host, operations=["MPI", "Gloo", "NCCL"])
    result = ranks(host, "localhost:2", CHECK, wanted)
    assert result.rc != 0
    assert "was asked to have the tensor operations Gloo, MPI, NCCL, and horovodrun --check-build names Gloo, MPI" in (
        result.stderr
    )


def test_the_artifact_names_what_it_was_built_against(host: Host) -> None:
    inputs = marker(host, "horovod")["inputs"]
    framework = marker(host, "python_env")["inputs"]["framework"]
    assert inputs["openmpi"] == marker(host, "openmpi")["key"]
    assert {field: inputs["framework"][field] for field in ("name", "version", "cuda", "nccl")} == {
        field: framework[field] for field in ("name", "version", "cuda", "nccl")
    }
    assert (inputs["nccl"], inputs["gpu_operations"], inputs["with"], inputs["gloo"]) == ("", "none", "pytorch", True)


def test_nothing_tells_of_the_folder_it_was_built_in(host: Host) -> None:
    # byte code names it, and Python puts the right place there when it loads
    found = host.run("grep -rl --exclude='*.pyc' clusterctl-horovod- /usr/local/horovod/site-packages")
    assert found.stdout == ""
