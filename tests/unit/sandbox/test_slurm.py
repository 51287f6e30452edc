"""The Slurm of a sandbox: its configuration, its scripts, and when it is ready."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from clusterctl.sandbox import model, slurm
from clusterctl.sandbox.model import Sandbox, SandboxNode, SandboxSpec
from clusterctl.support.errors import ConfigError, HostFailedError

SUBNET = IPv4Network("10.90.7.0/24")
SPEC = SandboxSpec(name="mine", nodes=3, extras=("slurm",))


def sandbox() -> Sandbox:
    return Sandbox(
        name=SPEC.name,
        network="n",
        subnet=str(SUBNET),
        images=SPEC.images,
        nodes=model.plan_nodes(SPEC, SUBNET),
        inventory=Path("/i"),
        private_key=Path("/k"),
        known_hosts=Path("/h"),
        extras=SPEC.extras,
    )


def test_the_configuration_names_each_node_with_its_address() -> None:
    lines = slurm.conf(sandbox(), 2).splitlines()
    assert "SlurmctldHost=node1(10.90.7.11)" in lines
    nodes = [line for line in lines if line.startswith("NodeName=")]
    assert [line.split()[:2] for line in nodes] == [
        [f"NodeName=node{number}", f"NodeAddr=10.90.7.1{number}"] for number in (1, 2, 3)
    ]
    assert all("Sockets=1 CoresPerSocket=2 ThreadsPerCore=1" in line for line in nodes)
    assert "TaskPlugin=task/none" in lines
    assert [line for line in lines if line.startswith("PartitionName=") and "Default=YES" in line]
    assert 1 <= slurm.cores() <= min(2, os.cpu_count() or 1)


@pytest.mark.parametrize("script", ["_INSTALL", "_TAKE_KEY", "_START"])
def test_the_scripts_are_valid_for_a_shell_of_debian(script: str) -> None:
    text = getattr(slurm, script)
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_ready_once_every_node_takes_jobs() -> None:
    assert slurm.waiting_for("node1|idle|none\nnode2|idle|none\n", 2) == ""
    assert slurm.waiting_for("node1|idle|none\n", 2) == "1 of 2 nodes are known"
    words = slurm.waiting_for("node1|idle|none\nnode2|inval|Low CPUs | few\n", 2)
    assert words == "node2 is inval (Low CPUs | few)"
    assert slurm.waiting_for("node1|unknown*|none\n", 1)


def test_slurm_goes_with_its_image_alone() -> None:
    with pytest.raises(ConfigError, match=r"--with slurm needs nodes of debian12.*--image"):
        SandboxSpec(images=("debian13",), extras=("slurm",))
    with pytest.raises(ConfigError, match="'pbs'"):
        SandboxSpec(extras=("pbs",))


def test_a_sandbox_of_an_earlier_version_has_no_slurm() -> None:
    text = sandbox().model_copy(update={"extras": ()}).model_dump_json(exclude={"extras"})
    assert Sandbox.model_validate_json(text).extras == ()


class Engine:
    """Stands in for podman: writes down each command with what it gets on stdin."""

    def __init__(self, states: list[str]) -> None:
        self.asked: list[tuple[str, tuple[str, ...], bytes]] = []
        self.states = states

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        words = arguments[2:] if arguments[1] == "--interactive" else arguments[1:]
        self.asked.append((words[0], tuple(words[1:]), stdin))
        return b"the key" if "cat" in words else b""

    def succeeds(self, *_arguments: str) -> bool:
        return True

    def text(self, *_arguments: str) -> str:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def each(act: Callable[[SandboxNode], Any], nodes: Sequence[SandboxNode]) -> list[Any]:
    return [act(node) for node in nodes]


READY = "".join(f"node{number}|idle|none\n" for number in (1, 2, 3))


def test_nodes_share_one_key_and_one_configuration_and_the_first_one_has_the_controller() -> None:
    engine, box = Engine(["node1|unknown|none\n", READY]), sandbox()
    slurm.start(engine, box, each, lambda _text: None)  # type: ignore[arg-type]
    containers = [node.container for node in box.nodes]
    keys = [(place, stdin) for place, _, stdin in engine.asked if stdin == b"the key"]
    assert keys == [(place, b"the key") for place in containers[1:]]
    confs = {place: (words, stdin) for place, words, stdin in engine.asked if stdin.startswith(b"ClusterName=mine")}
    assert list(confs) == containers
    assert len({stdin for _, stdin in confs.values()}) == 1
    assert [words[-1] for words, _ in confs.values()] == ["slurmd"] * 3
    assert ["slurmctld" in words for words, _ in confs.values()] == [True, False, False]


def test_a_node_that_takes_no_jobs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_READY_S", 0.0)
    engine = Engine(["node1|idle|none\nnode2|down|Not responding\nnode3|idle|none\n"])
    with pytest.raises(HostFailedError, match=r"node2 is down \(Not responding\)"):
        slurm.start(engine, sandbox(), each, lambda _text: None)  # type: ignore[arg-type]
