"""The Slurm of a sandbox: its configuration, its scripts, and when it is ready."""

from __future__ import annotations

import os
import subprocess
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from clusterctl.sandbox import model, slurm
from clusterctl.sandbox.model import Sandbox, SandboxSpec
from clusterctl.support.errors import ConfigError

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
