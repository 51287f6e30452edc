"""CUDA_VISIBLE_DEVICES of each rank on nodes whose GPUs are cut into MIG instances.

A CUDA program sees the first MIG instance that the variable names, and no other (CUDA C++ Programming Guide, "CUDA
Environment Variables"). So each rank gets the name of its own. A choice of the scheduler or the user stays; of several
instances in it, each rank of a node keeps one.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from clusterctl.launch import mig_worker
from clusterctl.model.rank_slots import gpu_devices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.facts import NodeFacts

_NO_CHOICE = "-"
_NAME = re.compile(r"(?:MIG|GPU)-[A-Za-z0-9/-]+")
# The texts are constant. The values come to them by position: the names of the devices by mpirun's rank.
_FROM_TABLE = (
    "_own=$1; shift; _at=0; IFS=:; for _one in $_own; do "
    f'if [ "$_at" = "$OMPI_COMM_WORLD_RANK" ] && [ "$_one" != {_NO_CHOICE} ]; then '
    ': "${CUDA_VISIBLE_DEVICES=$_one}"; export CUDA_VISIBLE_DEVICES; fi; _at=$((_at + 1)); done; unset IFS; '
)
_OF_NODE = _FROM_TABLE + mig_worker.START
_OF_RANK = _FROM_TABLE + mig_worker.one_of_visible("OMPI_COMM_WORLD_LOCAL_RANK") + mig_worker.START


def has_instances(nodes: Sequence[NodeFacts]) -> bool:
    """Whether a GPU of any node that jobs can use is cut into MIG instances."""
    return any(gpu.instances for node in nodes for gpu in node.gpus if gpu.usable)


def of_ranks(
    nodes: Mapping[str, NodeFacts], slots: Mapping[str, int], hosts: Sequence[str], *, per_node: bool = False
) -> tuple[str, ...]:
    """Return what stands before a program of mpirun so that each rank sees its own instance; empty without MIG.

    Args:
        nodes: the facts of each node.
        slots: the ranks of each node, in mpirun's order.
        hosts: the node of each rank.
        per_node: each node has one process, which gets all instances of the node.
    """
    if not has_instances([nodes[name] for name in slots]):
        return ()
    own = {name: _devices(nodes[name]) for name in slots}
    if per_node:
        entries = [",".join(devices) or _NO_CHOICE for devices in own.values()]
    else:
        turns = {name: itertools.cycle(devices or (_NO_CHOICE,)) for name, devices in own.items()}
        entries = [next(turns[name]) for name in hosts]
    return ("/bin/sh", "-c", _OF_NODE if per_node else _OF_RANK, "sh", ":".join(entries))


def _devices(node: NodeFacts) -> tuple[str, ...]:
    """Return the names that the ranks of a node choose from, none where its GPUs are whole."""
    devices = gpu_devices(node) if has_instances([node]) else ()
    return devices if all(_NAME.fullmatch(one) for one in devices) else ()
