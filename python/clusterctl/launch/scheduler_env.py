"""Which node of a job this process is, by the variables that its scheduler has set.

Three kinds of schedulers are understood. Run:AI and Kubeflow set ``WORLD_SIZE``, ``RANK``, ``MASTER_ADDR`` and
``MASTER_PORT`` in every pod (and ``PET_*``, torchrun's own names for the same); here they count pods, for processes
exist only once torchrun has started them. Slurm sets ``SLURM_*`` in every task, mpirun ``OMPI_COMM_WORLD_*`` in every
rank. Where several of them speak of the same thing they have to agree.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launch.torchrun import ADDRESS, DEFAULT_PORT
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.hosts import Host

_MOST_NAMED = 4

_MPI = "OMPI_COMM_WORLD_"
_POD_VARIABLES = ("WORLD_SIZE", "RANK", "PET_NNODES", "PET_NODE_RANK")
_SLURM_VARIABLES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_JOBID")
# Ports that no client gets by chance: Linux hands out 32768 and above.
_FIRST_PORT, _PORTS = 20000, 10000
_STEPS_APART = 97
_MAX_STEP = 1 << 31  # Slurm's own steps (batch, extern, interactive) have numbers above


@dataclass(frozen=True)
class RankPlace:
    """Which of how many nodes this is, and where they meet; a single node may have no address to meet at."""

    nodes: int
    rank: int
    master_addr: str
    master_port: int
    master_said_by: str
    notes: tuple[str, ...] = ()


def nodelist(environment: Mapping[str, str]) -> str:
    """Return Slurm's list of the step's or else the job's nodes, folded as Slurm writes it, or ''."""
    return next(filter(None, (environment.get(name) for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))), "")


def refuse_outside(environment: Mapping[str, str], hosts: Sequence[Host]) -> None:
    """Refuse hosts beside the allocation of Slurm that this process is in; by ssh a job would run on them past Slurm.

    Hosts none of which is in the allocation are another cluster's, and free.

    Raises:
        ConfigError: some are in the allocation, and some are not.
    """
    folded = nodelist(environment)
    names = frozenset(unfolded(folded))
    outside = [host.name for host in hosts if not names & {host.name, host.name.partition(".")[0], host.address}]
    if names and outside and len(outside) < len(hosts):
        job = environment.get("SLURM_JOB_ID", "")
        raise ConfigError(
            f"{and_more(outside, _MOST_NAMED)} of the inventory is outside of Slurm's job {job} ({folded}), in which "
            f"this shell runs; choose its nodes with --limit {folded}, or start the job in another shell."
        )


def place(
    environment: Mapping[str, str], hosts: Sequence[str] = (), *, master_addr: str = "", master_port: int = 0
) -> RankPlace:
    """Read from the scheduler's variables which node this is.

    ``hosts`` are the names that :func:`nodelist` folds. ``master_addr`` and ``master_port`` stand above what the
    variables say.

    Raises:
        ConfigError: a variable is missing or none, two contradict each other, or the scheduler starts more than one
            process on a node.
    """
    _refuse_several(environment)
    nodes_said = _node_claims(environment, hosts)
    nodes = _agreed(nodes_said, "number of nodes", _missing("WORLD_SIZE", environment))
    ranks_said = _rank_claims(environment)
    rank = _agreed(ranks_said, "rank of this node", _missing("RANK", environment))
    if nodes < 1 or not 0 <= rank < nodes:
        raise ConfigError(
            f"{_first(ranks_said)} is not a place among {nodes} nodes ({_first(nodes_said)}); nodes are counted from 0."
        )
    address, by = _master(environment, hosts, master_addr, nodes)
    if address and not ADDRESS.fullmatch(address):
        raise ConfigError(f"{by} is {address!r}, which is neither a name nor an address.")
    port, port_note = _port(environment, master_port) if address else (0, "")
    notes = [port_note, _unlaunched(environment, nodes)]
    return RankPlace(nodes, rank, address, port, by, tuple(note for note in notes if note))


@dataclass(frozen=True)
class _Claim:
    """What one variable says."""

    name: str
    value: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.text or self.value}"


def _claims(environment: Mapping[str, str], *names: str) -> list[_Claim]:
    return [_Claim(name, _whole(name, environment[name])) for name in names if environment.get(name, "") != ""]


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{name}={text!r} is not a whole number.")
    return int(text)


def _by_mpirun(environment: Mapping[str, str]) -> bool:
    return any(name.startswith(_MPI) for name in environment)


def _node_claims(environment: Mapping[str, str], hosts: Sequence[str]) -> list[_Claim]:
    elastic = environment.get("PET_NNODES", "")
    if ":" in elastic:
        raise ConfigError(
            f"PET_NNODES={elastic} asks for an elastic job, whose size is not known beforehand; start it with torchrun "
            "itself, which reads PET_*, or submit it without an elastic policy."
        )
    found = _claims(environment, "PET_NNODES")
    each = environment.get("PET_NPROC_PER_NODE", "")
    for claim in _claims(environment, "WORLD_SIZE"):
        # Kubeflow's newer operators multiply it by the processes that the job itself asks for.
        counts_processes = bool(found) and each.isdigit() and claim.value == found[0].value * int(each)
        found = found if counts_processes else [claim, *found]
    if _by_mpirun(environment):
        return [*found, *_claims(environment, f"{_MPI}SIZE")]
    found += _claims(environment, "SLURM_STEP_NUM_NODES") or _claims(environment, "SLURM_NNODES")
    if hosts:
        name = next(name for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environment.get(name))
        listed = _Claim(name, len(hosts), f"{environment[name]} ({len(hosts)} hosts)")
        found.append(listed)
    return found


def _rank_claims(environment: Mapping[str, str]) -> list[_Claim]:
    # Under mpirun Slurm's numbers are those of mpirun's own daemons.
    last = f"{_MPI}RANK" if _by_mpirun(environment) else "SLURM_NODEID"
    return _claims(environment, "RANK", "PET_NODE_RANK", last)


def _first(claims: Sequence[_Claim]) -> str:
    return str(claims[0])


def _agreed(claims: Sequence[_Claim], what: str, missing: str) -> int:
    if not claims:
        raise ConfigError(missing)
    other = next((claim for claim in claims if claim.value != claims[0].value), None)
    if other is None:
        return claims[0].value
    hint = " (WORLD_SIZE counts nodes here, not processes)" if "WORLD_SIZE" in {claims[0].name, other.name} else ""
    raise ConfigError(f"{claims[0]} and {other} contradict each other about the {what}; unset the wrong one{hint}.")


def _missing(wanted: str, environment: Mapping[str, str]) -> str:
    """Return the sentence about a variable that is not there, with those of its kind that are."""
    kinds = {
        "WORLD_SIZE": ("WORLD_SIZE", "SLURM_NNODES", f"{_MPI}SIZE"),
        "RANK": ("RANK", "SLURM_NODEID", f"{_MPI}RANK"),
    }[wanted]
    pods, slurm, mpi = kinds
    if _by_mpirun(environment):
        name = mpi
    elif any(environment.get(known) for known in _POD_VARIABLES):
        name = pods
    elif any(environment.get(known) for known in _SLURM_VARIABLES):
        name = slurm
    elif environment.get("MASTER_ADDR"):
        name = pods
    else:
        return (
            "None of WORLD_SIZE, SLURM_NNODES and OMPI_COMM_WORLD_SIZE is set, so no scheduler has started this; on "
            "machines that answer ssh use 'clusterctl run', on a single pod set WORLD_SIZE=1 and RANK=0."
        )
    subject = "how many nodes there are" if wanted == "WORLD_SIZE" else "which of the nodes this is"
    return f"{name} is not set, so nothing says {subject}{_beside(environment)}; the scheduler has to set it."


def _beside(environment: Mapping[str, str]) -> str:
    names = (*_POD_VARIABLES, "MASTER_ADDR", "MASTER_PORT", *_SLURM_VARIABLES, f"{_MPI}SIZE", f"{_MPI}RANK")
    there = [f"{name}={environment[name]}" for name in names if environment.get(name)]
    return f" ({', '.join(there)})" if there else ""


def _refuse_several(environment: Mapping[str, str]) -> None:
    """Raise where the scheduler starts more than one process on this node, each of which would become a torchrun."""
    if _by_mpirun(environment):
        for claim in _claims(environment, f"{_MPI}LOCAL_SIZE"):
            if claim.value > 1:
                raise ConfigError(
                    f"mpirun starts {claim.value} processes on this node ({claim}), and torchrun starts its own; "
                    "launch one a node with 'mpirun --map-by ppr:1:node'."
                )
        return
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    local = environment.get("SLURM_LOCALID", "0")
    crowded = f"SLURM_STEP_TASKS_PER_NODE={tasks}" if tasks.split("(")[0].split(",")[0] not in {"", "1"} else ""
    crowded = crowded or (f"SLURM_LOCALID={local}" if local not in {"", "0"} else "")
    if crowded:
        raise ConfigError(
            f"srun starts more than one task on this node ({crowded}), and torchrun starts its own processes; use "
            "'srun --ntasks-per-node=1'."
        )


def _unlaunched(environment: Mapping[str, str], nodes: int) -> str:
    """Return a warning where a batch script runs on its first node alone and does not start the others."""
    in_job = environment.get("SLURM_JOB_ID") and not _by_mpirun(environment)
    if not in_job or nodes == 1 or environment.get("SLURM_STEP_ID") or environment.get("RANK"):
        return ""
    return f"SLURM_STEP_ID is not set: only srun starts this on all {nodes} nodes, a batch script runs on the first"


def _master(environment: Mapping[str, str], hosts: Sequence[str], given: str, nodes: int) -> tuple[str, str]:
    if given:
        return given, "--master-addr"
    said = [name for name in ("MASTER_ADDR", "PET_MASTER_ADDR") if environment.get(name)]
    if len({environment[name] for name in said}) > 1:
        both = " and ".join(f"{name}={environment[name]}" for name in said)
        raise ConfigError(f"{both} contradict each other about where node 0 is; unset the wrong one.")
    if said:
        return environment[said[0]], said[0]
    if hosts:
        return hosts[0], "the first host of Slurm's list"
    if nodes == 1:
        return "", ""
    if _by_mpirun(environment):
        raise ConfigError(
            "MASTER_ADDR is not set, and mpirun does not tell its ranks where the first of them is; give it with "
            "'mpirun -x MASTER_ADDR=HOST' or --master-addr."
        )
    raise ConfigError(
        f"MASTER_ADDR is not set, so nothing says where node 0 is{_beside(environment)}; the scheduler has to set it, "
        "or give --master-addr."
    )


def _port(environment: Mapping[str, str], given: int) -> tuple[int, str]:
    """Return the port to meet at and, where it was not given, how it was found."""
    if given:
        return given, ""
    claims = _claims(environment, "MASTER_PORT", "PET_MASTER_PORT")
    if claims:
        return _agreed(claims, "port", ""), ""
    for job in _claims(environment, "SLURM_JOB_ID") or _claims(environment, "SLURM_JOBID"):
        step = next((claim.value for claim in _claims(environment, "SLURM_STEP_ID") if claim.value < _MAX_STEP), 0)
        port = _FIRST_PORT + (job.value + _STEPS_APART * step) % _PORTS
        return port, f"port {port} follows from {job}; set MASTER_PORT for another"
    if _by_mpirun(environment):
        return DEFAULT_PORT, f"MASTER_PORT is not set: torchrun's own port {DEFAULT_PORT} it is"
    raise ConfigError(
        f"MASTER_PORT is not set, so nothing says at which port node 0 listens{_beside(environment)}; the scheduler "
        "has to set it, or give --master-port."
    )


# --- Slurm's folded list of nodes: ``node[01-03,7],gpu1`` into names, in the list's own order -------------------------
#
# Slurm counts nodes in that order, and a NodeSet would sort them. The standard library suffices, so that a pod needs
# no further package.

_PIECE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]|\[[0-9,-]+\])*")
_PART = re.compile(r"\[([0-9,-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST = 100_000  # ten times the nodes of the largest machines


def unfolded(nodelist: str) -> tuple[str, ...]:
    """Return the names in Slurm's list, in its order; nothing for an empty list.

    Raises:
        ConfigError: the text is not such a list, or names more nodes than any machine has.
    """
    if not nodelist:
        return ()
    pieces = _PIECE.findall(nodelist)
    if ",".join(pieces) != nodelist:
        raise ConfigError(f"Slurm's list of nodes {nodelist!r} has more in it than names and ranges.")
    hosts: list[str] = []
    for piece in pieces:
        parts = [_numbers(ranges, nodelist) if ranges else [text] for ranges, text in _PART.findall(piece)]
        for words in itertools.product(*parts):
            hosts.append("".join(words))
            if len(hosts) > _MOST:
                raise _unreadable(nodelist, f"it names more than {_MOST} nodes")
    return tuple(hosts)


def _numbers(ranges: str, nodelist: str) -> list[str]:
    """Return the numbers of ``01-03,7`` as they are written; the width of a range is that of its start."""
    found: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise _unreadable(nodelist, f"{text!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _unreadable(nodelist, f"{text!r} ends before it begins")
        if int(last) - int(first) >= _MOST:
            raise _unreadable(nodelist, f"it names more than {_MOST} nodes")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        if len(found) > _MOST:
            raise _unreadable(nodelist, f"it names more than {_MOST} nodes")
    return found


def _unreadable(nodelist: str, why: str) -> ConfigError:
    shown = nodelist if len(nodelist) <= 200 else f"{nodelist[:200]}…"  # noqa: PLR2004 - one line of a terminal or two
    return ConfigError(f"Slurm's list of nodes {shown!r} cannot be read: {why}.")
