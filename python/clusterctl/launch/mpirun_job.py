"""The mpirun line of a job on provisioned nodes; ``run`` and ``validate`` both launch with it.

A validation that passes therefore proves what a run launches: the same names, the same transport, the same options.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launch import job_path, mpirun
from clusterctl.launch.path_options import NO_PATH_OPTIONS, PathOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.launch.job_path import JobPath
    from clusterctl.launch.member import Member

_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_NUMERIC = re.compile(r"[0-9.]+")
_LOCAL = "localhost"
# By default mpirun cuts a name at its first dot, and no node may know the rest by that name.
_WHOLE_NAMES = "orte_keep_fqdn_hostnames"


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

    Args:
        members: the nodes by their names in the inventory.
        slots: the ranks of each node that takes part, the launch node first.
        job: what is to be started.
        launch_node: where the line is started, by default the first node of the slots.

    Raises:
        ConfigError: it cannot be done; the sentence says what to do.
    """
    here = {name: members[name] for name in slots}
    first = next(iter(here.values()))
    called = node_names(here, launch_node or next(iter(here)))
    path = job_path.decide(here, slots, job.path, per_node=job.per_node, workers=job.workers)
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
            mca={**({} if chosen else path.mca), **name_parameters(called), **job.mca},
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
    name than the inventory's gets its address.

    Args:
        members: the nodes by their names in the inventory.
        launch_node: where mpirun is started; it may be none of the members.
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


def _short(own: str) -> str:
    return own if _NUMERIC.fullmatch(own) else own.partition(".")[0]


def _is_word(address: str) -> bool:
    """Whether ``-H`` can carry an address: a colon would begin the number of slots."""
    return bool(_HOST_NAME.fullmatch(address))


def _is_usable(own: str) -> bool:
    return bool(_HOST_NAME.fullmatch(own)) and not own.startswith(_LOCAL) and not _NUMERIC.fullmatch(own)
