"""The mpirun line of a job on provisioned nodes; ``run`` and ``validate`` both launch with it.

A validation that passes therefore proves what a run launches: the same names, the same transport, the same options.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launch import affinity, mpirun
from clusterctl.launch.mpirun import NO_PATH_OPTIONS, Affinity, Bind, MapBy, PathOptions, Transport
from clusterctl.model.job_login import is_csh
from clusterctl.model.nodeset import folded
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.facts import NodeFacts


# --- The path that a job takes: transport, binding, and the cores and ports of its ranks ------------------------------
#
# ``run``, ``validate``, horovodrun's line and srun's line all ask :func:`decide`. A validation that passes therefore
# proves the path that a run with the same options takes.

_MOST_NAMED, _MOST_DEVICES = 6, 4
UCX_CURE = "set openmpi_ucx to auto and run 'clusterctl provision' again, or use --network tcp where TCP is meant"


@dataclass(frozen=True)
class JobPath:
    """What was decided.

    ``mca`` are the parameters of the transport, ``before`` the words before the program of each rank, ``hosts`` the
    node of each rank. ``of_workers``: workers of torchrun take their places themselves. ``notes`` are for the user.
    ``unused_rdma`` says that MPI goes over TCP although every node has RDMA, and why; '' where it does not.
    """

    mca: Mapping[str, str]
    bind: Bind
    map_by: MapBy
    before: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    of_workers: bool = False
    notes: tuple[str, ...] = field(default=())
    unused_rdma: str = ""


def decide(
    members: Mapping[str, Member],
    slots: Mapping[str, int],
    wish: PathOptions = NO_PATH_OPTIONS,
    *,
    per_node: bool = False,
    workers: Mapping[str, int] | None = None,
) -> JobPath:
    """Decide the path of a job.

    ``slots`` has the ranks of each node that takes part, in their order. With ``per_node``, each node has one process,
    which starts its ranks itself: ``workers``, by default its slots.
    """
    here = {name: members[name] for name in slots}
    first = next(iter(here.values()))
    ucx, rdma = takes_ucx(here, wish.network), all(map(_has_rdma, here.values()))
    facts = {name: one.facts for name, one in here.items()}
    hosts = tuple(slots) if per_node else placement(slots, wish.map_by)
    before = affinity.of_ranks(facts, slots, hosts, per_node=per_node)
    unused = without_ucx(here) if wish.network is Transport.AUTO else ""
    notes: tuple[str, ...] = (f"{unused}; {UCX_CURE}.",) if unused else ()
    notes += tuple(f"{hosts}: the job runs with {openmpi}." for hosts, openmpi in of_others(facts))
    bound: tuple[str, ...] = ()
    if wish.affinity is Affinity.AUTO:
        if (wish.bind, wish.map_by) != (Bind.NONE, MapBy.SLOT):
            raise ConfigError("--affinity auto places each rank by itself; leave out --bind-to and --map-by.")
        placed = affinity.places(facts, slots if workers is None else workers)
        bound = affinity.before_nodes(placed) if per_node else affinity.before_ranks(placed, ports=ucx)
        notes += affinity.notes(placed, ports=ucx and not per_node)
    return JobPath(
        mca=mpirun.transport(mpirun.dialect(first.version), ucx=ucx, rdma=rdma),
        bind=wish.bind,
        map_by=wish.map_by,
        before=(*bound, *before),
        hosts=hosts,
        of_workers=per_node and bool(bound),
        notes=notes,
        unused_rdma=unused,
    )


def placement(slots: Mapping[str, int], map_by: MapBy) -> tuple[str, ...]:
    """Return the node of each rank: node by node, or in turn where ``map_by`` is node."""
    if map_by is not MapBy.NODE:
        return mpirun.placement(slots)
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
            f"Open MPI on {', '.join(without[:_MOST_NAMED])} was built without UCX; set openmpi_ucx to always and run "
            "'clusterctl provision' again, or use --network tcp."
        )
    if network is not Transport.AUTO:
        return network is Transport.UCX
    return not without and all(_has_rdma(one) for one in members.values())


def without_ucx(members: Mapping[str, Member]) -> str:
    """Return that MPI leaves RDMA unused, where every node has it and Open MPI was built without UCX; else ''."""
    without = [name for name, one in members.items() if not one.has_ucx]
    if len(members) < 2 or not without or not all(map(_has_rdma, members.values())):  # noqa: PLR2004 - one has no way
        return ""
    return f"{over_tcp(members[without[0]].facts)}: Open MPI on {folded(without)} was built without UCX"


def of_others(nodes: Mapping[str, NodeFacts]) -> list[tuple[str, str]]:
    """Return hosts with an Open MPI that clusterctl did not make, folded, each with its version and folder in words."""
    found: dict[str, list[str]] = {}
    for host, node in nodes.items():
        openmpi = node.artifact(_OPENMPI)
        if path := openmpi.inputs.get("existing"):
            found.setdefault(f"Open MPI {openmpi.version} of {path}, which clusterctl did not make", []).append(host)
    return [(folded(hosts), words) for words, hosts in found.items()]


def over_tcp(node: NodeFacts) -> str:
    """Return in words that MPI leaves the RDMA devices of a node unused."""
    over = f" on {node.fabric.interface}" if node.fabric is not None and node.fabric.interface else ""
    names = active_devices(node)
    return (
        f"MPI goes over TCP{over}, although {and_more(names, _MOST_DEVICES)} {'is' if len(names) == 1 else 'are'} there"
    )


def active_devices(node: NodeFacts) -> list[str]:
    """Return the RDMA devices of a node that have a port that is up."""
    return [one.name for one in node.rdma if any(port.state == "ACTIVE" for port in one.ports)]


def _has_rdma(member: Member) -> bool:
    return bool(active_devices(member.facts))


# --- A node of a job as every launcher takes it -----------------------------------------------------------------------

_OPENMPI = "openmpi"


@dataclass(frozen=True)
class Member:
    """A node of the job: its ranks, its Open MPI, and the user that runs the job, by default the one that logs in.

    ``address`` is where the other nodes reach it. ``called`` is the name that a scheduler gives it, by which alone
    mpirun knows nodes inside an allocation.
    """

    facts: NodeFacts
    slots: int
    version: str
    has_ucx: bool = False
    user: str = ""
    address: str = ""
    called: str = ""

    @property
    def job_user(self) -> str:
        """The user that runs the job on the node."""
        return self.user or self.facts.user.name


def member(node: NodeFacts, slots: int, user: str | None = None, address: str = "", called: str = "") -> Member:
    """Return a node of a job from its facts; ``user``, ``address`` and ``called`` as :class:`Member` has them."""
    artifact = node.artifact(_OPENMPI)
    return Member(
        facts=node,
        slots=slots,
        version=artifact.version,
        has_ucx=artifact.has_ucx,
        user=user or "",
        address=address,
        called=called,
    )


_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_NUMERIC = re.compile(r"[0-9.]+")
_LOCAL = "localhost"
# By default mpirun cuts a name at its first dot, and no node may know the rest by that name.
_WHOLE_NAMES = "orte_keep_fqdn_hostnames"
# With 0, each node is asked for its shell. mpirun of 5.0.7 and 4.1.4 then start daemons through tcsh beside bash.
_SAME_SHELL = "plm_rsh_assume_same_shell"


@dataclass(frozen=True)
class MpirunJob:
    """What mpirun is to start; the fields mean what they mean in :class:`mpirun.MpirunLaunch`.

    ``mca`` are parameters of the caller, which replace those of the transport. ``workers`` are the ranks that one
    process a node starts, by default its slots.
    """

    program: tuple[str, ...]
    job: str = ""
    ranks: int | None = None
    per_node: bool = False
    exported: tuple[str, ...] = ()
    mca: Mapping[str, str] = field(default_factory=dict)
    path: PathOptions = NO_PATH_OPTIONS
    workers: Mapping[str, int] | None = None
    oversubscribe: bool = False
    tagged: bool = False
    directory: str = ""


@dataclass(frozen=True)
class MpirunLine:
    """A line for the launch node, what mpirun's environment has to hold, and the path that was decided."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    path: JobPath


def line(
    members: Mapping[str, Member], slots: Mapping[str, int], job: MpirunJob, launch_node: str | None = None
) -> MpirunLine:
    """Return the mpirun line of a job.

    ``slots`` has the ranks of each node that takes part, the launch node first. The line is started on ``launch_node``,
    by default the first node of the slots.
    """
    here = {name: members[name] for name in slots}
    first = next(iter(here.values()))
    called = node_names(here, launch_node or next(iter(here)))
    path = decide(here, slots, job.path, per_node=job.per_node, workers=job.workers)
    chosen = any(name in job.mca for name in ("pml", "btl"))  # the caller's choice of one may not go with our other
    argv = mpirun.argv(
        mpirun.MpirunLaunch(
            version=first.version,
            mpirun=first.facts.layout.mpirun,
            slots={called[name]: count for name, count in slots.items()},
            program=(*path.before, *job.program),
            job=job.job,
            ranks=job.ranks,
            per_node=job.per_node,
            exported=job.exported,
            mca={**({} if chosen else path.mca), **name_parameters(called), **shell_parameters(here), **job.mca},
            oversubscribe=job.oversubscribe,
            bind=path.bind,
            map_by=path.map_by,
            tagged=job.tagged,
            directory=job.directory,
        )
    )
    return MpirunLine(tuple(argv), mpirun.environment(first.version, first.job_user), path)


def node_names(members: Mapping[str, Member], launch_node: str) -> dict[str, str]:
    """Return the name by which mpirun gets each node, by its name in the inventory.

    mpirun finds itself by the launch node's own host name; under an address it finds no slots there. The other nodes
    get a name that the inventory gives. What such a node calls itself means nothing elsewhere, so a node under another
    name than the inventory's gets its address. The launch node may be none of the members.
    """
    if all(one.called for one in members.values()):
        return {name: one.called for name, one in members.items()}
    own = {name: one.facts.hostname for name, one in members.items()}
    owners, short = Counter(own.values()), Counter(map(_short, own.values()))
    called = {}
    for name, hostname in own.items():
        if owners[hostname] > 1 or not _is_usable(hostname) or (hostname != name and hostname in own):
            called[name] = name
        elif name == launch_node or hostname in {name, _short(name)}:
            called[name] = hostname
        elif _short(hostname) == name or not _is_word(members[name].address):
            called[name] = name
        else:
            called[name] = members[name].address
    # mpirun itself cuts its name at the first dot, unless another name keeps its domain.
    if launch_node in members and called[launch_node] == own[launch_node]:
        cut = _short(own[launch_node])
        if short[cut] == 1 and not name_parameters({**called, launch_node: cut}):
            called[launch_node] = cut
    return called


def name_parameters(called: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that names need: mpirun keeps names with a domain whole."""
    return {_WHOLE_NAMES: "1"} if any("." in own and not _NUMERIC.fullmatch(own) for own in called.values()) else {}


def shell_parameters(members: Mapping[str, Member]) -> dict[str, str]:
    """Return the parameters that login shells need: by default mpirun takes its own node's shell for that of all."""
    return {_SAME_SHELL: "0"} if len({is_csh(one.facts.job_shell) for one in members.values()}) > 1 else {}


def _short(own: str) -> str:
    return own if _NUMERIC.fullmatch(own) else own.partition(".")[0]


def _is_word(address: str) -> bool:
    """Whether ``-H`` can carry an address: a colon would begin the number of slots."""
    return bool(_HOST_NAME.fullmatch(address))


def _is_usable(own: str) -> bool:
    return bool(_HOST_NAME.fullmatch(own)) and not own.startswith(_LOCAL) and not _NUMERIC.fullmatch(own)
