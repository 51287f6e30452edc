from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml
from clusterctl.cli.render import Kind
from clusterctl.launch import submission


def containers(document: Any) -> dict[str, Any]:
    replicas = next(value for name, value in document["spec"].items() if name.endswith("ReplicaSpecs"))
    return {kind: replica["template"]["spec"]["containers"][0] for kind, replica in replicas.items()}


def render(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "clusterctl", "render", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_command_prints_the_submission_alone() -> None:
    assert {kind.value for kind in Kind} == set(submission.KINDS)
    common = ("--name", "bert", "--image", "train:1", "--nodes", "2", "--gpus-per-node", "8")
    rdma = ("--rdma-resource", "rdma/a=1", "--network-attachment", "roce", "--annotation", "a=b", "-x", "A=b=c")
    done = render("pytorchjob", *common, *rdma, "--", "train.py", "--lr", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    container = containers(yaml.safe_load(done.stdout))["Worker"]
    assert container["command"] == ["clusterctl", "launch", "--", "train.py", "--lr", "0.1"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    torchrun = render("mpijob", "--launcher", "torchrun", *common, "--", "train.py")
    assert "clusterctl" in containers(yaml.safe_load(torchrun.stdout))["Launcher"]["command"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("slurm", "--name", "a"), 1, "There is no program to start"),
        (("swarm", "--name", "a", "--", "x"), 2, ": 'swarm' is not one of"),
        (("slurm", "--name", "a", "-x", "A", "--", "x"), 2, "'A' is not NAME=VALUE"),
        (("runai", "--name", "a", "--image", "i", "--rdma-resource", "rdma/a=x", "--", "x"), 2, "is not a number"),
        (("slurm", "--name", "A", "--", "x"), 1, "'A' is not a valid name for a job"),
    ],
)
def test_bad_input_ends_with_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = render(*arguments)
    assert done.returncode == code
    assert words in " ".join(done.stderr.split())
    assert done.stdout == ""
