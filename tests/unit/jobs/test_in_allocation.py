"""What a pod's own network and GPUs ask for, and the torchrun line and environment that it comes to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.jobs import in_allocation
from clusterctl.launch import allocation_line, scheduler_env
from clusterctl.launch.local_facts import LocalFacts
from clusterctl.launch.nccl_options import NcclOptions
from clusterctl.launch.scheduler_env import RankPlace
from clusterctl.model import fabric
from clusterctl.model.facts import Gpu, Limit, NodeFacts
from clusterctl.model.layout import Layout
from clusterctl.model.network_facts import Address, Fabric, Interface, RdmaDevice, Route
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.network import read_rdma

DATA = Path(__file__).resolve().parents[2] / "data"

LO = Interface(
    name="lo", kind="loopback", up=True, addresses=(Address(family=4, address="127.0.0.1", prefix=8, scope="host"),)
)
ETH0 = Interface(
    name="eth0",
    kind="veth",
    up=True,
    addresses=(
        Address(family=4, address="10.0.0.5", prefix=24, scope="global"),
        Address(family=6, address="fd00::5", prefix=64, scope="global"),
    ),
)
NET1 = Interface(
    name="net1",
    kind="physical",
    up=True,
    addresses=(Address(family=4, address="192.168.7.5", prefix=24, scope="global"),),
)
ROUTES = (
    Route(family=4, destination="0.0.0.0/0", gateway="10.0.0.1", interface="eth0", metric=0),
    Route(family=4, destination="10.0.0.0/24", gateway=None, interface="eth0", metric=0),
    Route(family=4, destination="192.168.7.0/24", gateway=None, interface="net1", metric=100),
    Route(family=4, destination="192.168.7.0/24", gateway=None, interface="eth0", metric=200),
    Route(family=6, destination="fd00::/64", gateway=None, interface="eth0", metric=256),
)
WORKER = RankPlace(2, 1, "job-master-0", 23456, "MASTER_ADDR")
MASTER = RankPlace(2, 0, "job-master-0", 23456, "MASTER_ADDR")


def node(**changed: Any) -> NodeFacts:
    own = {"interfaces": (LO, ETH0, NET1), "routes": ROUTES, "shm_bytes": 1 << 30}
    return factory.node("pod", **{**own, **changed})


def machine(*addresses: str, **changed: Any) -> allocation_line.LocalMachine:
    known = {name: changed.pop(name) for name in ("rdma", "gpu_devices", "cpu_quota") if name in changed}
    local = LocalFacts.of(json.loads(node(**changed).model_dump_json()))
    return allocation_line.LocalMachine(local, addresses or ("10.0.0.9",), **known)


def planned(
    where: RankPlace, here: allocation_line.LocalMachine, environment: dict[str, str] | None = None
) -> allocation_line.AllocationPlan:
    return allocation_line.plan(where, here, environment or {}, ("train.py", "--lr", "0.1"), python="/py")


def settings(plan: allocation_line.AllocationPlan) -> dict[str, str]:
    return {setting.name: setting.value for setting in plan.settings}


def test_the_line_and_the_environment_of_a_worker() -> None:
    plan = planned(WORKER, machine())
    assert list(plan.argv) == [
        *("/py", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=4", "--node-rank=1"),
        *("--master-addr=job-master-0", "--master-port=23456", "--", "train.py", "--lr", "0.1"),
    ]
    assert settings(plan) == {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    assert plan.notes == (
        "node 1 of 2, meeting at job-master-0 port 23456 (MASTER_ADDR)",
        "4 processes on this node (no GPU, and 4 cores)",
    )


def test_a_single_pod_pins_nothing() -> None:
    plan = planned(RankPlace(1, 0, "", 0, ""), machine())
    assert list(plan.argv)[3:6] == ["--nnodes=1", "--nproc-per-node=4", "--standalone"]
    assert plan.settings == ()
    assert plan.notes[0] == "the only node"


@pytest.mark.parametrize(
    ("addresses", "changed", "name", "why"),
    [
        (("10.0.0.9",), {}, "eth0", "the route to 10.0.0.9 leads there"),
        (("192.168.7.9",), {}, "net1", "the route to 192.168.7.9 leads there"),  # the lower metric of two
        (("172.20.1.1",), {}, "eth0", "the route to 172.20.1.1 leads there"),  # a service's address
        (("192.168.7.5",), {}, "net1", "it bears the master's address 192.168.7.5"),
        (("127.0.0.1",), {}, "eth0", "the default route leads there"),
        (("fd00::9",), {}, "eth0", "the route to fd00::9 leads there"),
        (("fd00::9", "192.168.7.9"), {}, "net1", "the route to 192.168.7.9 leads there"),
        (("10.0.0.9",), {"routes": ()}, "", "no route leads to 10.0.0.9"),
        (("127.0.0.1",), {"routes": ()}, "", "no route leads to 127.0.0.1"),
        (
            ("10.0.0.9",),
            {"fabric": Fabric(cidrs=("192.168.7.0/24",), interface="net1", address="192.168.7.5")},
            "net1",
            "the cluster's network 192.168.7.0/24",
        ),
    ],
)
def test_the_interface_that_leads_to_the_master(
    addresses: tuple[str, ...], changed: dict[str, Any], name: str, why: str
) -> None:
    assert allocation_line.interface_to(node(**changed), addresses) == (name, why)


def test_what_the_user_has_set_is_kept_and_told() -> None:
    plan = planned(WORKER, machine(), {"NCCL_SOCKET_IFNAME": "net1"})
    assert settings(plan) == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert "NCCL_SOCKET_IFNAME=net1 is kept as it was set" in plan.notes


def port(device: str, link_layer: str = "Ethernet", **changed: Any) -> fabric.RdmaChoice:
    known = {"state": "ACTIVE", "rate_gbps": None, "gid_index": None, "gid": "", "reason": "", "usable": True}
    return fabric.RdmaChoice(device, 1, link_layer, **{**known, **changed})


IB = port("mlx5_0", "InfiniBand", rate_gbps=400.0)
ROCE = port("mlx5_2", rate_gbps=100.0)
DEAF = port("mlx5_3", rate_gbps=400.0, usable=False, reason="has no RoCE v2 GID")
DOWN = port("mlx5_4", state="DOWN", usable=False, reason="is down")


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ((), None),
        ((IB,), None),
        ((ROCE, DOWN), None),  # NCCL leaves a port that is down by itself
        ((ROCE, DEAF), "=mlx5_2:1"),
        ((IB, ROCE), "=mlx5_0:1"),
        ((DEAF,), None),
        ((DOWN,), None),
    ],
)
def test_rdma_ports_are_named_only_where_one_of_them_does_not_serve(
    ports: tuple[fabric.RdmaChoice, ...], expected: str | None
) -> None:
    assert settings(planned(WORKER, machine(rdma=ports))).get("NCCL_IB_HCA") == expected


@pytest.mark.parametrize(
    ("trees", "expected", "words"),
    [
        (("roce",), None, ""),
        (("bond",), None, ""),
        (("infiniband",), None, ""),  # its second port waits for a subnet manager, and NCCL passes it over
        (("ports_down",), None, "no port of mlx4_0 is active, so NCCL takes sockets"),
        (("roce_shifted", "ipv6_only"), "=mlx5_0:1", ""),
        (("infiniband", "roce"), "=mlx5_0:1", ""),
    ],
)
def test_whole_trees_of_rdma_devices(trees: tuple[str, ...], expected: str | None, words: str) -> None:
    devices = [
        {**device, "name": device["name"] if number == 0 else f"{device['name']}_{number}"}
        for number, tree in enumerate(trees)
        for device in read_rdma(str(DATA / "fabric" / tree))
    ]
    facts = node(rdma=tuple(RdmaDevice.model_validate(device) for device in devices))
    ports = fabric.rdma(facts)
    assert ports
    plan = planned(WORKER, machine(rdma=ports))
    assert settings(plan).get("NCCL_IB_HCA") == expected
    assert words in " | ".join(plan.notes)


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ((3,), {"NCCL_IB_GID_INDEX": "3"}),
        ((3, 3, None), {"NCCL_IB_GID_INDEX": "3"}),
        ((), {}),
        ((None,), {}),
    ],
)
def test_the_gid_index_of_this_pod_is_found_where_it_is_asked_for(
    indices: tuple[int | None, ...], expected: dict[str, str]
) -> None:
    ports = tuple(port(f"mlx5_{number}", gid_index=index) for number, index in enumerate(indices))
    plan = tuned(machine(rdma=ports), NcclOptions("auto"))
    assert {name: value for name, value in settings(plan).items() if "GID" in name} == expected


def tuned(here: allocation_line.LocalMachine, nccl: NcclOptions, **environment: str) -> allocation_line.AllocationPlan:
    return allocation_line.plan(WORKER, here, environment, ("train.py",), python="/py", nccl=nccl)


def test_ports_of_different_indices_are_named() -> None:
    ports = tuple(port(f"mlx5_{index}", gid_index=index) for index in (3, 5))
    with pytest.raises(ConfigError, match="this pod has mlx5_3 port 1 at 3, mlx5_5 port 1 at 5; leave the option out"):
        tuned(machine(rdma=ports), NcclOptions("auto"))


def test_threads_and_sockets_are_set_and_what_is_there_is_kept() -> None:
    plan = tuned(machine(), NcclOptions("7", 4, 8), NCCL_SOCKET_NTHREADS="2")
    assert settings(plan)["NCCL_NSOCKS_PERTHREAD"] == "8"
    assert settings(plan)["NCCL_IB_GID_INDEX"] == "7"
    assert "NCCL_SOCKET_NTHREADS" not in settings(plan)
    assert "NCCL_SOCKET_NTHREADS=2 is kept as it was set" in plan.notes
    with pytest.raises(ConfigError, match="--socket-threads 17"):
        tuned(machine(), NcclOptions("", 17))


def test_what_will_hurt_is_told_and_left() -> None:
    here = machine(rdma=(ROCE,), shm_bytes=64 << 20, limits={"memlock": Limit(soft=65536, hard=65536)})
    notes = " | ".join(planned(WORKER, here).notes)
    assert "memlock is 64 KiB, and RDMA locks memory; give the container IPC_LOCK" in notes
    assert "has 64 MiB, which NCCL" in notes
    assert "no port of mlx5_4 is active" in " | ".join(planned(WORKER, machine(rdma=(DOWN,))).notes)
    assert "no interface is pinned, since no route leads" in " | ".join(planned(WORKER, machine(routes=())).notes)


@pytest.mark.parametrize(
    ("where", "addresses", "words"),
    [
        (WORKER, ("127.0.1.1",), "means this very machine"),
        (WORKER, ("10.0.0.9",), ""),
        (MASTER, ("10.0.0.5",), ""),
        (MASTER, ("127.0.0.1",), ""),
        (MASTER, ("10.0.0.9",), "is not an address of this node 0"),
    ],
)
def test_an_address_that_fits_ill_is_told(where: RankPlace, addresses: tuple[str, ...], words: str) -> None:
    notes = [note for note in planned(where, machine(*addresses)).notes if "job-master-0 (" in note]
    assert words in "".join(notes)
    assert bool(notes) == bool(words)


def test_another_rendezvous_of_torchruns_own_variables_is_taken_away() -> None:
    plan = planned(WORKER, machine(), {"PET_RDZV_BACKEND": "c10d", "PET_NNODES": "2", "PET_MAX_RESTARTS": "3"})
    assert plan.dropped == ("PET_RDZV_BACKEND",)


@pytest.mark.parametrize(
    ("environment", "changed", "expected"),
    [
        ({}, {}, (4, "no GPU, and 4 cores")),
        ({}, {"gpu_devices": 8}, (8, "8 GPUs")),
        ({}, {"gpu_devices": 1}, (1, "1 GPU")),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, {"gpu_devices": 8}, (2, "the GPUs of CUDA_VISIBLE_DEVICES=2,3")),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"gpu_devices": 8}, (4, "no GPU, and 4 cores")),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, {"gpu_devices": 8}, (8, "8 GPUs")),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, {"gpu_devices": 2}, (2, "2 GPUs")),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, {"gpu_devices": 2}, (4, "no GPU, and 4 cores")),
        (
            {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
            {"gpu_devices": 8},
            (2, "the GPUs of NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b"),
        ),
        ({"PET_NPROC_PER_NODE": "3"}, {"gpu_devices": 8}, (3, "PET_NPROC_PER_NODE=3")),
        ({"PET_NPROC_PER_NODE": "auto"}, {"gpu_devices": 8}, (8, "8 GPUs")),
        ({"PET_NPROC_PER_NODE": "cpu"}, {"gpu_devices": 8}, (4, "no GPU, and 4 cores")),
        ({}, {"cpu_quota": 1.5}, (1, "no GPU, and a CPU limit of 1.5")),
        ({}, {"cpu_quota": 64.0}, (4, "no GPU, and 4 cores")),
    ],
)
def test_processes_on_a_node(environment: dict[str, str], changed: dict[str, Any], expected: tuple[int, str]) -> None:
    assert allocation_line.processes(machine(**changed), environment) == expected
    assert allocation_line.processes(machine(**changed), environment, 5) == (5, "--nproc-per-node")


# --- MIG instances ---------------------------------------------------------------------------------------------------

CUT = {"bus": "0000:07:00.0", "uuid": "GPU-a", "driver": "nvidia", "instances": ["MIG-a1", "MIG-a2"]}
EMPTY = {"bus": "0000:08:00.0", "uuid": "GPU-b", "driver": "nvidia", "unusable": "mig", "problem": "no instance"}
TELL = ("sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}"')


def seen_by_workers(plan: allocation_line.AllocationPlan, environment: dict[str, str]) -> list[str]:
    """Run the words of each worker as torchrun would, with a program that tells what it sees."""
    count = next(int(word.partition("=")[2]) for word in plan.argv if word.startswith("--nproc-per-node="))
    words = plan.argv[plan.argv.index("--") + 1 :]
    job = {"PATH": "/usr/bin:/bin", **environment, **settings(plan)}
    assert words[-2:] == ("--lr", "0.1")
    return [
        subprocess.run(
            [*words[:4], *TELL], env={**job, "LOCAL_RANK": str(rank)}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for rank in range(count)
    ]


@pytest.mark.parametrize(
    ("environment", "gpus", "devices", "expected"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-x,MIG-y"}, [], 1, ["MIG-x", "MIG-y"]),  # the device plugin of Kubernetes
        ({"CUDA_VISIBLE_DEVICES": "MIG-x,MIG-y"}, [CUT], 1, ["MIG-x", "MIG-y"]),  # Slurm's job step
        ({}, [CUT], 1, ["MIG-a1", "MIG-a2"]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [CUT, EMPTY], 2, ["MIG-a1", "MIG-a2"]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, [CUT], 1, ["MIG-a1", "MIG-a2"]),  # the names come in by CDI
        ({"NVIDIA_VISIBLE_DEVICES": "0:0,0:1"}, [CUT], 1, ["MIG-a1", "MIG-a2"]),
    ],
)
def test_each_process_of_a_pod_sees_its_own_instance(
    environment: dict[str, str], gpus: list[dict[str, object]], devices: int, expected: list[str]
) -> None:
    plan = planned(WORKER, machine(gpus=tuple(map(Gpu.model_validate, gpus)), gpu_devices=devices), environment)
    assert seen_by_workers(plan, environment) == expected


@pytest.mark.parametrize("name", ["MIG-x", "0:0", "GPU-a", "0"])
def test_one_process_a_pod_needs_no_choice(name: str) -> None:
    plan = planned(WORKER, machine(gpu_devices=1), {"NVIDIA_VISIBLE_DEVICES": name})
    assert plan.argv[-3:] == ("train.py", "--lr", "0.1")
    assert "--nproc-per-node=1" in plan.argv
    assert "CUDA_VISIBLE_DEVICES" not in settings(plan)


@pytest.mark.parametrize(
    ("environment", "gpus", "devices", "words"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "0:0,0:1"}, [], 1, "names MIG instances by numbers, which CUDA does not take"),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-x,GPU-b"}, [], 2, "names MIG instances and whole GPUs"),
        ({}, [CUT], 2, r"This pod has MIG instances \(2\) and whole GPUs \(1\)"),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            [CUT, {**CUT, "bus": "0000:08:00.0", "uuid": "GPU-b", "instances": ["MIG-b1"]}],
            2,
            "names GPUs that are cut into MIG instances",
        ),
    ],
)
def test_processes_that_could_not_tell_their_instances_apart_are_refused(
    environment: dict[str, str], gpus: list[dict[str, object]], devices: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        planned(WORKER, machine(gpus=tuple(map(Gpu.model_validate, gpus)), gpu_devices=devices), environment)
    assert "set CUDA_VISIBLE_DEVICES" in str(refused.value)


def test_a_gpu_in_mig_mode_without_an_instance_is_no_place_for_a_process() -> None:
    here = machine(gpus=(Gpu.model_validate(EMPTY),), gpu_devices=2)
    assert allocation_line.processes(here, {}) == (1, "1 GPU")
    alone = planned(WORKER, machine(gpus=(Gpu.model_validate(EMPTY),), gpu_devices=1))
    assert "--nproc-per-node=4" in alone.argv
    assert "no program can use 1 GPU: MIG mode is on, without an instance" in " | ".join(alone.notes)


# --- the shell around it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("node[1-2,10]", ("node1", "node2", "node10")),
        ("node[08-11]", ("node08", "node09", "node10", "node11")),
        ("zeta,alpha[3,1]", ("zeta", "alpha3", "alpha1")),  # Slurm counts in the list's order
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("r[9-10,3]n[01-02]", ("r9n01", "r9n02", "r10n01", "r10n02", "r3n01", "r3n02")),
        ("gpu[1-2]-ib.cluster", ("gpu1-ib.cluster", "gpu2-ib.cluster")),
    ],
)
def test_slurms_lists(text: str, hosts: tuple[str, ...]) -> None:
    assert scheduler_env.unfolded(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "node[1-",
        "@all",
        "a b",
        "n[1-2]!n1",
        "-oProxyCommand=x",
        "n[a-b]",
        "n[1-]",
        "n[3-1]",
        "n[1-999999999]",
        "n[" + "9" * 5000 + "]",
    ],
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Slurm's list of nodes"):
        scheduler_env.unfolded(text)


def launch(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").touch()
    scheduler = ("WORLD_SIZE", "RANK", "MASTER_", "PET_", "SLURM_", "OMPI_", "NCCL_", "GLOO_", "CUDA_", "NVIDIA_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(scheduler)}
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", "launch", *arguments],
        cwd=tmp_path,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


POD = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_print_shows_what_can_be_pasted(tmp_path: Path) -> None:
    done = launch(
        tmp_path, "--print", "--python", "/py", "--nproc-per-node", "3", "--", "train.py", "--note", "it's", **POD
    )
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    assert line.endswith(
        "/py -m torch.distributed.run --nnodes=2 --nproc-per-node=3 --node-rank=0 --master-addr=127.0.0.1 "
        "--master-port=29500 -- train.py --note 'it'\"'\"'s'"
    )
    assert "clusterctl: node 0 of 2, meeting at 127.0.0.1 port 29500 (MASTER_ADDR)" in done.stderr


def test_it_becomes_the_program_and_ends_as_that_does(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([os.getpid(), os.getppid(), sys.argv[1:], dict(os.environ)]))\nsys.exit(17)\n"
    )
    stand_in.chmod(0o755)
    done = launch(
        tmp_path, "--python", str(stand_in), "--", "train.py", **POD, GLOO_SOCKET_IFNAME="mine", PET_STANDALONE="1"
    )
    assert done.returncode == 17, done.stderr
    _, parent, arguments, environment = json.loads(done.stdout)
    assert parent == os.getpid()  # nothing stands between the scheduler and torchrun
    assert arguments[:2] == ["-m", "torch.distributed.run"]
    assert environment["GLOO_SOCKET_IFNAME"] == "mine"
    assert "PET_STANDALONE" not in environment


@pytest.mark.parametrize(
    ("arguments", "changed", "words"),
    [
        ((), {}, "There is no program to start"),
        (("--", "gone.py"), {}, "The script gone.py is not there"),
        (("--", "python", "gone.py"), {}, "The script gone.py is not there"),
        (("--", "no-such-program"), {}, "The program no-such-program is not there"),
        (("--", "train.py"), {"RANK": ""}, "RANK is not set"),
        (("--", "train.py"), {"SLURM_NNODES": "3"}, "WORLD_SIZE=2 and SLURM_NNODES=3 contradict"),
        (("--wait", "0", "--", "train.py"), {"MASTER_ADDR": "no.such.host.invalid"}, "which does not resolve here"),
        (("--", "train.py"), {"MASTER_ADDR": "-oX"}, "is neither a name nor an address"),
        (("--python", "/no/python", "--", "train.py"), {}, "/no/python cannot be started: No such file"),
    ],
)
def test_bad_input_ends_with_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], changed: dict[str, str], words: str
) -> None:
    python = () if "--python" in arguments else ("--python", sys.executable)
    done = launch(tmp_path, *python, *arguments, **{**POD, **changed})
    assert done.returncode == 1
    last = [line for line in done.stderr.splitlines() if not line.startswith("clusterctl: node")][-1]
    assert words in last
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_pytorch_the_places_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python3"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr("clusterctl.jobs.in_allocation.DEFAULT_LAYOUT", Layout(str(tmp_path / "none")))
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"No Python here has PyTorch \(looked at {bare}\)"):
        in_allocation._python()  # noqa: SLF001
