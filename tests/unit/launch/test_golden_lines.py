"""Launch lines of the launchers' own documentation, each reproduced by one ``clusterctl run --print``.

The lines are read flag by flag: as many ranks, the same slots on the same hosts, the same binding and mapping, every
variable and every parameter, in the words of the installed release. What clusterctl adds is listed here, and nothing
else may be added.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from typing import Any

import pytest
from clusterctl.cli.main import main
from launching import Site

SERVERS = ("server1", "server2", "server3", "server4")
RUNNING = "Horovod, docs/running.rst"
MPI = "Horovod, docs/mpi.rst"
QUICKSTART = "Open MPI, docs/launching-apps/quickstart.rst"
SCHEDULING = "Open MPI, docs/launching-apps/scheduling.rst"
OLD, NEW = "4.1.8", "5.0.7"
SHARED = {OLD: "vader", NEW: "sm"}  # what the release calls shared memory


@dataclass
class Meaning:
    """An mpirun line, taken apart."""

    ranks: int | None = None
    slots: dict[str, int] = field(default_factory=dict)
    binding: str = ""
    mapping: str = ""
    oversubscribe: bool = False
    exported: dict[str, str | None] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    program: list[str] = field(default_factory=list)


def read(line: str) -> Meaning:
    """Read an mpirun line of either series, with one dash or two."""
    words = shlex.split(line)
    while not words[0].endswith("mpirun"):  # the variables of its own environment
        words.pop(0)
    words.pop(0)
    found = Meaning()
    if "--oversubscribe" in words:  # 4.1's own word, the only one without a value
        words.remove("--oversubscribe")
        found.oversubscribe = True
    while words[0].startswith("-"):
        name, value = words.pop(0).lstrip("-"), words.pop(0)
        if name in {"mca", "prtemca", "pmixmca"}:
            found.parameters[value] = words.pop(0)
        else:
            FLAGS[name](found, value)
    found.program = words
    return found


def hosts_of(found: Meaning, value: str) -> None:
    pairs = (pair.partition(":") for pair in value.split(","))
    found.slots = {host: int(count or 1) for host, _, count in pairs}


def mapping_of(found: Meaning, value: str) -> None:
    found.mapping = value.removesuffix(":OVERSUBSCRIBE")
    found.oversubscribe |= found.mapping != value


def variable_of(found: Meaning, value: str) -> None:
    name, sign, content = value.partition("=")
    found.exported[name] = content if sign else None


FLAGS = {
    "np": lambda found, value: setattr(found, "ranks", int(value)),
    "n": lambda found, value: setattr(found, "ranks", int(value)),
    "H": hosts_of,
    "host": hosts_of,
    "bind-to": lambda found, value: setattr(found, "binding", value),
    "map-by": mapping_of,
    "x": variable_of,
}


def printed(monkeypatch: Any, capsys: Any, hosts: tuple[str, ...], arguments: str, version: str, **site: Any) -> str:
    Site(monkeypatch, hosts, version=version, **site)
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    options, _, program = arguments.partition("-- ")
    assert main(["run", "inventory.ini", "--print", *shlex.split(options), "--", *shlex.split(program)]) == 0
    return str(capsys.readouterr().out)


# page, the line there, the hosts of the inventory (4 slots each), our words for it
MPIRUN = [
    (
        MPI,
        (
            "mpirun -np 4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH"
            " -mca pml ob1 -mca btl ^openib python train.py"
        ),
        ("localhost",),
        "-np 4 -x NCCL_DEBUG=INFO -- python train.py",
    ),
    (
        MPI,
        (
            "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot"
            " -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py"
        ),
        SERVERS,
        "-np 16 -x NCCL_DEBUG=INFO -- python train.py",
    ),
    (
        MPI + ", custom SSH ports",
        (
            "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot"
            " -mca plm_rsh_args '-p 12345' -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH"
            " -mca pml ob1 -mca btl ^openib python train.py"
        ),
        SERVERS,
        "-np 16 --mca plm_rsh_args '-p 12345' -x NCCL_DEBUG=INFO -- python train.py",
    ),
    (
        MPI + ", non-routed network interfaces",
        (
            "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot"
            " -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -x NCCL_SOCKET_IFNAME=^lo,docker0"
            " -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_exclude lo,docker0 python train.py"
        ),
        SERVERS,
        (
            "-np 16 -x NCCL_DEBUG=INFO -x NCCL_SOCKET_IFNAME=^lo,docker0 --mca btl_tcp_if_exclude lo,docker0"
            " -- python train.py"
        ),
    ),
    (
        MPI + ", tensor fusion",
        "mpirun -x HOROVOD_FUSION_THRESHOLD=33554432 -x HOROVOD_CYCLE_TIME=3.5 -np 4 python train.py",
        ("localhost",),
        "-np 4 -x HOROVOD_FUSION_THRESHOLD=33554432 -x HOROVOD_CYCLE_TIME=3.5 -- python train.py",
    ),
    (QUICKSTART, "mpirun -n 4 mpi-hello-world", ("localhost",), "-np 4 -- mpi-hello-world"),
    (
        SCHEDULING,
        "mpirun -n 16 --host node01:4,node02:4,node03:4,node04:4 --map-by slot hostname",
        ("node01", "node02", "node03", "node04"),
        "-np 16 -- hostname",
    ),
    (
        SCHEDULING + ", oversubscription",
        "mpirun -n 32 --host node01:4,node02:4,node03:4,node04:4 --map-by slot:OVERSUBSCRIBE hostname",
        ("node01", "node02", "node03", "node04"),
        "-np 32 --oversubscribe -- hostname",
    ),
]


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(("page", "line", "hosts", "ours"), MPIRUN)
def test_a_documented_mpirun_line(
    page: str, line: str, hosts: tuple[str, ...], ours: str, version: str, monkeypatch: Any, capsys: Any
) -> None:
    wanted, got = read(line), read(printed(monkeypatch, capsys, hosts, ours, version))
    assert got.ranks == wanted.ranks, page
    assert got.slots == (wanted.slots or {"localhost": 4})
    assert (got.binding, got.mapping) == ("none", wanted.mapping or "slot")
    assert got.oversubscribe == wanted.oversubscribe
    assert got.exported == {"PATH": None, "LD_LIBRARY_PATH": None, **wanted.exported}
    # Not openib means TCP, shared memory and oneself, by the names of the release; that is ours to add elsewhere.
    renamed = {"plm_rsh_args": "plm_ssh_args"} if version == NEW else {}
    parameters = {renamed.get(name, name): value for name, value in wanted.parameters.items()}
    assert got.parameters == {**parameters, "pml": "ob1", "btl": f"tcp,self,{SHARED[version]}"}
    assert got.program == [{"python": "/usr/local/python_env/bin/python"}.get(word, word) for word in wanted.program]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_documented_choice_of_no_openib_is_taken_as_it_is(version: str, monkeypatch: Any, capsys: Any) -> None:
    line = printed(monkeypatch, capsys, SERVERS, "--mca pml ob1 --mca btl ^openib -- python train.py", version)
    assert read(line).parameters == {"pml": "ob1", "btl": "^openib"}


def test_rdma_by_ucx_in_both_dialects(monkeypatch: Any, capsys: Any) -> None:
    """Open MPI, README of 4.1 and docs/tuning-apps/networking/ib-and-roce.rst: mpirun --mca pml ucx."""
    device = {"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand"}]}
    for version, parameters in ((OLD, {"pml": "ucx", "btl": "^openib"}), (NEW, {"pml": "ucx"})):
        site = Site(monkeypatch, SERVERS, version=version, rdma=[device])
        for name, node in site.nodes.items():
            first = node.artifacts[0].model_copy(update={"inputs": {"configure": ["--with-ucx=/usr"]}})
            site.nodes[name] = node.model_copy(update={"artifacts": (first, *node.artifacts[1:])})
        for network in ([], ["--network", "ucx"]):
            assert main(["run", "inventory.ini", "--print", *network, "--", "hostname"]) == 0
            assert read(capsys.readouterr().out).parameters == parameters
        assert main(["run", "inventory.ini", "--print", "--network", "tcp", "--", "hostname"]) == 0
        assert read(capsys.readouterr().out).parameters["pml"] == "ob1"


def test_ucx_without_rdma_takes_any_transport_and_is_never_chosen_by_itself(monkeypatch: Any, capsys: Any) -> None:
    """Open MPI, docs/tuning-apps/networking/ib-and-roce.rst: UCX is taken for listed devices alone, unless for any."""
    site = Site(monkeypatch, SERVERS, version=NEW)
    for name, node in site.nodes.items():
        first = node.artifacts[0].model_copy(update={"inputs": {"configure": ["--with-ucx=/usr/local/ucx"]}})
        site.nodes[name] = node.model_copy(update={"artifacts": (first, *node.artifacts[1:])})
    assert main(["run", "inventory.ini", "--print", "--network", "ucx", "--", "hostname"]) == 0
    wanted = {"pml": "ucx", "opal_common_ucx_tls": "any", "opal_common_ucx_devices": "any"}
    assert read(capsys.readouterr().out).parameters == wanted
    assert main(["run", "inventory.ini", "--print", "--", "hostname"]) == 0
    assert read(capsys.readouterr().out).parameters["pml"] == "ob1"


def test_a_run_over_tcp_tells_that_rdma_is_there(monkeypatch: Any, capsys: Any) -> None:
    device = {"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand"}]}
    site = Site(monkeypatch, SERVERS, version=NEW, rdma=[device])
    words = "MPI goes over TCP on eth0, although mlx5_0 is there: Open MPI on server[1-4] was built without UCX; set"
    assert main(["run", "inventory.ini", "--print", "--", "hostname"]) == 0
    assert words in capsys.readouterr().err
    assert main(["run", "inventory.ini", "--print", "--network", "tcp", "--", "hostname"]) == 0
    assert "although" not in capsys.readouterr().err
    last, node = list(site.nodes.items())[-1]
    site.nodes[last] = node.model_copy(update={"rdma": ()})
    assert main(["run", "inventory.ini", "--print", "--", "hostname"]) == 0
    assert "although" not in capsys.readouterr().err


HOROVODRUN = [
    (RUNNING, "horovodrun -np 4 -H localhost:4 python train.py", ("localhost",), "-np 4 -- python train.py"),
    (MPI, "horovodrun -np 4 -H localhost:4 python train.py", ("localhost",), "-- python train.py"),
    (
        RUNNING,
        "horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python train.py",
        SERVERS,
        "-np 16 -- python train.py",
    ),
    (  # its hostfile of three hosts with two slots each
        RUNNING,
        "horovodrun -np 6 -H aa:2,bb:2,cc:2 python train.py",
        ("aa", "bb", "cc"),
        "-np 6 -- python train.py",
    ),
]


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(("page", "line", "hosts", "ours"), HOROVODRUN)
def test_a_documented_horovodrun_line(
    page: str, line: str, hosts: tuple[str, ...], ours: str, version: str, monkeypatch: Any, capsys: Any
) -> None:
    slots = 2 if "aa" in hosts else 4
    got = shlex.split(printed(monkeypatch, capsys, hosts, f"--launcher horovodrun {ours}", version, slots=slots))
    wanted = shlex.split(line)
    wanted[0] = f"/usr/local/horovod/bin/{wanted[0]}"
    wanted[wanted.index("python")] = "/usr/local/python_env/bin/python"
    if len(hosts) > 1:  # the proven network, which it would look for otherwise
        wanted[5:5] = ["--network-interfaces", "eth0"]
    assert got == wanted, page


def test_horovodruns_ranks_get_variables_by_its_environment(monkeypatch: Any, capsys: Any) -> None:
    line = printed(
        monkeypatch, capsys, SERVERS, "--launcher horovodrun -x NCCL_DEBUG=INFO --mca btl_tcp_links 2 -- a.out", NEW
    )
    assert line.startswith("env NCCL_DEBUG=INFO /usr/local/horovod/bin/horovodrun -np 16 ")
    assert "--mpi-args=--mca btl_tcp_links 2" in shlex.split(line)


# PyTorch, docs/source/elastic/run.rst: "torchrun --nnodes=$NUM_NODES --nproc-per-node=$NUM_TRAINERS ... SCRIPT", to be
# typed on every node with its --node-rank; the recipe has mpirun do that: mpirun -np 4 --map-by ppr:1:node, with the
# rank of mpirun as the node's.
@pytest.mark.parametrize("version", [OLD, NEW])
def test_torchrun_on_four_nodes_by_mpirun(version: str, monkeypatch: Any, capsys: Any) -> None:
    arguments = "--launcher torchrun -x NCCL_DEBUG=INFO -- train.py --lr 0.1"
    got = read(printed(monkeypatch, capsys, SERVERS, arguments, version))
    assert (got.ranks, got.binding, got.mapping) == (4, "none", "ppr:1:node")
    assert got.slots == dict.fromkeys(SERVERS, 4)
    assert got.exported == {"PATH": None, "LD_LIBRARY_PATH": None, "NCCL_DEBUG": "INFO"}
    shell, option, text, python, *words = got.program
    assert [shell, option, python] == ["sh", "-c", "/usr/local/python_env/bin/python"]
    assert text == 'exec "$0" -m torch.distributed.run --node-rank="$OMPI_COMM_WORLD_RANK" "$@"'
    assert words == [
        *("--nnodes=4", "--nproc-per-node=4", "--master-addr=10.0.0.1", "--master-port=29500"),
        *("--", "train.py", "--lr", "0.1"),
    ]


def test_torchrun_on_one_node(monkeypatch: Any, capsys: Any) -> None:
    """PyTorch, docs/source/elastic/run.rst: torchrun --standalone --nnodes=1 --nproc-per-node=$NUM_TRAINERS SCRIPT."""
    got = read(printed(monkeypatch, capsys, ("server1",), "--launcher torchrun -- train.py", NEW))
    assert got.program[4:] == ["--nnodes=1", "--nproc-per-node=4", "--standalone", "--", "train.py"]
