"""Which node this is, as Run:AI, Kubeflow, Slurm and mpirun say it, and every way in which they may not say it."""

from __future__ import annotations

import contextlib

import factory
import pytest
from clusterctl.launch import scheduler_env
from clusterctl.support.errors import ConfigError

RUNAI = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
# A PyTorchJob of two pods with nprocPerNode: "4" under training-operator 1.9.
KUBEFLOW = {
    **RUNAI,
    "WORLD_SIZE": "8",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
}
# Kubeflow Trainer 2 has torchrun's own names alone.
TRAINER = {name: value for name, value in KUBEFLOW.items() if name.startswith("PET_")}
SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_NODELIST": "node[1-2]",
}
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "MASTER_ADDR": "node1",
}
HOSTS = ("node1", "node2")


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize("environment", [RUNAI, KUBEFLOW, TRAINER], ids=["runai", "kubeflow", "trainer"])
def test_pods_are_counted_not_processes(environment: dict[str, str]) -> None:
    where = scheduler_env.place(environment)
    assert (where.nodes, where.rank, where.master_addr, where.master_port) == (2, 1, "job-master-0", 23456)
    assert where.notes == ()


def test_slurm_meets_at_the_first_host_and_a_port_of_the_jobs_own() -> None:
    where = scheduler_env.place(SLURM, HOSTS)
    assert (where.nodes, where.rank, where.master_addr) == (2, 1, "node1")
    assert where.master_port == 20000 + 4242
    assert where.notes == ("port 24242 follows from SLURM_JOB_ID=4242; set MASTER_PORT for another",)


def test_two_steps_of_one_job_meet_at_different_ports_below_those_that_clients_get() -> None:
    ports = {
        scheduler_env.place({**SLURM, "SLURM_STEP_ID": str(step), "SLURM_JOB_ID": str(job)}, HOSTS).master_port
        for step in range(5)
        for job in (1, 39999, 10**9)
    }
    assert len(ports) == 15
    assert min(ports) >= 20000
    assert max(ports) < 32768


def test_a_step_is_counted_by_its_own_nodes_not_by_the_jobs() -> None:
    step = {**SLURM, "SLURM_NNODES": "8", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "node[3-4]"}
    assert scheduler_env.nodelist(step) == "node[3-4]"
    assert scheduler_env.place(step, ("node3", "node4")).master_addr == "node3"


def test_a_batch_script_is_told_that_it_runs_alone() -> None:
    notes = scheduler_env.place(without(SLURM, "SLURM_STEP_ID"), HOSTS).notes
    assert any("only srun starts this on all 2 nodes" in note for note in notes)


def test_mpirun_has_to_be_told_where_node_0_is() -> None:
    where = scheduler_env.place(MPIRUN)
    assert (where.nodes, where.rank, where.master_addr, where.master_port) == (2, 1, "node1", 29500)
    with pytest.raises(ConfigError, match=r"MASTER_ADDR is not set, and mpirun .*-x MASTER_ADDR=HOST"):
        scheduler_env.place(without(MPIRUN, "MASTER_ADDR"))


def test_mpirun_inside_slurm_takes_the_first_host_and_none_of_the_daemons_numbers() -> None:
    inside = {**without(MPIRUN, "MASTER_ADDR"), **SLURM, "SLURM_NODEID": "0", "SLURM_NNODES": "1"}
    where = scheduler_env.place(inside, HOSTS)
    assert (where.nodes, where.rank, where.master_addr) == (2, 1, "node1")


def test_a_single_node_needs_no_place_to_meet() -> None:
    where = scheduler_env.place({"WORLD_SIZE": "1", "RANK": "0"})
    assert (where.nodes, where.rank, where.master_addr, where.master_port) == (1, 0, "", 0)


def test_options_are_above_variables() -> None:
    where = scheduler_env.place(RUNAI, master_addr="10.0.0.7", master_port=4)
    assert (where.master_addr, where.master_port, where.master_said_by) == ("10.0.0.7", 4, "--master-addr")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "None of WORLD_SIZE, SLURM_NNODES and OMPI_COMM_WORLD_SIZE is set"),
        (without(RUNAI, "RANK"), r"^RANK is not set, .* \(WORLD_SIZE=2, MASTER_ADDR=job-master-0, MASTER_PORT=23456\)"),
        (without(RUNAI, "WORLD_SIZE"), r"^WORLD_SIZE is not set, .*RANK=1, MASTER_ADDR=job-master-0"),
        (without(RUNAI, "MASTER_ADDR"), r"^MASTER_ADDR is not set, so nothing says where node 0 is \(WORLD_SIZE=2"),
        (without(RUNAI, "MASTER_PORT"), r"^MASTER_PORT is not set"),
        ({**RUNAI, "RANK": ""}, r"^RANK is not set"),
        (without(SLURM, "SLURM_NODEID"), r"^SLURM_NODEID is not set"),
        (without(SLURM, "SLURM_NNODES"), r"^SLURM_NNODES is not set"),
        (without(MPIRUN, "OMPI_COMM_WORLD_RANK"), r"^OMPI_COMM_WORLD_RANK is not set"),
        ({"MASTER_ADDR": "a"}, r"^WORLD_SIZE is not set"),
    ],
)
def test_what_is_missing_is_named_with_what_is_there(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scheduler_env.place(environment)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**RUNAI, "SLURM_NNODES": "4"}, r"WORLD_SIZE=2 and SLURM_NNODES=4 contradict .* counts nodes here, not proc"),
        ({**RUNAI, "PET_NNODES": "3"}, r"WORLD_SIZE=2 and PET_NNODES=3 contradict"),
        ({**KUBEFLOW, "PET_NPROC_PER_NODE": "3"}, r"WORLD_SIZE=8 and PET_NNODES=2 contradict"),
        ({**RUNAI, "PET_NODE_RANK": "0"}, r"RANK=1 and PET_NODE_RANK=0 contradict .* rank of this node"),
        ({**RUNAI, "SLURM_NODEID": "0"}, r"RANK=1 and SLURM_NODEID=0 contradict"),
        ({**RUNAI, "PET_MASTER_ADDR": "b"}, r"MASTER_ADDR=job-master-0 and PET_MASTER_ADDR=b contradict"),
        ({**RUNAI, "PET_MASTER_PORT": "1"}, r"MASTER_PORT=23456 and PET_MASTER_PORT=1 contradict"),
        ({**MPIRUN, "WORLD_SIZE": "8"}, r"WORLD_SIZE=8 and OMPI_COMM_WORLD_SIZE=2 contradict"),
        ({**RUNAI, "RANK": "2"}, r"RANK=2 is not a place among 2 nodes \(WORLD_SIZE=2\); nodes are counted from 0"),
        ({**RUNAI, "WORLD_SIZE": "0", "RANK": "0"}, r"RANK=0 is not a place among 0 nodes"),
        ({**RUNAI, "RANK": "-1"}, r"RANK='-1' is not a whole number"),
        ({**RUNAI, "WORLD_SIZE": "two"}, r"WORLD_SIZE='two' is not a whole number"),
        ({**RUNAI, "MASTER_PORT": "http"}, r"MASTER_PORT='http' is not a whole number"),
        ({**TRAINER, "PET_NNODES": "1:4"}, r"PET_NNODES=1:4 asks for an elastic job"),
    ],
)
def test_what_contradicts_is_named_with_its_values(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scheduler_env.place(environment)


def test_a_list_of_other_length_contradicts_too() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_NNODES=2 and SLURM_JOB_NODELIST=node\[1-2\] \(3 hosts\) contradict"):
        scheduler_env.place(SLURM, ("node1", "node2", "node3"))


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, r"TASKS_PER_NODE=4\(x2\)\).*srun --ntasks-per-node=1"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2,1"}, "srun starts more than one task on this node"),
        ({**SLURM, "SLURM_LOCALID": "3"}, r"\(SLURM_LOCALID=3\)"),
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, r"mpirun starts 2 processes on this node .*ppr:1:node"),
    ],
)
def test_more_than_one_torchrun_a_node_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scheduler_env.place(environment, HOSTS if "SLURM_NNODES" in environment else ())


@pytest.mark.parametrize(
    ("nodes", "refused"),
    [
        ("node[1-2]", "node3.cluster of the inventory is outside of Slurm's job 4242 "),
        ("n1,node3", r"node1, node2 of the inventory is outside"),
        ("node[1-3]", ""),
        ("node[1-9]", ""),
        ("other[1-2]", ""),
        ("", ""),
    ],
)
def test_a_job_by_ssh_stays_in_the_allocation_of_its_shell(nodes: str, refused: str) -> None:
    hosts = factory.hosts(["node1", "node2", "node3.cluster"])
    environment = {**SLURM, "SLURM_JOB_NODELIST": nodes}
    with pytest.raises(ConfigError, match=refused) if refused else contextlib.nullcontext():
        scheduler_env.refuse_outside(environment, hosts)
