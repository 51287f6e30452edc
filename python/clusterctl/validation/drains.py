"""Tell Slurm what a validation found: drain nodes that failed, and take back own drains of nodes that are proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import drains
from clusterctl.model.drains import SlurmState
from clusterctl.support.errors import ValidationCouldNotRunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.drains import DrainOptions
    from clusterctl.model.hosts import Host
    from clusterctl.model.results import ValidationRecord
    from clusterctl.remote.slurm import Slurm
    from clusterctl.remote.slurm_text import SlurmNode


def tell(slurm: Slurm, hosts: Sequence[Host], record: ValidationRecord, wish: DrainOptions) -> tuple[str, ...]:
    """Tell Slurm, and return a note for everything that was done or left; a refusal of Slurm is a note as well."""
    try:
        found = slurm.every_node()
    except ValidationCouldNotRunError as error:
        return (f"Slurm was not told of this run: {error}",)
    names, nodes = slurm_names(hosts, found), {node.name: node for node in found}
    states = {host: SlurmState(nodes[name].state, nodes[name].reason) for host, name in names.items()}
    decided = drains.decide(record, states, wish)
    done: dict[str, str] = {}
    resumed: list[str] = []
    refused: list[str] = []
    for host, why in decided.drain.items():
        try:
            slurm.drain(names[host], why)
            done[host] = why
        except ValidationCouldNotRunError as error:
            refused.append(f"{host} was not drained: {error}")
    for host in decided.resume:
        try:
            slurm.resume(names[host])
            resumed.append(host)
        except ValidationCouldNotRunError as error:
            refused.append(f"{host} stays drained: {error}")
    return (*drains.words_of(done, resumed), *decided.notes, *refused)


def slurm_names(hosts: Sequence[Host], found: Sequence[SlurmNode]) -> Mapping[str, str]:
    """Return the NodeName of each host that Slurm knows, by name, by the first part of the name, or by address."""
    by_name = {node.name: node for node in found}
    by_address = {node.address: node for node in found}
    pairs = {
        host.name: by_name.get(host.name) or by_name.get(host.name.partition(".")[0]) or by_address.get(host.address)
        for host in hosts
    }
    return {host: node.name for host, node in pairs.items() if node is not None}
