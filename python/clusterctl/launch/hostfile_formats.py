"""The nodes of a cluster in the words of other launchers: a hostfile, or the options of torchrun for each node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launch import torchrun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class HostfileNode:
    """A node: its name as the other nodes know it, its address in the cluster's network ('' if unknown), its slots."""

    name: str
    address: str
    slots: int


def _with_slots(nodes: Sequence[HostfileNode]) -> str:
    return "".join(f"{node.name} slots={node.slots}\n" for node in nodes)


def _mpich(nodes: Sequence[HostfileNode]) -> str:
    return "".join(f"{node.name}:{node.slots}\n" for node in nodes)


def _pdsh(nodes: Sequence[HostfileNode]) -> str:
    return "".join(f"{node.name}\n" for node in nodes)


def _torchrun(nodes: Sequence[HostfileNode]) -> str:
    first = nodes[0].address or nodes[0].name
    return "".join(
        f"{node.name} --nnodes={len(nodes)} --nproc-per-node={node.slots} --node-rank={rank} --master-addr={first} "
        f"--master-port={torchrun.DEFAULT_PORT}\n"
        for rank, node in enumerate(nodes)
    )


def _json(nodes: Sequence[HostfileNode]) -> str:
    hosts = [{"name": node.name, "address": node.address, "slots": node.slots} for node in nodes]
    return json.dumps({"hosts": hosts}, indent=1) + "\n"


FORMATS: dict[str, Callable[[Sequence[HostfileNode]], str]] = {
    "openmpi": _with_slots,
    "mpich": _mpich,
    "deepspeed": _with_slots,  # the same words
    "pdsh": _pdsh,
    "torchrun": _torchrun,
    "json": _json,
}
