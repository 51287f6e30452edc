"""The path that a job takes: transport, binding, and the cores and ports of its ranks.

``run``, ``validate``, horovodrun's line and srun's line all ask :func:`decide`. A validation that passes therefore
proves the path that a run with the same options takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launch import affinity, hostfile, mig_choice, mpirun
from clusterctl.launch.mpirun import Bind, MapBy
from clusterctl.launch.path_options import NO_PATH_OPTIONS, Affinity, PathOptions, Transport
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.launch.member import Member

_MOST_NAMED = 6


@dataclass(frozen=True)
class JobPath:
    """What was decided.

    ``mca`` are the parameters of the transport, ``before`` the words before the program of each rank, ``hosts`` the
    node of each rank. ``of_workers``: workers of torchrun take their places themselves. ``notes`` are for the user.
    """

    mca: Mapping[str, str]
    bind: Bind
    map_by: MapBy
    before: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    of_workers: bool = False
    notes: tuple[str, ...] = field(default=())


def decide(
    members: Mapping[str, Member],
    slots: Mapping[str, int],
    wish: PathOptions = NO_PATH_OPTIONS,
    *,
    per_node: bool = False,
    workers: Mapping[str, int] | None = None,
) -> JobPath:
    """Decide the path of a job.

    Args:
        members: the nodes by their names in the inventory.
        slots: the ranks of each node that takes part, in the order of the ranks.
        wish: what the user asks for.
        per_node: each node has one process, which starts its ranks itself.
        workers: then, the ranks that it starts; by default its slots.

    Raises:
        ConfigError: it cannot be done; the sentence says what to do.
    """
    here = {name: members[name] for name in slots}
    first = next(iter(here.values()))
    ucx = takes_ucx(here, wish.network)
    facts = {name: one.facts for name, one in here.items()}
    hosts = tuple(slots) if per_node else placement(slots, wish.map_by)
    before = mig_choice.of_ranks(facts, slots, hosts, per_node=per_node)
    notes: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    if wish.affinity is Affinity.AUTO:
        if (wish.bind, wish.map_by) != (Bind.NONE, MapBy.SLOT):
            raise ConfigError("--affinity auto places each rank by itself; leave out --bind-to and --map-by.")
        placed = affinity.places(facts, slots if workers is None else workers)
        bound = affinity.before_nodes(placed) if per_node else affinity.before_ranks(placed, ports=ucx)
        notes = affinity.notes(placed, ports=ucx and not per_node)
    return JobPath(
        mca=mpirun.transport(mpirun.dialect(first.version), ucx=ucx),
        bind=wish.bind,
        map_by=wish.map_by,
        before=(*bound, *before),
        hosts=hosts,
        of_workers=per_node and bool(bound),
        notes=notes,
    )


def placement(slots: Mapping[str, int], map_by: MapBy) -> tuple[str, ...]:
    """Return the node of each rank: node by node, or in turn where ``map_by`` is node."""
    if map_by is not MapBy.NODE:
        return hostfile.placement(slots)
    turns = range(max(slots.values(), default=0))
    return tuple(name for turn in turns for name, count in slots.items() if turn < count)


def takes_ucx(members: Mapping[str, Member], network: Transport) -> bool:
    """Whether MPI goes over UCX: on request, or where every node has it and an RDMA port that is up.

    Raises:
        ConfigError: UCX is asked for, and a node lacks it.
    """
    without = [name for name, one in members.items() if not one.has_ucx]
    if network is Transport.UCX and without:
        raise ConfigError(
            f"Open MPI on {', '.join(without[:_MOST_NAMED])} was built without UCX; install UCX there and run "
            "'clusterctl provision' again, or use --network tcp."
        )
    if network is not Transport.AUTO:
        return network is Transport.UCX
    return not without and all(_has_rdma(one) for one in members.values())


def _has_rdma(member: Member) -> bool:
    return any(port.state == "ACTIVE" for device in member.facts.rdma for port in device.ports)
