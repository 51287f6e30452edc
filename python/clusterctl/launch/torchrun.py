"""The torchrun line of one node: PyTorch's own launcher, which starts that node's workers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.model.layout import DEFAULT_LAYOUT
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_PORT = 29500  # PyTorch's own
_MAX_PORT = 65535
ADDRESS = re.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9.:_%-]{0,252})")
_RENDEZVOUS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PYTHON_WORD = re.compile(r"python3?")  # any other is somebody's own choice


@dataclass(frozen=True)
class Torchrun:
    """What torchrun is to start on one node.

    With ``node_rank`` the places are given from outside (static rendezvous: node 0 listens at ``master_addr`` and
    ``master_port``); without it the nodes agree on them at the same place (c10d, told apart from other jobs by
    ``rdzv_id``). A single node without an address agrees with itself. ``program`` is a script (``train.py …``), a
    module (``-m package.train …``), either with ``python`` before it, or any other command.
    """

    nnodes: int
    nproc_per_node: int
    program: tuple[str, ...]
    node_rank: int | None = None
    master_addr: str = ""
    master_port: int = 0
    rdzv_id: str = ""
    python: str = DEFAULT_LAYOUT.python


def argv(spec: Torchrun) -> list[str]:
    """Return the tokens of the torchrun line.

    Raises:
        ConfigError: a number or a name is not valid, the program is missing, or several nodes have no place to meet.
    """
    _refuse(spec)
    line = [spec.python, "-m", "torch.distributed.run", f"--nnodes={spec.nnodes}"]
    line += [f"--nproc-per-node={spec.nproc_per_node}"]
    if spec.node_rank is not None:
        line += [f"--node-rank={spec.node_rank}"]
    if not spec.master_addr:
        return [*line, "--standalone", *_program(spec)]
    if spec.node_rank is not None:
        return [*line, f"--master-addr={spec.master_addr}", f"--master-port={spec.master_port}", *_program(spec)]
    place = f"[{spec.master_addr}]" if ":" in spec.master_addr else spec.master_addr
    line += ["--rdzv-backend=c10d", f"--rdzv-endpoint={place}:{spec.master_port}"]
    return [*line, f"--rdzv-id={spec.rdzv_id or 'none'}", *_program(spec)]


# What stands between mpirun and torchrun on a node: mpirun's rank is the node's. The text is constant.
# The values come to it by position, first the interpreter and the numbers of processes by node.
_ON_NODE = (
    "python=$1 processes=$2; shift 2; rank=0; IFS=,; "
    'for count in $processes; do [ "$rank" = "$OMPI_COMM_WORLD_RANK" ] && break; rank=$((rank + 1)); done; '
    'exec "$python" -m torch.distributed.run --node-rank="$OMPI_COMM_WORLD_RANK" --nproc-per-node="$count" "$@"'
)
_ON_LIKE_NODES = 'exec "$0" -m torch.distributed.run --node-rank="$OMPI_COMM_WORLD_RANK" "$@"'


def under_mpirun(spec: Torchrun, processes: Sequence[int]) -> list[str]:
    """Return what mpirun is to start once a node, so that each becomes the torchrun of its place.

    ``node_rank`` and ``nproc_per_node`` of the line are replaced. ``processes`` says how many each node is to start, in
    the order of mpirun's ranks.
    """
    first = argv(replace(spec, node_rank=0, nproc_per_node=processes[0]))
    head = [spec.python, "-m", "torch.distributed.run"]
    rest = first[len(head) :]
    rest.remove("--node-rank=0")  # the first of that name is ours; the program's words come last
    if len(set(processes)) == 1:
        return ["sh", "-c", _ON_LIKE_NODES, spec.python, *rest]
    rest.remove(f"--nproc-per-node={processes[0]}")
    return ["sh", "-c", _ON_NODE, "sh", spec.python, ",".join(str(count) for count in processes), *rest]


def script(program: Sequence[str]) -> str:
    """Return the Python script that the program's words name, empty where they name none."""
    words = program[1:] if program and _PYTHON_WORD.fullmatch(program[0].rpartition("/")[2]) else program
    first = next((word for word in words if not word.startswith("-")), "")
    return first if first.endswith(".py") and "-m" not in words[: words.index(first)] else ""


def kind(program: Sequence[str], python: str) -> tuple[str, tuple[str, ...]]:
    """Return what a launcher that brings the Python is to start: ``script``, ``module`` or ``command``, and its words.

    The program is a script, a module (``-m``), either with ``python`` before it, or a command.
    """
    words = tuple(program)
    with_python = bool(_PYTHON_WORD.fullmatch(words[0]))
    if with_python and len(words) > 1:
        words = words[1:]
    if words[0] == "-m" and len(words) > 1:
        return "module", words[1:]
    if words[0].endswith(".py"):
        return "script", words
    return "command", ((python, *program[1:]) if with_python else tuple(program))


def _program(spec: Torchrun) -> list[str]:
    """Return the program behind ``--``, without which torchrun takes options of the program's for its own."""
    what, words = kind(spec.program, spec.python)
    return [*{"script": (), "module": ("--module",), "command": ("--no-python",)}[what], "--", *words]


def _refuse(spec: Torchrun) -> None:
    if not spec.program or not spec.program[0]:
        raise ConfigError("torchrun has no program to start; name it behind '--'.")
    if spec.program[0].startswith("-") and spec.program[0] != "-m":
        raise ConfigError(f"The program {spec.program[0]!r} is an option; name a script, a module (-m) or a command.")
    if spec.nnodes < 1 or spec.nproc_per_node < 1:
        raise ConfigError(
            f"torchrun needs one node and one process at least, not {spec.nnodes} and {spec.nproc_per_node}."
        )
    if spec.node_rank is not None and not 0 <= spec.node_rank < spec.nnodes:
        raise ConfigError(f"Node rank {spec.node_rank} does not exist; the ranks of {spec.nnodes} nodes begin with 0.")
    if spec.rdzv_id and not _RENDEZVOUS.fullmatch(spec.rdzv_id):
        raise ConfigError(
            f"The rendezvous id {spec.rdzv_id!r} is not a valid name; use letters, digits, '.', '-' and '_' only."
        )
    if not spec.master_addr:
        if spec.nnodes > 1:
            raise ConfigError(f"{spec.nnodes} nodes need a place to meet; give torchrun an address and a port.")
        return
    if not ADDRESS.fullmatch(spec.master_addr):
        raise ConfigError(f"The rendezvous address {spec.master_addr!r} is neither a name nor an address.")
    if not 0 < spec.master_port <= _MAX_PORT:
        raise ConfigError(
            f"The rendezvous port {spec.master_port} is not valid; a port is a number from 1 to {_MAX_PORT}."
        )
