"""The mpirun line for Open MPI 4.1.x and 5.0.x, which speak different dialects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from clusterctl.model.layout import DEFAULT_LAYOUT
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


JOB_VARIABLE = "CLUSTERCTL_JOB"
JOB_PARAMETER = "clusterctl_job"

_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+[A-Za-z0-9]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[a-z][a-z0-9_]*")
_TAG = re.compile(rb"\[\d+,(\d{1,9})\]<std(?:out|err)>: ?")

# Frameworks of PRRTE 3 and of PMIx, whose parameters mpirun 5.0 takes by options of their own.
_PRRTE = (
    *("prte_", "prtebacktrace_", "prtedl_", "prteinstalldirs_", "prtereachable_"),
    *("ess_", "errmgr_", "filem_", "grpcomm_", "iof_", "odls_", "oob_", "plm_", "propagate_", "ras_", "rmaps_"),
    *("rml_", "routed_", "rtc_", "schizo_", "state_"),
)
_PMIX = (
    "pmix_",
    "bfrops_",
    "gds_",
    "pcompress_",
    "plog_",
    "pmdl_",
    "pnet_",
    "preg_",
    "prm_",
    "psec_",
    "psensor_",
    "ptl_",
)
_RENAMED = {"oob_tcp_if_include": "prte_if_include", "oob_tcp_if_exclude": "prte_if_exclude"}


class Dialect(Enum):
    """Whose runtime stands behind mpirun."""

    ORTE = "4.1"  # options of the runtime are MCA parameters like all others
    PRRTE = "5.0"  # the runtime is a project of its own with parameters of its own (--prtemca)


class Bind(str, Enum):
    """What each rank is kept on."""

    NONE = "none"
    CORE = "core"
    HWTHREAD = "hwthread"
    L3CACHE = "l3cache"
    NUMA = "numa"
    SOCKET = "socket"


class MapBy(str, Enum):
    """Where the next rank goes."""

    SLOT = "slot"
    NODE = "node"
    CORE = "core"
    L3CACHE = "l3cache"
    NUMA = "numa"
    SOCKET = "socket"


def dialect(version: str) -> Dialect:
    """Return the dialect of an Open MPI version.

    Raises:
        ConfigError: clusterctl does not know how to launch this series.
    """
    match = _VERSION.fullmatch(version)
    series = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if series == (4, 1):
        return Dialect.ORTE
    if series[0] == 5:  # noqa: PLR2004 - the series' own number
        return Dialect.PRRTE
    raise ConfigError(f"Open MPI {version or '(no version)'} is of no series that clusterctl can launch (4.1, 5).")


@dataclass(frozen=True)
class MpirunLaunch:
    """What is to be launched.

    ``exported`` are variables that the ranks get, ``NAME`` of mpirun's environment or ``NAME=VALUE``. ``mca`` are
    parameters of the MPI library and of the runtime that starts the ranks. ``slots`` are in the order of the ranks;
    every slot gets a rank unless ``ranks`` says otherwise. ``per_node`` starts one process per node instead, for any
    number of slots, and the n-th node has rank n. ``tagged`` begins each line of output with what :func:`untagged`
    reads. Without a ``job`` a sweep cannot find its processes. ``mpirun`` is to be an absolute path, which makes it use
    its own prefix on the other nodes.
    """

    version: str
    slots: Mapping[str, int]
    program: tuple[str, ...]
    job: str = ""
    ranks: int | None = None
    per_node: bool = False
    exported: tuple[str, ...] = ()
    mca: Mapping[str, str] = field(default_factory=dict)
    oversubscribe: bool = False
    bind: Bind = Bind.NONE
    map_by: MapBy = MapBy.SLOT
    tagged: bool = False
    directory: str = ""
    mpirun: str = DEFAULT_LAYOUT.mpirun


def argv(launch: MpirunLaunch) -> list[str]:
    """Return the tokens of the mpirun line.

    By default one rank per slot in the order of the hosts, without binding: nodes may be containers that see all cores.

    Raises:
        ConfigError: the version is unknown, the name of a variable or parameter is invalid, the program is an option,
            or there are more ranks than slots without ``oversubscribe``.
    """
    speech = dialect(launch.version)
    ranks = count(launch)
    line = [launch.mpirun, "-H", words(launch.slots), "-np", str(ranks)]
    line += placed(launch)
    line += ["--oversubscribe"] if launch.oversubscribe and speech is Dialect.ORTE else []
    line += ["--tag-output"] if launch.tagged else []
    line += ["--wdir", launch.directory] if launch.directory else []
    for word in (*([JOB_VARIABLE] if launch.job else ()), *launch.exported):
        name = word.partition("=")[0]
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not the name of an environment variable.")
        line += ["-x", word]
    line += parameters(speech, launch.mca, launch.job)
    if launch.program and launch.program[0].startswith("-"):
        raise ConfigError(f"The program {launch.program[0]!r} is an option; name the program first, then its options.")
    return [*line, *launch.program]


def placed(launch: MpirunLaunch) -> list[str]:
    """Return the tokens that say where ranks go and what they are kept on; 5.0 calls a socket a package."""
    speech = dialect(launch.version)
    bind, by = launch.bind.value, "ppr:1:node" if launch.per_node else launch.map_by.value
    if speech is Dialect.PRRTE:
        bind, by = (word.replace(MapBy.SOCKET.value, "package") for word in (bind, by))
        by += ":OVERSUBSCRIBE" if launch.oversubscribe else ""
    return ["--bind-to", bind, "--map-by", by]


def count(launch: MpirunLaunch) -> int:
    """Return how many processes mpirun is to start."""
    room = len(launch.slots) if launch.per_node else sum(launch.slots.values())
    ranks = room if launch.ranks is None else launch.ranks
    if ranks > room and not launch.oversubscribe:
        raise ConfigError(
            f"{ranks} ranks do not fit on {room} nodes, one on each."
            if launch.per_node
            else f"{ranks} ranks do not fit into {room} slots; raise slots= on the hosts, or take --oversubscribe to "
            "have ranks share them."
        )
    return ranks


def parameters(speech: Dialect, mca: Mapping[str, str], job: str = "") -> list[str]:
    """Return the tokens that set MCA parameters, each with the option of the project that reads it."""
    line: list[str] = []
    for name, value in mca.items():
        if not _PARAMETER.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not the name of an MCA parameter; it has lower-case letters, digits and '_'."
            )
        option, own = ("--mca", name) if speech is Dialect.ORTE else _of_project(name)
        line += [option, own, value]
    line += ["--mca" if speech is Dialect.ORTE else "--prtemca", JOB_PARAMETER, job] if job else []
    return line


_ANY_DEVICE = {"opal_common_ucx_tls": "any", "opal_common_ucx_devices": "any"}


def transport(speech: Dialect, *, ucx: bool, rdma: bool = True) -> dict[str, str]:
    """Return the parameters that settle what MPI's messages go through.

    TCP between nodes and shared memory within one, by their present names: Open MPI 4.1's shared memory is ``vader``,
    5.0's is ``sm``, and ``openib``, which 4.1 would try on any RDMA device, is in neither list. ``rdma`` says whether
    every node has RDMA. Without it, Open MPI refuses UCX unless any transport and device will do.
    """
    if ucx:
        no_openib = {"btl": "^openib"} if speech is Dialect.ORTE else {}
        return {"pml": "ucx", **no_openib, **({} if rdma else _ANY_DEVICE)}
    return {"pml": "ob1", "btl": "tcp,self,vader" if speech is Dialect.ORTE else "tcp,self,sm"}


def untagged(line: bytes) -> tuple[int | None, bytes]:
    """Take what ``tagged`` puts before a line apart; the rank is None where mpirun itself speaks.

    4.1 writes ``[1,3]<stdout>:text``, 5.0 ``[1,3]<stdout>: text`` (both seen).
    """
    match = _TAG.match(line)
    return (int(match.group(1)), line[match.end() :]) if match else (None, line)


def has_tag(line: bytes) -> bool:
    """Whether a tag is anywhere in a line; a rank may have begun a line and not ended it."""
    return _TAG.search(line) is not None


def present_name(speech: Dialect, name: str) -> str:
    """Return the name that a parameter of TCP networks has in a dialect."""
    return name if speech is Dialect.ORTE else _RENAMED.get(name, name)


def _of_project(name: str) -> tuple[str, str]:
    """Return the option and the present name of a parameter in the words of 5.0, whose runtime has its own."""
    renamed = present_name(Dialect.PRRTE, name)
    if renamed.startswith("orte_"):
        renamed = f"prte_{renamed.removeprefix('orte_')}"
    if renamed.startswith("plm_rsh_"):
        renamed = f"plm_ssh_{renamed.removeprefix('plm_rsh_')}"
    if renamed.startswith(_PRRTE):
        return "--prtemca", renamed
    return ("--pmixmca" if renamed.startswith(_PMIX) else "--mca"), renamed


def environment(version: str, user: str) -> dict[str, str]:
    """Return the variables that mpirun needs; as root it refuses to start unless told twice."""
    if user != "root":
        return {}
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if dialect(version) is Dialect.PRRTE:
        allowed |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return allowed


# --- The list of hosts that mpirun gets, its order, and the node of each rank -----------------------------------------


def ordered(slots: Mapping[str, int], launch_node: str) -> dict[str, int]:
    """Return the slots with the launch node first.

    Open MPI 4.1 begins with the node it runs on, 5.0 follows the order of the hosts (both seen); with the launch node
    first they agree, and the place of each rank is known beforehand.
    """
    return {name: slots[name] for name in sorted(slots, key=lambda name: name != launch_node)}


def words(slots: Mapping[str, int]) -> str:
    """Return the slots as one word for a command line, ``name:N,…``."""
    return ",".join(f"{name}:{count}" for name, count in slots.items())


def placement(slots: Mapping[str, int]) -> tuple[str, ...]:
    """Return the node of each rank when every slot is filled with ``--map-by slot``."""
    return tuple(name for name, count in slots.items() for _ in range(count))


# --- What a user asks for of a job's path; ``run`` and ``validate`` have the same options and the same defaults -------


class Transport(str, Enum):
    """What MPI's messages go through; auto is UCX where every node can, else TCP."""

    AUTO = "auto"
    TCP = "tcp"
    UCX = "ucx"


class Affinity(str, Enum):
    """Whether each rank is kept on the cores and the network port nearest to its GPU."""

    NONE = "none"
    AUTO = "auto"


@dataclass(frozen=True)
class PathOptions:
    """What the user asks for; the default is the same for a run and for a validation."""

    network: Transport = Transport.AUTO
    bind: Bind = Bind.NONE
    map_by: MapBy = MapBy.SLOT
    affinity: Affinity = Affinity.NONE

    @property
    def words(self) -> list[str]:
        """The options that differ from the default, as ``run`` and ``validate`` take them."""
        network = [] if self.network is Transport.AUTO else ["--network", self.network.value]
        bind = [] if self.bind is Bind.NONE else ["--bind-to", self.bind.value]
        map_by = [] if self.map_by is MapBy.SLOT else ["--map-by", self.map_by.value]
        return [*network, *bind, *map_by, *([] if self.affinity is Affinity.NONE else ["--affinity", "auto"])]


NO_PATH_OPTIONS = PathOptions()
