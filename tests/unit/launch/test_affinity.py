"""Ranks near their GPUs: cores, ports and reasons, and the launch line's own words run by a real shell."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from clusterctl.launch import affinity, compose, mpirun_job, srun
from clusterctl.launch.compose import JobOptions
from clusterctl.launch.launchers import Launcher
from clusterctl.launch.mpirun import Affinity, Bind, MapBy, PathOptions, Transport
from clusterctl.launch.mpirun_job import Member
from clusterctl.model.facts import Artifact
from clusterctl.support.errors import ConfigError
from factory import provisioned

AUTO = PathOptions(affinity=Affinity.AUTO)
TELL = ("sh", "-c", 'echo "$(grep Cpus_allowed_list /proc/self/status | cut -f2) ${UCX_NET_DEVICES-unset}"')
# Two NUMA nodes of four cores with two hardware threads each, numbered as Linux does on Intel's servers.
NUMA = [
    {"number": number, "cores": [f"{core},{core + 8}" for core in range(4 * number, 4 * number + 4)]}
    for number in range(2)
]


def gpu(number: int, numa: int, *bridges: str) -> dict[str, Any]:
    bus = f"0000:{number + 16:02x}:00.0"
    return {"bus": bus, "uuid": f"GPU-{number}", "driver": "nvidia", "numa": numa, "pci_path": [*bridges, bus]}


def nic(name: str, numa: int, *bridges: str, state: str = "ACTIVE") -> dict[str, Any]:
    ports = [{"number": 1, "state": state}]
    return {"name": name, "numa": numa, "pci_path": [*bridges, f"0000:{name[-1]}0:00.0"], "ports": ports}


SERVER = {
    "boot_id": "one",
    "numa": NUMA,
    "gpus": [gpu(0, 0, "a", "sw0"), gpu(1, 0, "a", "sw1"), gpu(2, 1, "b", "sw2"), gpu(3, 1, "c")],
    "rdma": [nic("mlx5_0", 0, "a", "sw1"), nic("mlx5_1", 0, "a", "sw0"), nic("mlx5_2", 1, "d")],
}


def members(count: int = 1, slots: int = 4, **changed: Any) -> dict[str, Member]:
    return {
        f"node{number}": Member(
            provisioned(f"node{number}", number, **{**SERVER, "boot_id": f"b{number}", **changed}), slots, "5.0.7"
        )
        for number in range(1, count + 1)
    }


def placed(nodes: dict[str, Member]) -> dict[str, tuple[affinity.RankPlace, ...]]:
    return affinity.places(
        {name: one.facts for name, one in nodes.items()}, {name: one.slots for name, one in nodes.items()}
    )


def test_each_rank_gets_its_share_of_the_cores_near_its_gpu_and_the_port_behind_the_same_bridge() -> None:
    (ranks,) = placed(members()).values()
    assert [(one.cpus, one.port) for one in ranks] == [
        ("0-1,8-9", "mlx5_1:1"),
        ("2-3,10-11", "mlx5_0:1"),
        ("4-5,12-13", "mlx5_2:1"),
        ("6-7,14-15", "mlx5_2:1"),
    ]
    assert ranks[0].reason == (
        "2 of 4 cores of NUMA node 0, near its GPU 0000:10:00.0; mlx5_1:1 is behind the same PCI bridge sw0"
    )
    assert ranks[3].reason.endswith("near its GPU 0000:13:00.0; mlx5_2:1 is on the same NUMA node")


def test_nodes_alike_are_told_once_a_rank() -> None:
    told = affinity.notes(placed(members(3)), ports=True)
    assert len(told) == 4
    assert told[0].startswith("node[1-3], rank 0 of the node: cores 0-1,8-9, port mlx5_1:1 (2 of 4 cores of")


def test_a_port_that_no_rank_is_given_is_told_as_the_nearest_with_the_reason() -> None:
    told = affinity.notes(placed(members()), ports=False)
    assert told[0].startswith("node1, rank 0 of the node: cores 0-1,8-9, nearest port mlx5_1:1 (2 of 4 cores of NUMA")
    assert "NCCL chooses by itself" in told[0]
    plan = compose.compose(members(), "node1", JobOptions(("train.py",), Launcher.TORCHRUN, path=AUTO))
    assert all("nearest port mlx5_" in note for note in plan.notes)
    assert not [word for word in plan.argv if "NCCL_IB_HCA" in word]


def test_a_port_that_is_down_and_a_single_port_are_no_choice() -> None:
    down = [nic("mlx5_0", 0, "a", "sw0", state="DOWN"), nic("mlx5_1", 0, "a"), nic("mlx5_2", 1, "b")]
    (ranks,) = placed(members(rdma=down)).values()
    assert [one.port for one in ranks] == ["mlx5_1:1", "mlx5_1:1", "mlx5_2:1", "mlx5_2:1"]
    (ranks,) = placed(members(rdma=SERVER["rdma"][:1])).values()
    assert {one.port for one in ranks} == {""}


def test_a_gpu_whose_numa_node_is_hidden_leaves_its_rank_free() -> None:
    (ranks,) = placed(members(gpus=[gpu(0, -1), gpu(1, 0)], rdma=[], slots=2)).values()
    assert [one.cpus for one in ranks] == ["", "0-3,8-11"]
    assert ranks[0].reason == "the NUMA node of its GPU 0000:10:00.0 is not known"
    (ranks,) = placed(members(gpus=[gpu(0, -1)], numa=NUMA[:1], rdma=[], slots=1)).values()
    assert ranks[0].cpus == "0-3,8-11", "a single NUMA node is near all GPUs"


def test_ranks_without_gpus_share_all_cores_and_containers_of_a_machine_are_one_pool() -> None:
    nodes = members(2, slots=2, gpus=[], rdma=[], boot_id="same")
    assert [one.cpus for ranks in placed(nodes).values() for one in ranks] == [
        "0-1,8-9",
        "2-3,10-11",
        "4-5,12-13",
        "6-7,14-15",
    ]
    nodes = members(2, slots=5, gpus=[], rdma=[], boot_id="same")
    (first, *_rest), _other = placed(nodes).values()
    assert (first.cpus, first.reason) == ("", "10 ranks share 8 cores of 2 NUMA nodes")
    nodes = members(2, slots=8, gpus=[], rdma=[])
    assert len({one.cpus for one in placed(nodes)["node2"]}) == 8, "other machines share nothing"


@pytest.mark.parametrize("cores", ["0;id", "", "$(id)", "1-", "1-2-3", "0-999999", "0-40,0-40"])
def test_a_core_that_is_no_number_does_not_reach_a_line(cores: str) -> None:
    (ranks,) = placed(members(numa=[{"number": 0, "cores": [cores]}], rdma=[])).values()
    assert {(one.cpus, one.reason) for one in ranks} == {("", "its cores are not known")}


def test_a_port_with_a_strange_name_does_not_reach_a_line() -> None:
    (ranks,) = placed(members(rdma=[nic("m/+@ x0", 0), nic("mlx5_1", 0, "a"), nic("mlx5_2", 1, "b")])).values()
    assert {one.port for one in ranks} <= {"", "mlx5_1:1", "mlx5_2:1"}


# --- the words of the line, with cores that this machine has ---


HERE = sorted(os.sched_getaffinity(0))


def told(words: tuple[str, ...], **environment: object) -> str:
    """Run words as mpirun would, and return what the program sees."""
    surroundings = os.environ | {name: str(value) for name, value in environment.items()}
    for name in {"UCX_NET_DEVICES", "CUDA_VISIBLE_DEVICES"} - set(environment):
        surroundings.pop(name, None)
    return subprocess.run(words, env=surroundings, capture_output=True, text=True, check=True).stdout.strip()


def on_this_machine(count: int = 2, **changed: Any) -> dict[str, Member]:
    numa = [{"number": 0, "cores": [str(HERE[0])]}, {"number": 1, "cores": [str(HERE[-1])]}]
    gpus = [gpu(0, 1, "a"), gpu(1, 0, "b")]
    rdma = [nic("mlx5_0", 0, "b"), nic("mlx5_1", 1, "a")]
    return members(count, slots=2, **{"numa": numa, "gpus": gpus, "rdma": rdma, **changed})


@pytest.mark.parametrize(
    ("network", "ports"), [(Transport.TCP, ("unset",) * 2), (Transport.UCX, ("mlx5_1:1", "mlx5_0:1"))]
)
def test_a_rank_takes_its_cores_and_with_ucx_its_port(network: Transport, ports: tuple[str, ...]) -> None:
    nodes = {name: Member(one.facts, 2, "5.0.7", has_ucx=True) for name, one in on_this_machine().items()}
    job = mpirun_job.MpirunJob(TELL, path=PathOptions(network, affinity=Affinity.AUTO))
    line = mpirun_job.line(nodes, {"node1": 2, "node2": 2}, job)
    own = line.argv[line.argv.index("/bin/sh") :]
    seen = [told(own, OMPI_COMM_WORLD_RANK=rank) for rank in range(4)]
    assert seen == [f"{HERE[-1]} {ports[0]}", f"{HERE[0]} {ports[1]}"] * 2
    assert told(own, OMPI_COMM_WORLD_RANK=0, UCX_NET_DEVICES="mine") == f"{HERE[-1]} mine"
    assert len(line.path.notes) == 2


def test_each_worker_of_torchrun_takes_its_own_cores() -> None:
    plan = compose.compose(on_this_machine(), "node1", JobOptions(("train.py",), Launcher.TORCHRUN, path=AUTO))
    node = plan.argv[plan.argv.index("/bin/sh") :]
    given = told((*node[:5], "sh", "-c", f"echo ${affinity.VARIABLE}"), OMPI_COMM_WORLD_RANK=1)
    assert given == f"{HERE[-1]}@{HERE[0]}"
    worker = node[node.index("--no-python") + 2 :]
    seen = [
        told((*worker[:4], *TELL), **{affinity.VARIABLE: given, "LOCAL_RANK": rank}).split()[0] for rank in range(2)
    ]
    assert seen == [str(HERE[-1]), str(HERE[0])]
    assert told((*worker[:4], *TELL), LOCAL_RANK=0).split()[0] == told(TELL).split()[0], "free without a place"
    assert worker[4:] == (plan.argv[-1].replace("train.py", "/usr/local/python_env/bin/python"), "-u", "train.py")


def test_run_validate_srun_and_horovodrun_place_the_same_ranks_on_the_same_cores() -> None:
    nodes = {name: Member(one.facts, 2, "5.0.7", called=name) for name, one in on_this_machine(rdma=[]).items()}
    slots = {"node1": 2, "node2": 2}
    table = f"{HERE[-1]}+/{HERE[0]}+/{HERE[-1]}+/{HERE[0]}+"
    job = mpirun_job.MpirunJob(("true",), path=AUTO)
    lines = [
        compose.compose(nodes, "node1", JobOptions(("true",), path=AUTO)).argv,
        compose.compose(nodes, "node1", JobOptions(("true",), Launcher.HOROVODRUN, path=AUTO)).argv,
        mpirun_job.line(nodes, slots, job, "node1").argv,
        srun.line(nodes, slots, job, "node1").argv,
    ]
    assert all(line[-2:] == (table, "true") for line in lines)


def test_affinity_and_a_binding_of_the_user_exclude_each_other() -> None:
    both = PathOptions(bind=Bind.CORE, affinity=Affinity.AUTO)
    with pytest.raises(ConfigError, match="places each rank by itself; leave out --bind-to"):
        compose.compose(members(), "node1", JobOptions(("true",), path=both))
    with pytest.raises(ConfigError, match="srun starts the ranks here"):
        srun.line(members(), {"node1": 1}, mpirun_job.MpirunJob(("true",), path=PathOptions(bind=Bind.CORE)), "node1")


# --- CUDA_VISIBLE_DEVICES by MIG instance: the launch line's own words, run by a real shell ---


CUT = {"bus": "0000:07:00.0", "uuid": "GPU-a", "driver": "nvidia", "instances": ["MIG-a1", "MIG-a2"]}
OLDER = {"bus": "0000:08:00.0", "uuid": "GPU-b", "driver": "nvidia", "instances": ["MIG-GPU-b/1/0"]}
WHOLE = {"bus": "0000:07:00.0", "uuid": "GPU-c", "driver": "nvidia"}
TELL_DEVICES = ("sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}"')


def cut_members(**gpus: list[dict[str, object]]) -> dict[str, Member]:
    return {
        name: Member(provisioned(name, number, gpus=found), 3, "5.0.7")
        for number, (name, found) in enumerate(gpus.items(), 1)
    }


def ranks_of(nodes: dict[str, Member], **environment: object) -> list[str]:
    slots = {name: one.slots for name, one in nodes.items()}
    line = mpirun_job.line(nodes, slots, mpirun_job.MpirunJob(TELL_DEVICES)).argv
    own = line[line.index("/bin/sh") :]
    return [told(own, OMPI_COMM_WORLD_RANK=rank, **environment) for rank in range(sum(slots.values()))]


def test_every_rank_sees_its_own_instance_and_a_whole_gpu_stays_with_its_node() -> None:
    assert ranks_of(cut_members(node1=[CUT, OLDER], node2=[WHOLE])) == [
        *("MIG-a1", "MIG-a2", "MIG-GPU-b/1/0"),
        *("unset", "unset", "unset"),
    ]


def test_the_choice_of_a_scheduler_or_a_user_stays() -> None:
    assert ranks_of(cut_members(node1=[CUT]), CUDA_VISIBLE_DEVICES="MIG-z") == ["MIG-z"] * 3


def test_each_rank_keeps_one_of_the_instances_that_a_scheduler_gave_to_the_job() -> None:
    nodes = cut_members(node1=[CUT])
    line = mpirun_job.line(nodes, {"node1": 2}, mpirun_job.MpirunJob(TELL_DEVICES)).argv
    own = line[line.index("/bin/sh") :]
    given = {"CUDA_VISIBLE_DEVICES": "MIG-y,MIG-z"}
    seen = [told(own, OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_LOCAL_RANK=rank, **given) for rank in range(2)]
    assert seen == ["MIG-y", "MIG-z"]
    node = mpirun_job.line(nodes, {"node1": 2}, mpirun_job.MpirunJob(TELL_DEVICES, per_node=True)).argv
    assert (
        told(node[node.index("/bin/sh") :], OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_LOCAL_RANK=0, **given)
        == "MIG-y,MIG-z"
    )


def test_a_line_without_instances_is_as_before() -> None:
    line = mpirun_job.line(cut_members(node1=[WHOLE]), {"node1": 3}, mpirun_job.MpirunJob(TELL_DEVICES)).argv
    assert "/bin/sh" not in line
    broken = {**CUT, "unusable": "library", "problem": "no library"}
    assert not mpirun_job.line(cut_members(node1=[broken]), {"node1": 3}, mpirun_job.MpirunJob(("true",))).argv.count(
        "sh"
    )


def test_a_name_that_is_none_of_cuda_s_does_not_reach_a_line() -> None:
    assert ranks_of(cut_members(node1=[{**CUT, "instances": ["MIG-a:-"]}])) == ["unset"] * 3


@pytest.mark.parametrize("program", [("train.py", "--x"), ("python", "train.py", "--x"), ("-m", "train", "--x")])
def test_each_worker_of_torchrun_sees_one_of_its_node_s_instances(program: tuple[str, ...]) -> None:
    plan = compose.compose(cut_members(node1=[CUT], node2=[CUT]), "node1", JobOptions(program, Launcher.TORCHRUN))
    node = plan.argv[plan.argv.index("/bin/sh") :]
    given = told((*node[:5], *TELL_DEVICES), OMPI_COMM_WORLD_RANK=1)
    assert given == "MIG-a1,MIG-a2"
    worker = node[node.index("--no-python") + 2 :]
    assert worker[-1] == "--x"
    assert worker[4].endswith("python")
    seen = [told((*worker[:4], *TELL_DEVICES), CUDA_VISIBLE_DEVICES=given, LOCAL_RANK=rank) for rank in range(3)]
    assert seen == ["MIG-a1", "MIG-a2", given]
    whole = told((*worker[:4], *TELL_DEVICES), CUDA_VISIBLE_DEVICES="0,1", LOCAL_RANK=1)
    assert whole == "0,1", "a worker on whole GPUs chooses by its number"


def test_horovodrun_starts_the_same_words() -> None:
    plan = compose.compose(cut_members(node1=[CUT]), "node1", JobOptions(("true",), Launcher.HOROVODRUN))
    assert plan.argv[-6:-1][:2] == ("/bin/sh", "-c")
    assert plan.argv[-2] == "MIG-a1:MIG-a2:MIG-a1"


def test_ranks_that_go_round_the_nodes_get_instances_of_their_own_node() -> None:
    nodes = cut_members(node1=[CUT], node2=[OLDER])
    job = mpirun_job.MpirunJob(TELL_DEVICES, path=PathOptions(map_by=MapBy.NODE))
    line = mpirun_job.line(nodes, {"node1": 2, "node2": 2}, job).argv
    own = line[line.index("/bin/sh") :]
    seen = [told(own, OMPI_COMM_WORLD_RANK=rank) for rank in range(4)]
    assert seen == ["MIG-a1", "MIG-GPU-b/1/0", "MIG-a2", "MIG-GPU-b/1/0"]


def test_devices_of_one_process_a_node() -> None:
    facts = {name: one.facts for name, one in cut_members(node1=[CUT], node2=[WHOLE]).items()}
    assert affinity.of_ranks(facts, {"node1": 3, "node2": 1}, (), per_node=True)[-1] == "MIG-a1,MIG-a2:-"


@pytest.mark.parametrize("inputs", [{"ucx": "538b53fec37f9983"}, {"configure": ["./configure", "--with-ucx=/opt/ucx"]}])
def test_an_open_mpi_on_ucx_is_known_by_what_a_look_asks_for(inputs: dict[str, Any]) -> None:
    node = on_this_machine()["node1"].facts
    mine = {"name": "openmpi", "link": "/usr/local/openmpi", "target": "", "version": "5.0.7", "key": "0", "ok": True}

    def has_ucx(shaped_by: dict[str, Any]) -> bool:
        known = Artifact.model_validate({**mine, "inputs": shaped_by})
        return mpirun_job.member(node.model_copy(update={"artifacts": (known,)}), 2).has_ucx

    assert has_ucx(inputs)
    assert not has_ucx({"configure": ["./configure", "--without-ucx"]})
