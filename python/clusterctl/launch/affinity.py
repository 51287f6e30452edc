"""Each rank on the cores and the network port nearest to its GPU, by the facts' NUMA nodes and bridges of PCI.

Ranks whose GPUs are near the same NUMA node share its cores evenly. Nodes without GPUs share all their cores evenly.
Containers of one machine that may use the same cores are one pool. Nothing is bound where ranks outnumber cores.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launch import mig_worker
from clusterctl.model.nodeset import folded
from clusterctl.model.rank_slots import gpu_devices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.model.facts import Gpu, NodeFacts
    from clusterctl.model.network_facts import RdmaDevice


_CPUS = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*")
_MOST_THREADS = 64  # of a core
_PORT = re.compile(r"[A-Za-z0-9_.-]{1,64}:[0-9]{1,3}")
# The texts are constant. The values come to them by position: entries CPUS+PORT by mpirun's rank, between slashes.
_OWN = (
    "_own=$1; shift; _at=0; _mine=; IFS=/; for _one in $_own; do "
    '[ "$_at" != "$OMPI_COMM_WORLD_RANK" ] || _mine=$_one; _at=$((_at + 1)); done; unset IFS; '
)
_OF_RANK = (
    _OWN + "_cpus=${_mine%%+*}; _port=${_mine#*+}; "
    '[ -z "$_port" ] || { : "${UCX_NET_DEVICES=$_port}"; export UCX_NET_DEVICES; }; '
    '[ -z "$_cpus" ] || exec taskset -c "$_cpus" "$@"; exec "$@"'
)
VARIABLE = "CLUSTERCTL_CPUS"  # on a node: the cores of each of its workers, between '@'
_OF_NODE = _OWN + f'export {VARIABLE}="$_mine"; exec "$@"'
_OF_WORKER = (
    f'_at=0; _cpus=; IFS=@; for _one in ${VARIABLE}; do [ "$_at" != "$LOCAL_RANK" ] || _cpus=$_one; '
    '_at=$((_at + 1)); done; unset IFS; [ -z "${_cpus#-}" ] || exec taskset -c "$_cpus" "$@"; exec "$@"'
)


@dataclass(frozen=True)
class RankPlace:
    """Where a rank runs: ``cpus`` as the kernel lists them and ``port`` (``mlx5_0:1``), each '' where left free."""

    cpus: str = ""
    port: str = ""
    reason: str = ""


@dataclass(frozen=True)
class _Rank:
    """A rank of a pool of cores, before it has its own."""

    node: str
    local: int
    gpu: Gpu | None
    numa: int


def places(nodes: Mapping[str, NodeFacts], slots: Mapping[str, int]) -> dict[str, tuple[RankPlace, ...]]:
    """Return the place of each rank of each node, by its number on the node."""
    pools: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name in slots:
        one = nodes[name]
        pools[(one.boot_id or name, one.numa)].append(name)
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for names in pools.values():
        found |= _shared({name: nodes[name] for name in names}, slots)
    return {name: tuple(_with_ports(nodes[name], name, count, found)) for name, count in slots.items()}


def notes(placed: Mapping[str, Sequence[RankPlace]], *, ports: bool) -> tuple[str, ...]:
    """Return one sentence for each different place, with the nodes and ranks that have it, and its reason.

    With ``ports``, a rank takes its port. NCCL gets none: it chooses by the same topology, it may reach another GPU's
    port over NVLink (PXN), and ranks of a node with different ``NCCL_IB_HCA`` would take that from it.
    """
    same: dict[tuple[int, RankPlace], list[str]] = defaultdict(list)
    for name, found in placed.items():
        for local, place in enumerate(found):
            same[(local, place)].append(name)
    port, left = ("port ", "") if ports else ("nearest port ", "; NCCL chooses by itself, by the same topology")
    return tuple(
        f"{folded(names)}, rank {local} of the node: {f'cores {place.cpus}' if place.cpus else 'any core'}"
        f"{f', {port}{place.port}' if place.port else ''} ({place.reason}{left if place.port else ''})"
        for (local, place), names in sorted(same.items(), key=lambda item: (item[1][0], item[0][0]))
    )


def before_ranks(placed: Mapping[str, Sequence[RankPlace]], *, ports: bool) -> tuple[str, ...]:
    """Return what stands before a program of mpirun so that each rank takes its place; empty where all are free.

    With ``ports``, MPI goes over UCX, which takes the port from ``UCX_NET_DEVICES``; a value of the user stays.
    """
    own = [f"{place.cpus}+{place.port if ports else ''}" for found in placed.values() for place in found]
    return ("/bin/sh", "-c", _OF_RANK, "sh", "/".join(own)) if set(own) - {"+"} else ()


def before_nodes(placed: Mapping[str, Sequence[RankPlace]]) -> tuple[str, ...]:
    """Return what stands before one process a node, which hands the places to its workers by :data:`VARIABLE`."""
    own = ["@".join(place.cpus or "-" for place in found) for found in placed.values()]
    return ("/bin/sh", "-c", _OF_NODE, "sh", "/".join(own)) if any(set(one) - {"-", "@"} for one in own) else ()


def of_workers(program: Sequence[str], python: str) -> tuple[str, ...]:
    """Return a program of torchrun such that each worker takes its place; ``program`` as of ``mig_worker``."""
    return ("/bin/sh", "-c", _OF_WORKER, "sh", *mig_worker.command(program, python))


# --- cores ------------------------------------------------------------------------------------------------------------


def _shared(nodes: Mapping[str, NodeFacts], slots: Mapping[str, int]) -> dict[tuple[str, int], tuple[str, str]]:
    """Return cores and reason of each rank of nodes that may use the same cores."""
    cores = {one.number: list(one.cores) for one in next(iter(nodes.values())).numa}
    if not cores or not all(_is_core(core) for listed in cores.values() for core in listed):
        return {(name, local): ("", "its cores are not known") for name in nodes for local in range(slots[name])}
    ranks = [rank for name, node in nodes.items() for rank in _ranks(name, node, slots[name], cores)]
    if any(rank.gpu is not None for rank in ranks):
        found: dict[tuple[str, int], tuple[str, str]] = {}
        for number in {rank.numa for rank in ranks}:
            near = [rank for rank in ranks if rank.numa == number]
            found |= _split(near, cores.get(number, []), f"NUMA node {number}")
        return found
    where = f"NUMA node {next(iter(cores))}" if len(cores) == 1 else f"{len(cores)} NUMA nodes"
    return _split(ranks, [core for number in sorted(cores) for core in cores[number]], where)


def _ranks(name: str, node: NodeFacts, count: int, cores: Mapping[int, Sequence[str]]) -> Iterator[_Rank]:
    gpus = {device: gpu for gpu in node.gpus for device in gpu.devices}
    devices = gpu_devices(node)
    for local in range(count):
        gpu = gpus[devices[local % len(devices)]] if devices else None
        numa = -1 if gpu is None else gpu.numa
        yield _Rank(name, local, gpu, next(iter(cores)) if len(cores) == 1 else numa)


def _split(ranks: Sequence[_Rank], cores: Sequence[str], where: str) -> dict[tuple[str, int], tuple[str, str]]:
    """Give each rank its even share of cores, whole cores in a row."""
    found = {}
    for number, rank in enumerate(ranks):
        gpu = "" if rank.gpu is None else f", near its GPU {rank.gpu.bus}"
        own = cores[number * len(cores) // len(ranks) : (number + 1) * len(cores) // len(ranks)]
        if not cores:
            place = "", f"the NUMA node of its GPU {rank.gpu.bus if rank.gpu else ''} is not known"
        elif len(cores) < len(ranks):
            place = "", f"{len(ranks)} ranks share {len(cores)} cores of {where}{gpu}"
        else:
            place = _listed(own), f"{len(own)} of {len(cores)} cores of {where}{gpu}"
        found[rank.node, rank.local] = place
    return found


def _listed(cores: Sequence[str]) -> str:
    """Return cores as the kernel lists their hardware threads, such as ``0-3,64-67``."""
    threads = sorted(cpu for core in cores for cpu in _threads(core))
    words: list[list[int]] = []
    for cpu in threads:
        if words and words[-1][-1] == cpu - 1:
            words[-1] = [words[-1][0], cpu]
        else:
            words.append([cpu])
    return ",".join("-".join(str(one) for one in word) for word in words)


def _is_core(core: str) -> bool:
    """Whether a word names the hardware threads of one core; a node may write any number."""
    ends = [word.partition("-")[::2] for word in core.split(",")] if _CPUS.fullmatch(core) else []
    return bool(ends) and sum(max(0, int(last or first) - int(first)) + 1 for first, last in ends) <= _MOST_THREADS


def _threads(core: str) -> Iterator[int]:
    for word in core.split(","):
        first, _sign, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


# --- ports ------------------------------------------------------------------------------------------------------------


def _with_ports(
    node: NodeFacts, name: str, count: int, found: Mapping[tuple[str, int], tuple[str, str]]
) -> Iterator[RankPlace]:
    """Yield the places of a node's ranks with the nearest active port each; ports equally near are used in turn."""
    gpus = {device: gpu for gpu in node.gpus for device in gpu.devices}
    devices = gpu_devices(node)
    ports = [(device, port.number) for device in node.rdma for port in device.ports if port.state == "ACTIVE"]
    used: Counter[str] = Counter()
    for local in range(count):
        cpus, reason = found[name, local]
        gpu = gpus[devices[local % len(devices)]] if devices else None
        port, why = _nearest(gpu, ports, used) if gpu is not None else ("", "")
        yield RankPlace(cpus, port, f"{reason}; {why}" if why else reason)


def _nearest(gpu: Gpu, ports: Sequence[tuple[RdmaDevice, int]], used: Counter[str]) -> tuple[str, str]:
    """Return the nearest port and why it is that one; '' where there is one port or none."""
    known = [(device, f"{device.name}:{number}") for device, number in ports]
    known = [(device, port) for device, port in known if _PORT.fullmatch(port)]
    if len(known) < 2:  # noqa: PLR2004 - one port is no choice
        return "", ""
    shared = {port: _bridges(gpu.pci_path, device.pci_path) for device, port in known}
    device, port = min(
        known,
        key=lambda one: (-len(shared[one[1]]), gpu.numa < 0 or one[0].numa != gpu.numa, used[one[1]]),
    )
    used[port] += 1
    if shared[port]:
        return port, f"{port} is behind the same PCI bridge {shared[port][-1]}"
    if gpu.numa >= 0 and device.numa == gpu.numa:
        return port, f"{port} is on the same NUMA node"
    return "", "all ports are equally far"


def _bridges(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the bridges that two devices have in common, from the root."""
    found = []
    for left, right in zip(one[:-1], other[:-1], strict=False):
        if left != right:
            break
        found.append(left)
    return found


# --- CUDA_VISIBLE_DEVICES of each rank on nodes whose GPUs are cut into MIG instances ---------------------------------
#
# A CUDA program sees the first MIG instance that the variable names, and no other (CUDA C++ Programming Guide, "CUDA
# Environment Variables"). So each rank gets the name of its own. A choice of the scheduler or the user stays; of
# several instances in it, each rank of a node keeps one.

_NO_CHOICE = "-"
_NAME = re.compile(r"(?:MIG|GPU)-[A-Za-z0-9/-]+")
# The texts are constant. The values come to them by position: the names of the devices by mpirun's rank.
_FROM_TABLE = (
    "_own=$1; shift; _at=0; IFS=:; for _one in $_own; do "
    f'if [ "$_at" = "$OMPI_COMM_WORLD_RANK" ] && [ "$_one" != {_NO_CHOICE} ]; then '
    ': "${CUDA_VISIBLE_DEVICES=$_one}"; export CUDA_VISIBLE_DEVICES; fi; _at=$((_at + 1)); done; unset IFS; '
)
_MIG_OF_NODE = _FROM_TABLE + mig_worker.START
_MIG_OF_RANK = _FROM_TABLE + mig_worker.one_of_visible("OMPI_COMM_WORLD_LOCAL_RANK") + mig_worker.START


def has_instances(nodes: Sequence[NodeFacts]) -> bool:
    """Whether a GPU of any node that jobs can use is cut into MIG instances."""
    return any(gpu.instances for node in nodes for gpu in node.gpus if gpu.usable)


def of_ranks(
    nodes: Mapping[str, NodeFacts], slots: Mapping[str, int], hosts: Sequence[str], *, per_node: bool = False
) -> tuple[str, ...]:
    """Return what stands before a program of mpirun so that each rank sees its own instance; empty without MIG.

    With ``per_node``, each node has one process, which gets all instances of the node.
    """
    if not has_instances([nodes[name] for name in slots]):
        return ()
    own = {name: _devices(nodes[name]) for name in slots}
    if per_node:
        entries = [",".join(devices) or _NO_CHOICE for devices in own.values()]
    else:
        turns = {name: itertools.cycle(devices or (_NO_CHOICE,)) for name, devices in own.items()}
        entries = [next(turns[name]) for name in hosts]
    return ("/bin/sh", "-c", _MIG_OF_NODE if per_node else _MIG_OF_RANK, "sh", ":".join(entries))


def _devices(node: NodeFacts) -> tuple[str, ...]:
    """Return the names that the ranks of a node choose from, none where its GPUs are whole."""
    devices = gpu_devices(node) if has_instances([node]) else ()
    return devices if all(_NAME.fullmatch(one) for one in devices) else ()
