from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterctl.cli.render import Kind
from clusterctl.launch import submission_text


def containers(document: Any) -> dict[str, Any]:
    replicas = next(value for name, value in document["spec"].items() if name.endswith("ReplicaSpecs"))
    return {kind: replica["template"]["spec"]["containers"][0] for kind, replica in replicas.items()}


def render(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "clusterctl", "render", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_command_prints_the_submission_alone() -> None:
    assert {kind.value for kind in Kind} - {"slurm-prolog"} == set(submission_text.KINDS)
    common = ("--name", "bert", "--image", "train:1", "--nodes", "2", "--gpus-per-node", "8")
    rdma = ("--rdma-resource", "rdma/a=1", "--network-attachment", "roce", "--annotation", "a=b", "-x", "A=b=c")
    done = render("pytorchjob", *common, *rdma, "--", "train.py", "--lr", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    container = containers(yaml.safe_load(done.stdout))["Worker"]
    assert container["command"] == ["clusterctl", "launch", "--", "train.py", "--lr", "0.1"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    torchrun = render("mpijob", "--launcher", "torchrun", *common, "--", "train.py")
    assert "clusterctl" in containers(yaml.safe_load(torchrun.stdout))["Launcher"]["command"]


def test_a_dry_run_without_a_cluster_ends_with_one_sentence_and_prints_nothing(tmp_path: Path) -> None:
    common = ("pytorchjob", "--name", "bert", "--image", "train:1", "--dry-run")
    missing = str(tmp_path / "config")
    done = render(*common, "--kubeconfig", missing, "--", "train.py")
    assert (done.returncode, done.stdout) == ((1 if shutil.which("kubectl") else 11), "")
    assert (f"There is no kubeconfig {missing}" in done.stderr) == bool(shutil.which("kubectl"))
    alone = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "clusterctl", "render", *common, "--", "train.py"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=alone)
    assert (done.returncode, done.stdout) == (11, "")
    assert "The manifest was not checked, because this machine has no kubectl" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("slurm", "--name", "a"), 1, "There is no program to start"),
        (("swarm", "--name", "a", "--", "x"), 2, ": 'swarm' is not one of"),
        (("slurm", "--name", "a", "-x", "A", "--", "x"), 2, "'A' is not NAME=VALUE"),
        (("runai", "--name", "a", "--image", "i", "--rdma-resource", "rdma/a=x", "--", "x"), 2, "is not a number"),
        (("slurm", "--name", "A", "--", "x"), 1, "'A' is not a valid name for a job"),
        (("runai", "--name", "a", "--image", "i", "--dry-run", "--", "x"), 2, "only mpijob and pytorchjob are"),
        (("slurm-prolog", "--dry-run"), 2, "only mpijob and pytorchjob are"),
        (("mpijob", "--name", "a", "--image", "i", "--context", "c", "--", "x"), 2, "it needs --dry-run"),
    ],
)
def test_bad_input_ends_with_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = render(*arguments)
    assert done.returncode == code
    assert words in " ".join(done.stderr.split())
    assert done.stdout == ""


def prolog(folder: Path, *arguments: str, said: str, status: int) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the rendered prolog with a stand-in for the look at the node; return what it did and what it asked Slurm."""
    done = render("slurm-prolog", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    asked = folder / "asked"
    for name, body in (
        ("look", f"printf '%s\\n' '{said}'; exit {status}"),
        ("scontrol", f'printf "%s|" "$@" >{asked}'),
    ):
        (bin_folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_folder / name).chmod(0o755)
    script = done.stdout
    for word in ("/usr/bin/python3 -I -S /usr/local/libexec/clusterctl/check_node.py",):
        assert word in script
        script = script.replace(word, str(bin_folder / "look"))
    environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "SLURMD_NODENAME": "node7"}
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=60)
    return ran, asked.read_text() if asked.exists() else ""


def test_the_prolog_lets_a_fit_node_run_and_drains_an_unfit_one_with_its_cause(tmp_path: Path) -> None:
    for number, (arguments, status, reason) in enumerate(
        [((), 0, ""), ((), 10, "clusterctl check-node: it is full; free it"), (("--no-reason",), 10, "")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        ran, asked = prolog(folder, *arguments, said="node7: it is full; free it", status=status)
        assert ran.returncode == (1 if status else 0)
        assert ("node7: it is full" in ran.stderr) == bool(status)
        assert asked == (f"update|nodename=node7|state=drain|reason={reason}|" if reason else "")


def test_the_prolog_has_words_for_a_look_that_was_killed(tmp_path: Path) -> None:
    ran, asked = prolog(tmp_path, said="", status=137)
    assert ran.returncode == 1
    assert "gave no answer" in asked


def test_the_prolog_takes_no_program() -> None:
    done = render("slurm-prolog", "--", "train.py")
    assert done.returncode == 2
    assert "takes no program" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("slurm-prolog",), ("slurm", "--name", "job", "--nproc-per-node", "2", "--launcher", "srun", "--", "./hello")],
)
def test_scripts_for_slurm_name_the_folder_of_the_software(arguments: tuple[str, ...]) -> None:
    kind, *rest = arguments
    done = render(kind, "--cluster-prefix", "/opt/cluster", *rest)
    assert (done.returncode, done.stderr) == (0, "")
    assert "/opt/cluster/" in done.stdout
    assert "/usr/local" not in done.stdout
    done = render(kind, "--cluster-prefix", "opt/cluster", *rest)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cluster_prefix is 'opt/cluster', which is not an absolute path" in done.stderr


def test_a_look_that_was_killed_drains_no_node(tmp_path: Path) -> None:
    ran, asked = prolog(tmp_path, said="node7: unknown: the look at sshd was ended by signal 9", status=11)
    assert (ran.returncode, asked) == (0, "")
