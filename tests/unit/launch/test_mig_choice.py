"""CUDA_VISIBLE_DEVICES by MIG instance: the launch line's own words, run by a real shell."""

from __future__ import annotations

import os
import subprocess

import pytest
from clusterctl.launch import affinity, compose, mpirun_job
from clusterctl.launch.compose import JobOptions, Launcher
from clusterctl.launch.mpirun import MapBy, PathOptions
from clusterctl.launch.mpirun_job import Member
from factory import provisioned

CUT = {"bus": "0000:07:00.0", "uuid": "GPU-a", "driver": "nvidia", "instances": ["MIG-a1", "MIG-a2"]}
OLDER = {"bus": "0000:08:00.0", "uuid": "GPU-b", "driver": "nvidia", "instances": ["MIG-GPU-b/1/0"]}
WHOLE = {"bus": "0000:07:00.0", "uuid": "GPU-c", "driver": "nvidia"}
TELL = ("sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}"')


def members(**gpus: list[dict[str, object]]) -> dict[str, Member]:
    return {
        name: Member(provisioned(name, number, gpus=found), 3, "5.0.7")
        for number, (name, found) in enumerate(gpus.items(), 1)
    }


def told(words: tuple[str, ...], **environment: object) -> str:
    """Run words as mpirun would, and return what the program sees."""
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    surroundings = clean | {name: str(value) for name, value in environment.items()}
    return subprocess.run(words, env=surroundings, capture_output=True, text=True, check=True).stdout.strip()


def ranks_of(nodes: dict[str, Member], **environment: object) -> list[str]:
    slots = {name: one.slots for name, one in nodes.items()}
    line = mpirun_job.line(nodes, slots, mpirun_job.MpirunJob(TELL)).argv
    own = line[line.index("/bin/sh") :]
    return [told(own, OMPI_COMM_WORLD_RANK=rank, **environment) for rank in range(sum(slots.values()))]


def test_every_rank_sees_its_own_instance_and_a_whole_gpu_stays_with_its_node() -> None:
    assert ranks_of(members(node1=[CUT, OLDER], node2=[WHOLE])) == [
        *("MIG-a1", "MIG-a2", "MIG-GPU-b/1/0"),
        *("unset", "unset", "unset"),
    ]


def test_the_choice_of_a_scheduler_or_a_user_stays() -> None:
    assert ranks_of(members(node1=[CUT]), CUDA_VISIBLE_DEVICES="MIG-z") == ["MIG-z"] * 3


def test_each_rank_keeps_one_of_the_instances_that_a_scheduler_gave_to_the_job() -> None:
    nodes = members(node1=[CUT])
    line = mpirun_job.line(nodes, {"node1": 2}, mpirun_job.MpirunJob(TELL)).argv
    own = line[line.index("/bin/sh") :]
    given = {"CUDA_VISIBLE_DEVICES": "MIG-y,MIG-z"}
    seen = [told(own, OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_LOCAL_RANK=rank, **given) for rank in range(2)]
    assert seen == ["MIG-y", "MIG-z"]
    node = mpirun_job.line(nodes, {"node1": 2}, mpirun_job.MpirunJob(TELL, per_node=True)).argv
    assert (
        told(node[node.index("/bin/sh") :], OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_LOCAL_RANK=0, **given)
        == "MIG-y,MIG-z"
    )


def test_a_line_without_instances_is_as_before() -> None:
    line = mpirun_job.line(members(node1=[WHOLE]), {"node1": 3}, mpirun_job.MpirunJob(TELL)).argv
    assert "/bin/sh" not in line
    broken = {**CUT, "unusable": "library", "problem": "no library"}
    assert not mpirun_job.line(members(node1=[broken]), {"node1": 3}, mpirun_job.MpirunJob(("true",))).argv.count("sh")


def test_a_name_that_is_none_of_cuda_s_does_not_reach_a_line() -> None:
    assert ranks_of(members(node1=[{**CUT, "instances": ["MIG-a:-"]}])) == ["unset"] * 3


@pytest.mark.parametrize("program", [("train.py", "--x"), ("python", "train.py", "--x"), ("-m", "train", "--x")])
def test_each_worker_of_torchrun_sees_one_of_its_node_s_instances(program: tuple[str, ...]) -> None:
    plan = compose.compose(members(node1=[CUT], node2=[CUT]), "node1", JobOptions(program, Launcher.TORCHRUN))
    node = plan.argv[plan.argv.index("/bin/sh") :]
    given = told((*node[:5], *TELL), OMPI_COMM_WORLD_RANK=1)
    assert given == "MIG-a1,MIG-a2"
    worker = node[node.index("--no-python") + 2 :]
    assert worker[-1] == "--x"
    assert worker[4].endswith("python")
    seen = [told((*worker[:4], *TELL), CUDA_VISIBLE_DEVICES=given, LOCAL_RANK=rank) for rank in range(3)]
    assert seen == ["MIG-a1", "MIG-a2", given]
    whole = told((*worker[:4], *TELL), CUDA_VISIBLE_DEVICES="0,1", LOCAL_RANK=1)
    assert whole == "0,1", "a worker on whole GPUs chooses by its number"


def test_horovodrun_starts_the_same_words() -> None:
    plan = compose.compose(members(node1=[CUT]), "node1", JobOptions(("true",), Launcher.HOROVODRUN))
    assert plan.argv[-6:-1][:2] == ("/bin/sh", "-c")
    assert plan.argv[-2] == "MIG-a1:MIG-a2:MIG-a1"


def test_ranks_that_go_round_the_nodes_get_instances_of_their_own_node() -> None:
    nodes = members(node1=[CUT], node2=[OLDER])
    job = mpirun_job.MpirunJob(TELL, path=PathOptions(map_by=MapBy.NODE))
    line = mpirun_job.line(nodes, {"node1": 2, "node2": 2}, job).argv
    own = line[line.index("/bin/sh") :]
    seen = [told(own, OMPI_COMM_WORLD_RANK=rank) for rank in range(4)]
    assert seen == ["MIG-a1", "MIG-GPU-b/1/0", "MIG-a2", "MIG-GPU-b/1/0"]


def test_devices_of_one_process_a_node() -> None:
    facts = {name: one.facts for name, one in members(node1=[CUT], node2=[WHOLE]).items()}
    assert affinity.of_ranks(facts, {"node1": 3, "node2": 1}, (), per_node=True)[-1] == "MIG-a1,MIG-a2:-"
