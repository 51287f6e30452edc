"""The mpirun line of a job on provisioned nodes; ``run`` and ``validate`` both launch with it.

A validation that passes therefore proves what a run launches: the same names, the same transport, the same options.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from clusterctl.launch import mpirun
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.facts import NodeFacts

_OPENMPI = "openmpi"
_MOST_NAMED = 6
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_NUMERIC = re.compile(r"[0-9.]+")
_LOCAL = "localhost"
# By default mpirun cuts a name at its first dot, and no node may know the rest by that name.
_WHOLE_NAMES = "orte_keep_fqdn_hostnames"


class Transport(str, Enum):
    """What MPI's messages go through; auto is UCX where every node can, else TCP."""

    AUTO = "auto"
    TCP = "tcp"
    UCX = "ucx"


@dataclass(frozen=True)
class Member:
    """A node of the job: its ranks, its Open MPI, and the user that runs the job, by default the one that logs in."""

    facts: NodeFacts
    slots: int
    version: str
    has_ucx: bool = False
    user: str = ""

    @property
    def job_user(self) -> str:
        """The user that runs the job on the node."""
        return self.user or self.facts.user.name


def member(node: NodeFacts, slots: int, user: str | None = None) -> Member:
    """Return a node of a job from its facts; ``user`` runs the job there, by default the user that logs in."""
    artifact = node.artifact(_OPENMPI)
    options = artifact.inputs.get("configure", ())
    return Member(
        facts=node,
        slots=slots,
        version=artifact.version,
        has_ucx=any(str(word).startswith("--with-ucx") for word in options),
        user=user or "",
    )


@dataclass(frozen=True)
class MpirunJob:
    """What mpirun is to start; the fields mean what they mean in :class:`mpirun.MpirunLaunch`.

    ``mca`` are parameters of the caller, which replace those of the transport.
    """

    program: tuple[str, ...]
    job: str = ""
    ranks: int | None = None
    per_node: bool = False
    exported: tuple[str, ...] = ()
    mca: Mapping[str, str] = field(default_factory=dict)
    network: Transport = Transport.AUTO
    oversubscribe: bool = False
    tagged: bool = False
    directory: str = ""


@dataclass(frozen=True)
class MpirunLine:
    """A line for the launch node, and what mpirun's environment has to hold."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def line(members: Mapping[str, Member], slots: Mapping[str, int], job: MpirunJob) -> MpirunLine:
    """Return the mpirun line of a job.

    Args:
        members: the nodes by their names in the inventory.
        slots: the ranks of each node that takes part, the launch node first.
        job: what is to be started.

    Raises:
        ConfigError: it cannot be done; the sentence says what to do.
    """
    here = {name: members[name] for name in slots}
    first = next(iter(here.values()))
    called = node_names({name: one.facts.hostname for name, one in here.items()})
    transport = mpirun.transport(mpirun.dialect(first.version), ucx=takes_ucx(here, job.network))
    chosen = any(name in job.mca for name in ("pml", "btl"))  # the caller's choice of one may not go with our other
    argv = mpirun.argv(
        mpirun.MpirunLaunch(
            version=first.version,
            slots={called[name]: count for name, count in slots.items()},
            program=job.program,
            job=job.job,
            ranks=job.ranks,
            per_node=job.per_node,
            exported=job.exported,
            mca={**({} if chosen else transport), **name_parameters(called), **job.mca},
            oversubscribe=job.oversubscribe,
            tagged=job.tagged,
            directory=job.directory,
        )
    )
    return MpirunLine(tuple(argv), mpirun.environment(first.version, first.job_user))


def node_names(hostnames: Mapping[str, str]) -> dict[str, str]:
    """Return the name by which mpirun gets each node: the node's own host name, where that tells it from the others.

    mpirun compares the names of its hosts with the host names that nodes report. It finds no slots under an address or
    an alias. Role ``hosts`` makes every node resolve the host name of every other node.

    Args:
        hostnames: the host name of each node, by its name in the inventory.
    """
    if all(_short(own) == name for name, own in hostnames.items() if "." in own):
        hostnames = {name: _short(own) for name, own in hostnames.items()}  # mpirun itself cuts names at the first dot
    owners = Counter(hostnames.values())
    return {
        name: own if owners[own] == 1 and _is_usable(own) and (own == name or own not in hostnames) else name
        for name, own in hostnames.items()
    }


def name_parameters(called: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that names need: mpirun keeps names with a domain whole."""
    return {_WHOLE_NAMES: "1"} if any("." in own and not _NUMERIC.fullmatch(own) for own in called.values()) else {}


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
    return not without and all(_has_rdma(one.facts) for one in members.values())


def _short(own: str) -> str:
    return own.partition(".")[0]


def _is_usable(own: str) -> bool:
    return bool(_HOST_NAME.fullmatch(own)) and not own.startswith(_LOCAL) and not _NUMERIC.fullmatch(own)


def _has_rdma(node: NodeFacts) -> bool:
    return any(port.state == "ACTIVE" for device in node.rdma for port in device.ports)
