"""Faults that a login shows, planted in what the probe says of four provisioned nodes.

The record of a node is captured from a real one (``tests/data/stack/node.json``). ``tests/cluster/test_doctor.py``
plants most of these faults on real nodes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import doctor_view
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model import fabric

Record = dict[str, Any]

KIND = "provisioned"
CULPRIT = "node3"
_NETWORK = "10.0.0.0/24"
_V2_GID = {"index": 3, "gid": "0000:0000:0000:0000:0000:ffff:0a00:0001", "type": "RoCE v2"}
_DOCKER0 = {"name": "docker0", "kind": "bridge", "mac": "02:42:ac:11:00:01", "mtu": 1500, "up": True, "carrier": True}
_DOCKER0_ADDRESS = {"family": 4, "address": "172.17.0.1", "prefix": 16, "scope": "global"}
_PMIX = "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so"


@dataclass(frozen=True)
class SessionFault:
    """A fault; ``plant`` makes the view of the cluster with it. The other fields are those of :class:`fault.Fault`."""

    name: str
    cause: int
    plant: Callable[[], View]
    check: str
    words: tuple[str, ...]


def _with(change: Callable[[Record], object]) -> Callable[[], View]:
    return lambda: doctor_view.seen(**{CULPRIT: change})


def _everywhere(each: Callable[[Record], object], here: Callable[[Record], object]) -> Callable[[], View]:
    def culprit(record: Record) -> None:
        each(record)
        here(record)

    return lambda: doctor_view.seen(**dict.fromkeys(doctor_view.NODES, each) | {CULPRIT: culprit})


def _docker0(record: Record) -> None:
    record["interfaces"].append({**_DOCKER0, "addresses": [_DOCKER0_ADDRESS]})


def _told_docker0() -> View:
    """All have a docker0 and are told the network of eth0, and one is told the network of docker0."""

    def change(record: Record, cidr: str) -> None:
        _docker0(record)
        record["fabric"] = {"network": cidr, "cidrs": [cidr], "interface": "", "peers": []}

    def named(name: str) -> Callable[[Record], None]:
        cidr = "172.17.0.0/16" if name == CULPRIT else _NETWORK
        return lambda record: change(record, cidr)

    return doctor_view.seen(**{name: named(name) for name in doctor_view.NODES})


def _closed(kind: fabric.PairKind) -> Callable[[], View]:
    """Have connections to one node fail, as its packet filter does; the others pass."""

    def plant() -> View:
        names = doctor_view.NODES
        pairs = tuple(
            fabric.PairResult(_NETWORK, source, target, "it failed", kind)
            if target == CULPRIT
            else fabric.PairResult(_NETWORK, source, target)
            for source in names
            for target in names
            if source != target
        )
        return dataclasses.replace(doctor_view.seen(), pairs=pairs)

    return plant


def _own_name(record: Record) -> None:
    own = next(entry for entry in record["names"] if entry["name"] == record["hostname"])
    own["addresses"] = ["127.0.1.1"]


def _unknown_key() -> View:
    view = doctor_view.seen()
    return doctor_view.failing(
        view, *((source, CULPRIT, "key_changed") for source in doctor_view.NODES if source != CULPRIT)
    )


def _no_path(record: Record) -> None:
    record["environment"]["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _other_openmpi(record: Record) -> None:
    entry = next(one for one in record["artifacts"] if one["name"] == "openmpi")
    entry |= {"version": "4.1.6", "key": "0123456789abcdef"}


def _prted(state: str) -> Callable[[Record], None]:
    """Tell of the programs with which mpirun starts ranks, of which one may be missing."""
    folder = "/usr/local/openmpi/bin"

    def change(record: Record) -> None:
        states = {"mpirun": "ok", "prterun": "ok", "prted": state}
        record["launch"] = [
            {"name": name, "path": f"{folder}/{name}", "real": f"{folder}/{name}", "own": f"{folder}/{name}"}
            | {"own_real": f"{folder}/{name}", "own_state": own}
            for name, own in states.items()
        ]

    return change


def _other_nccl(record: Record) -> None:
    """Let the loader of a session find an older NCCL that somebody has put there."""
    entry = next(one for one in record["libraries"] if one["soname"] == "libnccl.so.2")
    entry |= {"path": "/opt/nccl/libnccl.so.2", "real": "/opt/nccl/libnccl.so.2", "version": "2.20.5", "others": []}


def _with_slurm(*, found: bool) -> Callable[[Record], None]:
    plugin = {"name": "pmix_v4", "opens": _PMIX, "found": found, "version": "4.2.2" if found else ""}

    def change(record: Record) -> None:
        record["slurm"] = {"srun": "/usr/bin/srun", "conf": "", "plugins": [plugin], "mpi_default": "pmix"}

    return change


def _roce(gids: list[Record]) -> Callable[[Record], None]:
    port = {"number": 1, "state": "ACTIVE", "link_layer": "Ethernet", "rate_gbps": 200.0, "gids": gids}

    def change(record: Record) -> None:
        record["rdma"] = [{"name": "mlx5_0", "ports": [copy.deepcopy(port)]}]
        doctor_view.with_ucx(record)
        record["limits"]["memlock"] = {"soft": None, "hard": None}

    return change


def _gid(index: int, address: str = "0a00:0001", version: str = "RoCE v2") -> Record:
    return {"index": index, "gid": f"0000:0000:0000:0000:0000:ffff:{address}", "type": version}


def _index(gids: list[Record]) -> Callable[[Record], None]:
    """Give a node a GID table, and the setting that NCCL takes entry 3 of it."""

    def change(record: Record) -> None:
        _roce(gids)(record)
        own = {"name": "NCCL_IB_GID_INDEX", "value": "3", "source": "/etc/nccl.conf"}
        record["parameters"] = [*record.get("parameters", []), own]

    return change


def _two_networks(index: int) -> Callable[[Record], None]:
    """Give a node a second network, and both networks to its port, one of them as entry 3."""

    def change(record: Record) -> None:
        first = record["interfaces"][0]["addresses"][0]["address"]
        number = int(first.rpartition(".")[2])
        storage = {"family": 4, "address": f"10.9.0.{number}", "prefix": 24, "scope": "global"}
        record["interfaces"].append({**_DOCKER0, "name": "eth0.9", "kind": "vlan", "addresses": [storage]})
        jobs, other = _gid(index, f"0a00:{number:04x}"), _gid(8 - index, f"0a09:{number:04x}")
        _index([jobs, other])(record)

    return change


_FITS = [_gid(1, version="IB/RoCE v1"), _gid(3)]


def _memlock(record: Record) -> None:
    record["limits"]["memlock"] = {"soft": 65536, "hard": 65536}


def _small_shm(record: Record) -> None:
    record["shm_bytes"] = 64 << 20


def _full_shm(record: Record) -> None:
    folder = {"path": "/dev/shm", "exists": True, "free_bytes": 8 << 20, "total_bytes": record["shm_bytes"]}  # noqa: S108 - a record
    record["scratch"] = [*(one for one in record.get("scratch", []) if one["path"] != folder["path"]), folder]


def _leftover(record: Record) -> None:
    record["leftovers"] = [
        {"pid": 4711, "user": "cluster", "age_s": 4000.0, "command": "python train.py", "why": "orphan"}
    ]


def _few_logins(record: Record) -> None:
    record["ssh"]["settings"] = {"MaxStartups": "2:30:4"}


def _contradicting(record: Record) -> None:
    places = {"environment": "1048576", "/home/cluster/.openmpi/mca-params.conf": "65536"}
    record["parameters"] = [
        {"name": "btl_tcp_eager_limit", "value": value, "source": source} for source, value in places.items()
    ]


def _with_processors(record: Record) -> None:
    record |= {"threads": 32, "threads_online": 32, "cores": 32}


def _confined(record: Record) -> None:
    """Let sessions run on half of the cores, as a cpuset or an affinity of sshd does."""
    record["threads"], record["cores"] = record["threads_online"] // 2, record["cores"] // 2


FAULTS = (
    SessionFault("jobs are told the network of docker0", 1, _told_docker0, "network", ("172.17.0.0/16",)),
    SessionFault("a firewall drops connections", 2, _closed("timeout"), "ports", ("time out", "firewall")),
    SessionFault("a firewall rejects connections", 2, _closed("rejected"), "ports", ("are rejected", "firewall")),
    SessionFault("large packets are lost", 2, _closed("cut"), "ports", ("lose large ones", "MTU")),
    SessionFault("a firewall refuses connections", 2, _closed("refused"), "ports", ("are refused", "firewall")),
    SessionFault("its own name leads to 127.0.1.1", 3, _with(_own_name), "names", ("127.0.1.1",)),
    SessionFault("it shows a host key that nobody knows", 4, _unknown_key, "host_key", ("host key",)),
    SessionFault("PATH of a session lacks Open MPI", 5, _with(_no_path), "session", ("lacks", "/bin")),
    SessionFault(
        "prted is missing",
        5,
        _everywhere(_prted("ok"), _prted("missing")),
        "launch",
        ("/usr/local/openmpi/bin/prted is missing", "clusterctl provision"),
    ),
    SessionFault("another NCCL", 6, _with(_other_nccl), "stack", ("/opt/nccl/libnccl.so.2", "2.20.5", "2.32.3")),
    SessionFault("another release of Open MPI", 6, _with(_other_openmpi), "versions", ("4.1.6",)),
    SessionFault(
        "Slurm's plugin opens a PMIx that is missing",
        7,
        _everywhere(_with_slurm(found=True), _with_slurm(found=False)),
        "slurm pmix",
        ("pmix_v4", "missing"),
    ),
    SessionFault(
        "a RoCE port without a GID of version 2",
        8,
        _everywhere(_roce([_V2_GID]), _roce([{**_V2_GID, "type": "IB/RoCE v1"}])),
        "rdma",
        ("RoCE v2 GID",),
    ),
    SessionFault(
        "the GID index names no entry",
        8,
        _everywhere(_index(_FITS), _index([_gid(5)])),
        "gid index",
        ("no entry", "=5"),
    ),
    SessionFault(
        "the GID index names an entry of version 1",
        8,
        _everywhere(_index(_FITS), _index([_gid(3, version="IB/RoCE v1"), _gid(5)])),
        "gid index",
        ("v1", "mlx5_0 port 1", "NCCL_IB_GID_INDEX=5"),
    ),
    SessionFault(
        "the GID index names an address of IPv6",
        8,
        _everywhere(_index(_FITS), _index([{**_gid(3), "gid": "fe80:0000:0000:0000:bace:f6ff:fe00:0001"}, _gid(5)])),
        "gid index",
        ("fe80::bace:f6ff:fe00:1", "NCCL_IB_GID_INDEX=5"),
    ),
    SessionFault(
        "the GID index leads to another network",
        8,
        _everywhere(_two_networks(3), _two_networks(5)),
        "gid index",
        ("10.9.0.0/24", "10.0.0.0/24 on most"),
    ),
    SessionFault("little memory may be locked", 15, _everywhere(_roce([_V2_GID]), _memlock), "memlock", ("memlock",)),
    SessionFault("a small /dev/shm", 16, _with(_small_shm), "shared memory", ("64 MiB",)),
    SessionFault("a full /dev/shm", 16, _with(_full_shm), "shared memory", ("8 of",)),
    SessionFault("sshd lets few logins begin", 0, _with(_few_logins), "ssh", ("MaxStartups 2:30:4", "MaxStartups 10")),
    SessionFault(
        "two sources contradict each other",
        0,
        _with(_contradicting),
        "parameters",
        ("btl_tcp_eager_limit is 65536 in", "1048576 in the environment", "in one place"),
    ),
    SessionFault(
        "sessions may use half of the cores",
        24,
        _everywhere(_with_processors, _confined),
        "cores",
        ("16 of 32 hardware threads", "affinity"),
    ),
    SessionFault("a rank is left over", 23, _with(_leftover), "leftovers", ("4711",)),
)


def healthy() -> View:
    """Return the four nodes without a fault."""
    return doctor_view.seen()
