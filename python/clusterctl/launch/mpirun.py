"""The mpirun line for Open MPI 4.1.x and 5.0.x, which speak different dialects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MPIRUN = "/usr/local/openmpi/bin/mpirun"
JOB_VARIABLE = "CLUSTERCTL_JOB"
JOB_PARAMETER = "clusterctl_job"

_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+[A-Za-z0-9]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Dialect(Enum):
    """Whose runtime stands behind mpirun."""

    ORTE = "4.1"  # options of the runtime are MCA parameters like all others
    PRRTE = "5.0"  # the runtime is a project of its own with parameters of its own (--prtemca)


def dialect(version: str) -> Dialect:
    """Return the dialect of an Open MPI version.

    Raises:
        ConfigError: the series is none that clusterctl knows to launch.
    """
    match = _VERSION.fullmatch(version)
    series = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if series == (4, 1):
        return Dialect.ORTE
    if series[0] == 5:  # noqa: PLR2004 - the series' own number
        return Dialect.PRRTE
    raise ConfigError(f"Open MPI {version or '(no version)'} is of no series that clusterctl can launch (4.1, 5).")


@dataclass(frozen=True)
class Launch:
    """What is to be launched.

    ``exported`` are variables of mpirun's environment that the ranks get as well. ``mca`` are parameters of the MPI
    library, ``runtime_mca`` those of the runtime that starts the ranks (``orte_…``/``plm_…`` and ``prte_…``).
    ``slots`` are in hostfile order; every slot gets a rank unless ``ranks`` says otherwise. ``per_node`` starts one
    process a node instead, whatever its slots, and the n-th node of the hostfile has rank n.
    """

    version: str
    hostfile: str
    slots: Mapping[str, int]
    program: tuple[str, ...]
    job: str
    ranks: int | None = None
    per_node: bool = False
    exported: tuple[str, ...] = ()
    mca: Mapping[str, str] = field(default_factory=dict)
    runtime_mca: Mapping[str, str] = field(default_factory=dict)
    oversubscribe: bool = False
    mpirun: str = MPIRUN


def argv(launch: Launch) -> list[str]:
    """Return the tokens of the mpirun line.

    No binding (the checks ask whether answers are right, and nodes may be containers that see all cores) and one rank
    per slot in the hostfile's order. The absolute path of mpirun makes it use its own prefix on the other nodes.

    Raises:
        ConfigError: the version is unknown, a variable's name is none, or there are more ranks than slots and nobody
            asked for that.
    """
    speech = dialect(launch.version)
    room = len(launch.slots) if launch.per_node else sum(launch.slots.values())
    ranks = room if launch.ranks is None else launch.ranks
    if ranks > room and not launch.oversubscribe:
        raise ConfigError(
            f"{ranks} ranks do not fit on {room} nodes, one on each."
            if launch.per_node
            else f"{ranks} ranks do not fit into {room} slots; raise slots= on the hosts."
        )
    line = [launch.mpirun, "--hostfile", launch.hostfile, "-np", str(ranks), "--bind-to", "none"]
    by = "ppr:1:node" if launch.per_node else "slot"
    if speech is Dialect.ORTE:
        line += ["--map-by", by, *(["--oversubscribe"] if launch.oversubscribe else [])]
    else:
        line += ["--map-by", f"{by}:OVERSUBSCRIBE" if launch.oversubscribe else by]
    for name in (JOB_VARIABLE, *launch.exported):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of an environment variable.")
        line += ["-x", name]
    for name, value in launch.mca.items():
        line += ["--mca", name, value]
    runtime = "--mca" if speech is Dialect.ORTE else "--prtemca"
    for name, value in {**launch.runtime_mca, JOB_PARAMETER: launch.job}.items():
        line += [runtime, name, value]
    return [*line, *launch.program]


def environment(version: str, user: str) -> dict[str, str]:
    """Return the variables that mpirun needs; as root it refuses to start unless told twice.

    Raises:
        ConfigError: the version is unknown.
    """
    if user != "root":
        return {}
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if dialect(version) is Dialect.PRRTE:
        allowed |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return allowed
