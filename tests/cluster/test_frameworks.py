"""The framework that the table gives to the oldest and the newest Python, or the refusal, on two nodes of each release.

Where the index has no PyTorch for CPUs, a case with PyTorch takes 20 to 30 GB of disk. ``-k`` runs a case alone.
"""

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

# long: without a cache, it makes two images, fetches 3 GB for each PyTorch, and compiles Open MPI for two platforms
pytestmark = [pytest.mark.cluster, pytest.mark.long]

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
LINK = "/usr/local/python_env"
WITH_CUDA = {"python_env_framework_version": "2.12.0", "python_env_framework_build": "cuda"}
ASKED = (
    "import sys, tensorflow as t;"
    " print(sys.version_info[:2], t.__version__, int(t.tensordot(t.range(9.0), t.ones(9), 1)))"
)


class Operator:
    """Somebody who gives two nodes of one release a framework, with the user's cache of artifacts."""

    def __init__(self, cluster: sandboxes.Sandbox, state: Path) -> None:
        self.cluster = cluster
        self.environment = {**os.environ, "XDG_STATE_HOME": str(state)}

    def runs(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [CLUSTERCTL, verb, str(self.cluster.inventory), "--format", "json", *words]
        return subprocess.run(
            argv, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def provisions(self, *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        return self.runs("provision", "--no-validate", *words, "-e", json.dumps(variables))

    def said(self, node: str, *argv: str) -> str:
        """Return what a program prints on a node."""
        command = sandboxes.ssh_command(self.cluster, self.cluster.node(node), argv)
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def operators(
    sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Operator]:
    """Return the operator of a release's nodes, which are started when a test asks for them."""

    def of(image: str) -> Operator:
        return Operator(sandbox(f"fw-{image}", nodes=2, images=(image,)), tmp_path_factory.mktemp(image))

    return of


@pytest.mark.parametrize(
    ("image", "variables", "said"),
    [
        ("testing", {}, "TensorFlow has no build for CPUs for Python 3.14 on x86_64"),
        ("debian11", WITH_CUDA, "TensorFlow 2.12.0 has no build that brings CUDA"),
    ],
)
def test_a_framework_that_a_node_cannot_have_is_refused_before_a_change(
    operators: Callable[[str], Operator], image: str, variables: dict[str, str], said: str
) -> None:
    operator = operators(image)
    before = operator.said("node1", "ls", "/usr/local")
    done = operator.provisions(python_env_framework="tensorflow", **variables)
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split()), done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    assert operator.said("node1", "ls", "/usr/local") == before


def test_python_3_9_gets_the_tensorflow_of_the_table(operators: Callable[[str], Operator]) -> None:
    """The role python_env runs without Open MPI, which takes minutes to compile."""
    operator = operators("debian11")
    done = operator.provisions("--tags", "python_env", python_env_framework="tensorflow")
    assert done.returncode == 0, done.stderr[-4000:]
    for node in ("node1", "node2"):
        assert operator.said(node, f"{LINK}/bin/python", "-c", ASKED) == "(3, 9) 2.12.0 36"
    again = operator.provisions("--tags", "python_env", python_env_framework="tensorflow")
    assert {host["outcome"] for host in json.loads(again.stdout)["hosts"]} == {"ok"}, "the second run changes nothing"


@pytest.mark.parametrize(("image", "version"), [("debian11", "2.8.0"), ("testing", "2.13.0")])
def test_each_python_gets_the_pytorch_of_the_table_and_trains(
    operators: Callable[[str], Operator], image: str, version: str
) -> None:
    operator = operators(image)
    done = operator.provisions(python_env_framework="pytorch")
    assert done.returncode == 0, done.stderr[-4000:]
    asked = "import torch; print(torch.__version__.partition('+')[0])"
    for node in ("node1", "node2"):
        assert operator.said(node, f"{LINK}/bin/python", "-c", asked) == version
    done = operator.runs("validate", "--checks", "hello,torchrun")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    verdicts = {check["check"]: check["verdict"] for check in json.loads(done.stdout)["checks"]}
    assert (verdicts["hello"], verdicts["torchrun"]) == ("PASS", "PASS")
