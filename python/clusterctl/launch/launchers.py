"""The launchers of ``clusterctl run`` as a table, and what mpirun starts for those that have a start of their own.

mpirun's supervised start is the same for all of them. Where a launcher starts the processes of its node itself, mpirun
starts it once a node, and mpirun's rank is the node's.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from clusterctl.launch import accelerate, affinity, own_options, torchrun
from clusterctl.launch.own_options import OwnOptions
from clusterctl.model.rank_slots import gpu_devices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.launch.accelerate import AccelerateConfig
    from clusterctl.model.facts import NodeFacts

PORT = "{port}"  # becomes one that is free on the launch node


class Launcher(str, Enum):
    """Who starts the ranks."""

    MPIRUN = "mpirun"
    HOROVODRUN = "horovodrun"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    JAX = "jax"
    RAY = "ray"
    NONE = "none"


@dataclass(frozen=True)
class LauncherTraits:
    """What sets a launcher apart."""

    per_node: bool = False  # mpirun starts one process a node, which starts the node's ranks
    numbers_ranks: bool = False  # the numbers of the ranks are its own, and not mpirun's
    runs_scripts: bool = False  # it takes a script or ``-m MODULE`` and brings the Python
    places_workers: bool = False  # its workers can take cores and MIG instances by ``LOCAL_RANK``
    # those of the launcher's own that the user may give before the program; None where it takes none
    options: OwnOptions | None = None
    # what the nodes have to have: ``PyTorch``, ``Horovod``, or the name of a package of Python
    needs: tuple[str, ...] = ()


_DEEPSPEED = OwnOptions("deepspeed", frozenset({"world_info", "node_rank", "master_addr", "master_port"}))
# Of "ray start". The dashboard, which runs code for everybody who reaches it, is left out.
_RAY = OwnOptions(
    "ray",
    frozenset(
        {"head", "address", "port", "node_ip_address", "temp_dir", "block", "include_dashboard"}
        | {"ray_client_server_port", "min_worker_port", "max_worker_port", "num_cpus"}
    ),
)
TRAITS = {
    Launcher.MPIRUN: LauncherTraits(),
    Launcher.HOROVODRUN: LauncherTraits(needs=("Horovod",)),
    Launcher.TORCHRUN: LauncherTraits(
        per_node=True, numbers_ranks=True, runs_scripts=True, places_workers=True, needs=("PyTorch",)
    ),
    Launcher.ACCELERATE: LauncherTraits(
        per_node=True,
        numbers_ranks=True,
        runs_scripts=True,
        places_workers=True,
        options=accelerate.OPTIONS,
        needs=("PyTorch", "accelerate"),
    ),
    Launcher.DEEPSPEED: LauncherTraits(
        per_node=True, numbers_ranks=True, runs_scripts=True, options=_DEEPSPEED, needs=("PyTorch", "deepspeed")
    ),
    Launcher.JAX: LauncherTraits(needs=("jax",)),
    Launcher.RAY: LauncherTraits(per_node=True, runs_scripts=True, options=_RAY, needs=("ray",)),
    Launcher.NONE: LauncherTraits(per_node=True),
}


def parted(launcher: Launcher, program: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options of the launcher before the program, and the program.

    Raises:
        ConfigError: an option is clusterctl's to set, or the program is missing.
    """
    options = TRAITS[launcher].options
    return ((), program) if options is None else options.parted(program)


@dataclass(frozen=True)
class NodesJob:
    """A job of a launcher that mpirun starts once a node.

    ``counts`` has the processes of each node, in the order of mpirun's ranks. ``options`` are the launcher's own that
    the user gives. ``address`` is where the nodes meet. ``rdzv_id`` tells torchrun's meeting apart from others.
    ``config`` is the user's file for accelerate. ``addresses`` are those of the nodes in the cluster's network, empty
    where one is not known. ``given``: the user says how many processes a node has. ``programs`` is the folder of the
    collection's programs on the nodes.
    """

    program: tuple[str, ...]
    counts: Mapping[str, int]
    address: str
    python: str
    options: tuple[str, ...] = ()
    has_gpus: bool = False
    rdzv_id: str = ""
    config: AccelerateConfig | None = None
    addresses: tuple[str, ...] = ()
    given: bool = False
    programs: str = ""


@dataclass(frozen=True)
class StartWords:
    """What mpirun starts: the last ``literal`` tokens are the user's. ``exported`` are more values of ``-x``."""

    tokens: tuple[str, ...]
    literal: int
    port: bool = True
    exported: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def on_nodes(launcher: Launcher, job: NodesJob) -> StartWords:
    """Return what mpirun starts on each node."""
    if launcher is Launcher.TORCHRUN:
        return _torchrun(job)
    if launcher is Launcher.ACCELERATE:
        return _accelerate(job)
    if launcher is Launcher.DEEPSPEED:
        return _deepspeed(job)
    return _ray(job) if launcher is Launcher.RAY else _none(job)


def _torchrun(job: NodesJob) -> StartWords:
    several = len(job.counts) > 1
    spec = torchrun.Torchrun(
        nnodes=len(job.counts),
        nproc_per_node=next(iter(job.counts.values())),
        program=job.program,
        master_addr=job.address if several else "",
        master_port=torchrun.DEFAULT_PORT,
        rdzv_id=job.rdzv_id,
        python=job.python,
    )
    tokens = torchrun.under_mpirun(spec, tuple(job.counts.values()))
    literal = len(tokens) - tokens.index("--") - 1
    default = f"--master-port={torchrun.DEFAULT_PORT}"
    ours = [f"--master-port={PORT}" if word == default else word for word in tokens[: len(tokens) - literal]]
    return StartWords((*ours, *tokens[len(tokens) - literal :]), literal, port=several)


# The text is constant. The values come to it by position, first the interpreter.
def _of_module(module: str, rank_option: str) -> tuple[str, ...]:
    return ("sh", "-c", f'exec "$0" -m {module} {rank_option}="$OMPI_COMM_WORLD_RANK" "$@"')


def _accelerate(job: NodesJob) -> StartWords:
    facts = accelerate.RunFacts(tuple(job.counts.values()), job.address, PORT)
    ours = accelerate.words(facts, job.options, job.config)
    theirs = (*job.options, *_program_words(job))
    tokens = (*_of_module("accelerate.commands.launch", "--machine_rank"), job.python, *ours, *theirs)
    # Accelerator() takes the processes of CPUs for one job by this variable alone.
    exported = () if job.has_gpus else ("ACCELERATE_USE_CPU=true",)
    return StartWords(tokens, len(theirs), exported=exported, notes=accelerate.notes(facts, job.config))


def _deepspeed(job: NodesJob) -> StartWords:
    world = {name: list(range(count)) for name, count in job.counts.items()}
    theirs = (*job.options, *_program_words(job))
    tokens = (
        *_of_module("deepspeed.launcher.launch", "--node_rank"),
        job.python,
        f"--world_info={base64.urlsafe_b64encode(json.dumps(world).encode()).decode()}",
        f"--master_addr={job.address}",
        f"--master_port={PORT}",
        *theirs,
    )
    return StartWords(tokens, len(theirs))


def _program_words(job: NodesJob) -> tuple[str, ...]:
    """Return the program as accelerate and DeepSpeed take it."""
    if own_options.NO_PYTHON & set(job.options):
        return job.program
    kind, words = torchrun.kind(job.program, job.python)
    return (*{"script": (), "module": ("--module",), "command": ("--no_python",)}[kind], *words)


# The program is no rank of MPI: what mpirun tells its own ranks goes, so that no library takes it for one. The text is
# constant; the values come to it by position.
_OF_MPIRUN = r"OMPI_COMM_WORLD_[A-Z_]*\|OMPI_MCA_orte_[a-z_]*\|OMPI_MCA_ess_[a-z_]*\|PMIX_[A-Z0-9_]*"
_ALONE = (
    "NODE_RANK=$OMPI_COMM_WORLD_RANK NNODES=$1 WORLD_SIZE=$2 MASTER_ADDR=$3 MASTER_PORT=$4 _counts=$5; shift 5; "
    '_at=0; IFS=,; for _one in $_counts; do [ "$_at" != "$NODE_RANK" ] || NPROC_PER_NODE=$_one; _at=$((_at + 1)); '
    "done; unset IFS; export NODE_RANK NNODES WORLD_SIZE MASTER_ADDR MASTER_PORT NPROC_PER_NODE; "
    f"for _one in $(env | sed -n 's/^\\({_OF_MPIRUN}\\)=.*/\\1/p'); do unset \"$_one\"; done; " + 'exec "$@"'
)


def _none(job: NodesJob) -> StartWords:
    counts = list(job.counts.values())
    values = (str(len(counts)), str(sum(counts)), job.address, PORT, ",".join(map(str, counts)))
    return StartWords(("sh", "-c", _ALONE, "sh", *values, *job.program), len(job.program))


# --- Ray: a cluster of the job's own, which ``ray_node.py`` of the role validation starts and ends --------------------

RAY_SECRET = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")  # without them, everybody who reaches a node may give it work


def _ray(job: NodesJob) -> StartWords:
    counts_cpus = job.given or not job.has_gpus  # beside GPUs the slots are those, and Ray counts the cores
    ours = (
        *(job.python, f"{job.programs}/ray_node.py"),
        *([f"--addresses={','.join(job.addresses)}"] if job.addresses else []),
        *(["--count-cpus"] if counts_cpus else []),
    )
    is_script = job.program[0] == "-m" or job.program[0].endswith(".py")
    theirs = (*job.options, "--", *((job.python, "-u") if is_script else ()), *job.program)
    alone = _none(replace(job, program=(*ours, *theirs)))
    return replace(alone, literal=len(theirs), exported=RAY_SECRET if job.rdzv_id else ())


# --- JAX: ranks of mpirun that jax.distributed.initialize() finds without arguments -----------------------------------
#
# initialize() reads JAX_COORDINATOR_ADDRESS and JAX_LOCAL_DEVICE_IDS. It has no variables for the number of processes
# and for the process's own: these come from a cluster that it knows (jax/_src/clusters). It knows Open MPI by
# OMPI_MCA_orte_hnp_uri, which 5.0 does not set, and reads OMPI_COMM_WORLD_SIZE, _RANK and _LOCAL_RANK, which both set.
# By default a process sees the one device of its local rank.

_AS_JAX = (
    'JAX_COORDINATOR_ADDRESS=$1 _own=$2; shift 2; : "${OMPI_MCA_orte_hnp_uri=-}"; '
    "export JAX_COORDINATOR_ADDRESS OMPI_MCA_orte_hnp_uri; "
    '_at=0; _mine=; IFS=/; for _one in $_own; do [ "$_at" != "$OMPI_COMM_WORLD_RANK" ] || _mine=$_one; '
    '_at=$((_at + 1)); done; unset IFS; [ -z "${_mine#-}" ] || { : "${JAX_LOCAL_DEVICE_IDS=$_mine}"; '
    'export JAX_LOCAL_DEVICE_IDS; }; exec "$@"'
)


def jax_counts(nodes: Mapping[str, NodeFacts], slots: Mapping[str, int], processes: int | None) -> dict[str, int]:
    """Return the processes of JAX on each node.

    The default is one for every slot of a node with GPUs. A node without GPUs gets one, which uses all its cores.
    """
    own = {name: slots[name] if gpu_devices(nodes[name]) else 1 for name in slots}
    return own if processes is None else dict.fromkeys(slots, processes)


def before_jax(nodes: Mapping[str, NodeFacts], hosts: Sequence[str], address: str) -> tuple[str, ...]:
    """Return what stands before a program of mpirun so that ``jax.distributed.initialize()`` needs no arguments.

    The processes meet at ``address``, that of the first node.
    """
    place = f"[{address}]" if ":" in address else address
    return ("sh", "-c", _AS_JAX, "sh", f"{place}:{PORT}", "/".join(_jax_devices(nodes, hosts)))


def _jax_devices(nodes: Mapping[str, NodeFacts], hosts: Sequence[str]) -> list[str]:
    """Return the numbers of the devices that each rank uses, ``-`` where JAX's default is right."""
    counts, seen = Counter(hosts), Counter[str]()
    found = []
    for host in hosts:
        local, count, gpus = seen[host], counts[host], len(gpu_devices(nodes[host]))
        seen[host] += 1
        if affinity.has_instances([nodes[host]]):
            found.append("0")  # each rank sees its own instance alone
        elif gpus in {0, count}:
            found.append("-")
        elif count < gpus:
            found.append(",".join(map(str, range(local * gpus // count, (local + 1) * gpus // count))))
        else:
            found.append(str(local % gpus))
    return found
