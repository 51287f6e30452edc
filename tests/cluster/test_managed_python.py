"""One CPython for all nodes: built on nodes with an old Python, used by MPI over two nodes, and given up again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusterctl import sandbox as sandboxes

# long: without a cache, it makes an image (2 minutes) and compiles Open MPI and CPython for Debian 11
pytestmark = [pytest.mark.cluster, pytest.mark.long]

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
ALONE = ("-e", "python_env_framework=none", "-e", "nccl_install=never")
MANAGED = (*ALONE, "-e", "python_env_python=managed")
RANK = (
    "import ssl, sqlite3, sys; from mpi4py import MPI; import numpy;"
    " print(MPI.Get_processor_name(), sys.version.split()[0], sys.base_prefix, MPI.COMM_WORLD.allreduce(1))"
)
SHA256 = "2411c74bda5bbcfcddaf4531f66d1adc73f247f529aee981b029513aefdbf849"  # as Debian signs it
# The index has no PyTorch for CPUs for each Python. It may have it for this one, whose source Debian 12 has.
TRAINING = {
    "python_env_python": "managed",
    "python_env_python_version": "3.11.2",
    "python_env_python_sources": [
        {"url": "https://www.python.org/ftp/python/3.11.2/Python-3.11.2.tgz", "sha256": SHA256},
        {"apt": {"package": "python3.11", "version": "3.11.2", "sha256": SHA256}},
    ],
    "python_env_framework": "pytorch",
    "nccl_install": "never",
    "horovod_install": "always",
}
TORCH_RANK = (
    "import sys, torch, horovod.torch as hvd; hvd.init();"
    " total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name='one');"
    " print(sys.version.split()[0], sys.base_prefix, torch.__version__.partition('+')[0], int(total))"
)


class Operator:
    """Somebody who provisions one cluster again and again, with the user's cache of artifacts."""

    def __init__(self, cluster: sandboxes.Sandbox, state: Path) -> None:
        self.cluster = cluster
        self.environment = {**os.environ, "XDG_STATE_HOME": str(state)}

    def runs(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [CLUSTERCTL, verb, str(self.cluster.inventory), *words]
        return subprocess.run(
            argv, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def provisions(self, *words: str) -> set[str]:
        """Provision, and return how it ended on the hosts."""
        done = self.runs("provision", "--no-validate", "--format", "json", *words)
        assert done.returncode == 0, done.stderr[-4000:]
        record: dict[str, Any] = json.loads(done.stdout)
        return {host["outcome"] for host in record["hosts"]}

    def ranks(self) -> list[str]:
        """Return the node, Python, its folder and the number of ranks, of each rank of a program."""
        done = self.runs("run", "--", "python", "-c", RANK)
        assert done.returncode == 0, done.stderr[-4000:]
        return sorted(done.stdout.splitlines())


@pytest.fixture(scope="module")
def operator(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Two nodes of Debian 11, whose own Python is 3.9."""
    return Operator(sandbox("managed", nodes=2, images=("debian11",)), tmp_path_factory.mktemp("state"))


def everywhere(python: str, folder: str) -> list[str]:
    return [f"{node} {python} {folder} 4" for node in ("node1", "node1", "node2", "node2")]


def test_one_python_runs_mpi_over_all_nodes_and_can_be_given_up(operator: Operator) -> None:
    operator.provisions(*MANAGED)
    assert operator.ranks() == everywhere("3.13.5", "/usr/local/cpython")
    assert operator.provisions(*MANAGED) == {"ok"}, "the second run changes nothing"
    validation = operator.runs("validate", "--checks", "hello,allreduce", "--format", "json")
    assert validation.returncode == 0, validation.stdout[-4000:] + validation.stderr[-4000:]

    operator.provisions(*ALONE)
    assert operator.ranks() == everywhere("3.9.2", "/usr")
    operator.provisions(*MANAGED)
    assert operator.ranks() == everywhere("3.13.5", "/usr/local/cpython"), "both builds stay beside each other"


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"python_env_python": "conda"}, 1, "must be one of: system, managed, got: conda"),
        ({"python_env_python_version": "3.12.1"}, 1, "No source of Python 3.12.1 is known"),
        (
            {"python_env_python_sources": [{"path": "/nowhere/python.tar.xz", "sha256": "0" * 64}]},
            2,
            "No source of cpython 3.13.5 could be used: /nowhere/python.tar.xz: the file does not exist",
        ),
    ],
)
def test_a_python_that_cannot_be_had_is_told_in_one_sentence(
    operator: Operator, given: dict[str, Any], code: int, said: str
) -> None:
    done = operator.runs("provision", "--no-validate", *MANAGED, "-e", json.dumps(given))
    assert said in " ".join(done.stderr.split()), done.stderr[-4000:]
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(operator.ranks()) == 4, "the environment of before is still in use"


def test_one_python_trains_with_pytorch_and_horovod(sandbox: Callable[..., sandboxes.Sandbox], tmp_path: Path) -> None:
    trainer = Operator(sandbox("managed-stack", nodes=2), tmp_path)
    variables = ("-e", json.dumps(TRAINING))
    trainer.provisions(*variables)
    done = trainer.runs("run", "--", "python", "-c", TORCH_RANK)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["3.11.2 /usr/local/cpython 2.13.0 4"] * 4
    validation = trainer.runs("validate", "--checks", "hello,torchrun,horovod", "--format", "json")
    assert validation.returncode == 0, validation.stdout[-4000:] + validation.stderr[-4000:]
    verdicts = {check["check"]: check["verdict"] for check in json.loads(validation.stdout)["checks"]}
    assert {verdicts[check] for check in ("hello", "torchrun", "horovod")} == {"PASS"}
    assert trainer.provisions(*variables) == {"ok"}, "the second run changes nothing"
