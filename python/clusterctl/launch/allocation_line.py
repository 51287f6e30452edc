"""torchrun inside a pod or a job step: what this machine's network and GPUs ask for, and the line it comes to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launch import mig_worker, nccl_options, torchrun
from clusterctl.model import fabric
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.launch.local_facts import LocalFacts, LocalRoute
    from clusterctl.launch.scheduler_env import RankPlace


# torchrun reads every option's default from PET_…; those of another rendezvous would overrule the static one.
_OTHER_RENDEZVOUS = ("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE")
_NO_GPU = frozenset({"", "-1", "none", "NoDevFiles"})
_ACTIVE = "ACTIVE"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - spoken of, not written to
_SMALL_SHM_BYTES = 128 << 20
_SMALL_MEMLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class LocalMachine:
    """This very machine or pod: its facts, what the master's name means to it, its GPUs and its share of the CPUs."""

    node: LocalFacts
    master_addresses: tuple[str, ...] = ()
    rdma: tuple[fabric.RdmaChoice, ...] = ()
    gpu_devices: int = 0
    cpu_quota: float | None = None


@dataclass(frozen=True)
class EnvironmentSetting:
    """A variable that the job gets, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class AllocationPlan:
    """What this process is to become: the tokens, the variables to add and to take away, and what was found."""

    argv: tuple[str, ...]
    settings: tuple[EnvironmentSetting, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    where: RankPlace
    machine: LocalMachine


def plan(
    where: RankPlace,
    machine: LocalMachine,
    environment: Mapping[str, str],
    program: Sequence[str],
    *,
    python: str,
    nproc_per_node: int | None = None,
    nccl: nccl_options.NcclOptions = nccl_options.NO_OPTIONS,
) -> AllocationPlan:
    """Decide what this process becomes.

    Raises:
        ConfigError: there is no program, something is malformed, or processes could not tell MIG instances apart.
    """
    nccl_options.refuse(nccl)
    count, why = processes(machine, environment, nproc_per_node)
    shared = PodInstances()
    if count > 1 and program and program[0]:
        shared = of_pod(environment, machine.node, machine.gpu_devices)
    argv = torchrun.argv(
        torchrun.Torchrun(
            nnodes=where.nodes,
            nproc_per_node=count,
            program=mig_worker.of_workers(program, python) if shared.names else tuple(program),
            node_rank=where.rank if where.master_addr else None,
            master_addr=where.master_addr,
            master_port=where.master_port,
            python=python,
        )
    )
    settings, kept = _wanted(where, machine, environment, nccl)
    if shared.names and shared.said_by != CUDA:
        value, reason = ",".join(shared.names), f"each process keeps one of the instances of {shared.said_by}"
        settings = (*settings, EnvironmentSetting(CUDA, value, reason))
    dropped = tuple(name for name in _OTHER_RENDEZVOUS if name in environment)
    meeting = f"node {where.rank} of {where.nodes}, meeting at {where.master_addr} port {where.master_port}"
    notes = [
        f"{meeting} ({where.master_said_by})" if where.master_addr else "the only node",
        f"{count} {'process' if count == 1 else 'processes'} on this node ({why})",
        *where.notes,
        *kept,
        *_findings(where, machine),
        *(f"{name} is taken away, for it asks torchrun for another rendezvous" for name in dropped),
    ]
    return AllocationPlan(tuple(argv), settings, dropped, tuple(notes), where, machine)


def processes(machine: LocalMachine, environment: Mapping[str, str], asked: int | None = None) -> tuple[int, str]:
    """Return how many processes torchrun starts on this node, and why.

    The number that was asked for, else ``PET_NPROC_PER_NODE``, else one per visible GPU or MIG instance, else one per
    core. The variables of CUDA and of NVIDIA's container runtime say which GPUs are visible.
    """
    if asked is not None:
        return asked, "--nproc-per-node"
    given = environment.get("PET_NPROC_PER_NODE", "")
    if given.isdigit() and int(given) > 0:
        return int(given), f"PET_NPROC_PER_NODE={given}"
    gpus, why = _gpus(machine, environment)
    if gpus and given != "cpu":
        return gpus, why
    cores = max(1, machine.node.cores)
    if machine.cpu_quota is not None and machine.cpu_quota < cores:
        return max(1, int(machine.cpu_quota)), f"no GPU, and a CPU limit of {machine.cpu_quota:g}"
    return cores, f"no GPU, and {cores} cores"


def interface_to(node: LocalFacts, addresses: Iterable[str]) -> tuple[str, str]:
    """Return the interface that leads to the master and why it is that one, or ('', why there is none).

    The role ``fabric``'s own choice comes first. Then: where the master's address is this machine's own, the interface
    that bears it; where it is a loopback address, as some operators set it on node 0, the default route's; else the
    route with the longest prefix.
    """
    present = {interface.name: interface for interface in node.interfaces}
    if node.fabric is not None and node.fabric.interface in present and present[node.fabric.interface].up:
        return node.fabric.interface, f"the cluster's network {', '.join(node.fabric.cidrs)}"
    found = [fabric.parsed(address, may_have_scope=True) for address in addresses]
    found.sort(key=lambda address: address.version)
    own = {
        fabric.parsed(address.address): interface.name
        for interface in node.interfaces
        for address in interface.addresses
        if interface.kind != "loopback"
    }
    for address in found:
        if address in own:
            return own[address], f"it bears the master's address {address}"
    outside = [address for address in found if not address.is_loopback]
    for address in outside or [fabric.parsed("0.0.0.0")] * bool(found):  # noqa: S104 - looked up, not bound
        name = _route(node.routes, address)
        if name in present and present[name].kind != "loopback":
            return name, f"the route to {address} leads there" if outside else "the default route leads there"
    return "", f"no route leads to {', '.join(map(str, found)) or 'the master'}"


def _wanted(
    where: RankPlace, machine: LocalMachine, environment: Mapping[str, str], nccl: nccl_options.NcclOptions
) -> tuple[tuple[EnvironmentSetting, ...], tuple[str, ...]]:
    """Return the variables that this machine's network asks for, and a note for each that the user had set already."""
    asked: list[EnvironmentSetting] = []
    if where.nodes > 1:
        name, why = interface_to(machine.node, machine.master_addresses)
        if name:
            asked += [
                EnvironmentSetting("NCCL_SOCKET_IFNAME", f"={name}", why),
                EnvironmentSetting("GLOO_SOCKET_IFNAME", name, why),
            ]
        asked += _devices(machine.rdma)
        asked += _of_the_user(machine.rdma, nccl)
    kept = [f"{it.name}={environment[it.name]} is kept as it was set" for it in asked if it.name in environment]
    return tuple(it for it in asked if it.name not in environment), tuple(kept)


def _of_the_user(ports: Sequence[fabric.RdmaChoice], nccl: nccl_options.NcclOptions) -> list[EnvironmentSetting]:
    """Return the options of NCCL that the user asks for; ``auto`` becomes this pod's own GID index."""
    options = [
        EnvironmentSetting(name, value, "asked for on the command line")
        for name, value in nccl_options.variables(nccl).items()
    ]
    if nccl.gid_index != nccl_options.AUTO:
        return options
    roce = [port for port in ports if _is_usable(port) and port.gid_index is not None]
    if len({port.gid_index for port in roce}) > 1:
        words = ", ".join(f"{port.device} port {port.port} at {port.gid_index}" for port in roce)
        raise ConfigError(
            f"--gid-index auto: NCCL takes one index for all ports, and this pod has {words}; leave the option out, or"
            " name ports of one index in NCCL_IB_HCA and give that index."
        )
    for port in roce[:1]:
        reason = f"RoCE v2 over IPv4 of {port.device} port {port.port}"
        options.append(EnvironmentSetting(nccl_options.GID_INDEX, str(port.gid_index), reason))
    return options


def serving(ports: Sequence[fabric.RdmaChoice]) -> list[fabric.RdmaChoice]:
    """Return the RDMA ports that NCCL can use, of the link layer of the fastest."""
    usable = list(filter(_is_usable, ports))
    if not usable:
        return []
    fastest = max(usable, key=lambda port: (port.rate_gbps or 0.0, port.link_layer == "InfiniBand"))
    return [port for port in usable if port.link_layer == fastest.link_layer]


def _is_usable(port: fabric.RdmaChoice) -> bool:
    return port.usable and port.state == _ACTIVE


def _devices(ports: Sequence[fabric.RdmaChoice]) -> list[EnvironmentSetting]:
    """Name the RDMA ports for NCCL, but only where it would otherwise take one that does not serve.

    NCCL takes every active port by itself, and a list that is not needed is a common cause of failure.
    """
    chosen = serving(ports)
    left = [port for port in ports if port.state == _ACTIVE and port not in chosen]
    if not chosen or not left:
        return []
    other = f"is not {chosen[0].link_layer}"
    reasons = [f"{port.device} port {port.port} {other if port.usable else port.reason}" for port in left]
    names = ",".join(f"{port.device}:{port.port}" for port in chosen)
    return [EnvironmentSetting("NCCL_IB_HCA", f"={names}", "; ".join(reasons))]


def _findings(where: RankPlace, machine: LocalMachine) -> list[str]:
    """Say what of this machine will hurt the job, without changing it."""
    notes = []
    if machine.node.empty_gpus:
        count = machine.node.empty_gpus
        notes.append(
            f"no program can use {count} {'GPU' if count == 1 else 'GPUs'}: MIG mode is on, without an instance"
        )
    active = [port for port in machine.rdma if port.state == _ACTIVE]
    if machine.rdma and not active:
        names = ", ".join(dict.fromkeys(port.device for port in machine.rdma))
        notes.append(f"no port of {names} is active, so NCCL takes sockets")
    memlock = machine.node.limits.get("memlock")
    if active and memlock and memlock.soft is not None and memlock.soft < _SMALL_MEMLOCK_BYTES:
        notes.append(f"memlock is {memlock.soft >> 10} KiB, and RDMA locks memory; give the container IPC_LOCK")
    if 0 < machine.node.shm_bytes < _SMALL_SHM_BYTES:
        notes.append(f"{_SHARED_MEMORY} has {machine.node.shm_bytes >> 20} MiB, which NCCL and data loaders soon fill")
    if where.nodes > 1 and machine.master_addresses:
        notes += _doubts(where, machine)
        name, why = interface_to(machine.node, machine.master_addresses)
        if not name:
            notes.append(f"no interface is pinned, since {why}")
    return notes


def _doubts(where: RankPlace, machine: LocalMachine) -> list[str]:
    found = {fabric.parsed(address, may_have_scope=True) for address in machine.master_addresses}
    own = {fabric.parsed(address.address) for interface in machine.node.interfaces for address in interface.addresses}
    said = f"{where.master_addr} ({', '.join(sorted(map(str, found)))})"
    if where.rank > 0 and all(address.is_loopback for address in found):
        return [f"{said} means this very machine, which is right only if node 0 runs here as well"]
    if where.rank == 0 and not any(address.is_loopback or address in own for address in found):
        return [f"{said} is not an address of this node 0, which is right only behind a service's address"]
    return []


def _gpus(machine: LocalMachine, environment: Mapping[str, str]) -> tuple[int, str]:
    for name in (CUDA, NVIDIA):
        value = environment.get(name)
        if value is None or value in EVERY_GPU:
            continue
        if value in _NO_GPU:
            return 0, f"{name}={value}"
        count = len([word for word in value.split(",") if word])
        return count, f"the GPUs of {name}={value}"
    count = len(machine.node.instances)
    if count:
        return count, f"{count} MIG {'instance' if count == 1 else 'instances'}"
    count = max(0, machine.gpu_devices - machine.node.empty_gpus)
    return count, f"{count} {'GPU' if count == 1 else 'GPUs'}"


def _route(routes: Sequence[LocalRoute], address: fabric.IpAddress) -> str:
    leading = [
        (fabric.network(route.destination, strict=False).prefixlen, -route.metric, route.interface)
        for route in routes
        if route.family == address.version and address in fabric.network(route.destination, strict=False)
    ]
    return max(leading, default=(0, 0, ""))[2]


# --- MIG instances of a pod or a job step: which of them its processes take, one each ---------------------------------
#
# A CUDA program sees the first instance that ``CUDA_VISIBLE_DEVICES`` names, and no other. So several processes need
# the names of all instances, and each keeps its own. A container runtime may say them as ``GPU:INSTANCE``, which CUDA
# does not take.

CUDA = "CUDA_VISIBLE_DEVICES"
NVIDIA = "NVIDIA_VISIBLE_DEVICES"
EVERY_GPU = frozenset({"all", "void"})  # every GPU there is; or somebody else (CDI) puts them in
_NUMBERED = re.compile(r"\d+:\d+")  # GPU and instance by number, as NVIDIA's container toolkit takes them
_CHOOSE = f"set {CUDA} to instances of 'nvidia-smi -L', or take another --nproc-per-node"


@dataclass(frozen=True)
class PodInstances:
    """The names of the instances, none where processes take whole GPUs; ``said_by`` is what names them."""

    names: tuple[str, ...] = ()
    said_by: str = ""


def of_pod(environment: Mapping[str, str], node: LocalFacts, gpu_devices: int) -> PodInstances:
    """Return the instances that the processes of this pod or job step share out.

    ``gpu_devices`` is how many GPUs have a device file here.
    """
    for variable in (CUDA, NVIDIA):
        value = environment.get(variable)
        if value is None or value in EVERY_GPU:
            continue
        words = tuple(word for word in value.split(",") if word)
        return _said(variable, words, node)
    whole = max(0, gpu_devices - node.cut_gpus - node.empty_gpus)
    if node.instances and whole:
        raise ConfigError(
            f"This pod has MIG instances ({len(node.instances)}) and whole GPUs ({whole}), and a program cannot use "
            f"both; set {CUDA} to the names of either, as 'nvidia-smi -L' has them."
        )
    return PodInstances(node.instances, "nvidia-smi") if node.instances else PodInstances()


def _said(variable: str, words: tuple[str, ...], node: LocalFacts) -> PodInstances:
    cut = tuple(word for word in words if word.startswith("MIG-"))
    if cut and len(cut) < len(words):
        raise ConfigError(
            f"{variable}={','.join(words)} names MIG instances and whole GPUs, and a program cannot use both; "
            f"set {CUDA} to the names of either."
        )
    if cut:
        return PodInstances(cut, variable)
    if any(_NUMBERED.fullmatch(word) for word in words):
        if len(node.instances) == len(words):
            return PodInstances(node.instances, "nvidia-smi")
        if len(words) > 1:
            raise ConfigError(
                f"{variable}={','.join(words)} names MIG instances by numbers, which CUDA does not take; {_CHOOSE}."
            )
    if len(words) > 1 and node.instances and node.cut_gpus >= len(words):
        raise ConfigError(
            f"{variable}={','.join(words)} names GPUs that are cut into MIG instances, of which a program sees the "
            f"first alone; set {CUDA} to instances of 'nvidia-smi -L'."
        )
    return PodInstances()
