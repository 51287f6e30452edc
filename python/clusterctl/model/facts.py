"""Types of the facts of a node: what the probe program reports, and why a node did not answer."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr

from clusterctl.model.base import NodeFact
from clusterctl.model.clock import Clock
from clusterctl.model.job_outcome import MemoryKills
from clusterctl.model.layout import DEFAULT_PREFIX, Layout
from clusterctl.model.network_facts import Fabric, Interface, RdmaDevice, Route, SwitchPort

# --- Types of what a node said of PMIx: the site's library, that of the installed Open MPI, and Slurm's plugins -------

_SERIES_41 = "4.1."


class SitePmix(NodeFact):
    """The PMIx library of the site: the one that Slurm opens, else the loader's.

    ``headers`` is the release of a development installation that a build can use, '' without one.
    """

    prefix: str
    library: str
    version: str
    headers: str = ""


class Pmix(NodeFact):
    """PMIx on a node: the site's, and that of the installed Open MPI.

    ``own`` is the release that Open MPI brings as a library, '' without one. ``built_with`` is the word of configure:
    internal, external (the site's in /usr), or the prefix of the site's.
    """

    site: SitePmix | None = None
    own: str = ""
    built_with: str = ""

    @property
    def is_external(self) -> bool:
        """Whether Open MPI was built with the site's PMIx."""
        return self.built_with not in {"", "internal"}


class SlurmPlugin(NodeFact):
    """A PMIx plugin of Slurm (``pmix_v4``), the library that it opens, and whether that is there."""

    name: str
    opens: str
    found: bool
    version: str = ""


class SlurmSettings(NodeFact):
    """What srun does about PMIx: its default type (``none``, ``pmix``), what sets that, and the plugins it has."""

    srun: str = ""
    conf: str = ""
    mpi_default: str = "none"
    mpi_default_by: str = "MpiDefault"
    plugins: tuple[SlurmPlugin, ...] = ()


def is_series_41(openmpi: str) -> bool:
    """Return whether a version of Open MPI is of the series 4.1, which has a PMIx 3 inside."""
    return openmpi.startswith(_SERIES_41)


def srun_without_pmix(openmpi: str = "") -> str:
    """Return what srun does without PMIx, as the rest of a sentence that begins with srun.

    A rank of Open MPI 5.0 becomes a world of its own. One of 4.1 sees Slurm's variables and ends with an error: 4.1.4
    did so on nodes, built with the site's PMIx, and open-mpi/ompi #10940 shows it of a build with its own.
    """
    if is_series_41(openmpi):
        return "starts no rank: each ends with an error"
    alone = "starts each rank as a world of size 1"
    return alone if openmpi else f"{alone}, and no rank of Open MPI 4.1"


class Gpu(NodeFact):
    """A GPU on the bus; ``driver`` is empty when none has taken it.

    ``unusable`` says why jobs cannot use a GPU, and ``problem`` says it in a clause: without NVIDIA's driver, with a
    driver that lies in a container, without its device file or its library, with two versions of the driver, or in MIG
    mode without an instance. ``display`` is a card of the class of screens. ``instances`` are its MIG instances' names.
    ``numa`` is its NUMA node, -1 where unknown; ``pci_path`` has the bridges of PCI from the root, then the GPU itself.
    """

    bus: str
    name: str = ""
    uuid: str = ""
    driver: str = ""
    display: bool = False
    unusable: Literal["", "driver", "container", "device", "library", "versions", "mig"] = ""
    problem: str = ""
    instances: tuple[str, ...] = ()
    numa: int = -1
    pci_path: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether NVIDIA's driver has taken it and a session's programs reach that driver."""
        return self.driver == "nvidia" and not self.unusable

    @property
    def devices(self) -> tuple[str, ...]:
        """What ranks take one by one: its MIG instances, else the GPU itself; nothing of one that jobs cannot use."""
        return (self.instances or (self.uuid,)) if self.usable else ()


class NumaNode(NodeFact):
    """A NUMA node; ``cores`` that a session may use, each as the list of its hardware threads (``0,64``)."""

    number: int
    cores: tuple[str, ...] = ()


class PrefixState(NodeFact):
    """The folder of the software.

    ``problem`` says why root must not install there. ``others`` are further folders that hold artifacts. ``trees`` are
    the names of the artifacts' folders, whole or not; None where they could not be read.
    """

    path: str = DEFAULT_PREFIX
    problem: str = ""
    read_only: bool = False
    others: tuple[str, ...] = ()
    trees: tuple[str, ...] | None = None


class Leftover(NodeFact):
    """A process of an MPI, Horovod or torchrun job whose launcher is gone; ``why`` says how that was seen."""

    pid: int
    user: str
    command: str
    age_s: float
    why: str


class BusyProcess(NodeFact):
    """A process that is a ``rank`` of a job, uses a GPU, or uses artifacts, whose folders are ``trees``."""

    pid: int
    user: str
    command: str
    rank: bool
    gpu: bool = False
    trees: tuple[str, ...] = ()


WatchEntry: TypeAlias = dict[str, Any]


class Distribution(NodeFact):
    """The operating system as /etc/os-release names it; ``family`` is Debian, RedHat, Suse or Linux."""

    id: str
    version_id: str
    name: str
    family: str
    major: str


class Python(NodeFact):
    """The interpreter that answered."""

    version: str
    executable: str
    has_packaging: bool


class Cuda(NodeFact):
    """What of CUDA is there; ``major`` follows the driver, or the toolkit where there is no driver.

    ``first_branches`` holds by CUDA major the first branch of NVIDIA's driver that runs it.
    """

    major: int | None = None
    driver_version: str = ""
    toolkit_version: str = ""
    libcuda: bool = False
    first_branches: dict[int, int] = Field(default_factory=dict)


class Disk(NodeFact):
    """Space of the file system that holds a path."""

    path: str
    free_bytes: int
    total_bytes: int


class Scratch(NodeFact):
    """A folder that jobs write to while they run: for temporary files, or for shared memory.

    ``free_inodes`` is None where the file system has no fixed number. ``writable`` is about the login user. ``blocked``
    are folders in it that Open MPI would use and that belong to another user.
    """

    path: str
    exists: bool
    free_bytes: int
    total_bytes: int
    free_inodes: int | None = None
    read_only: bool = False
    writable: bool = True
    blocked: tuple[str, ...] = ()


class LaunchProgram(NodeFact):
    """A program that launches ranks: ``path`` is what a session finds ('' if nothing), ``own`` the installed one."""

    name: str
    path: str
    real: str
    own: str
    own_real: str
    own_state: Literal["ok", "missing", "not executable"]


class CpuQuota(NodeFact):
    """The tightest CPU quota of a session's control groups, in ``cores`` (None: unlimited), and what it held back."""

    group: str = ""
    cores: float | None = None
    throttled_periods: int = 0
    throttled_s: float = 0.0


class Parameter(NodeFact):
    """A setting of Open MPI, PRRTE, PMIx, UCX, NCCL or Gloo of others; ``source`` is a file, or "environment".

    ``in_session`` is false for what a start-up file sets and a session without a terminal does not have.
    """

    name: str
    value: str
    source: str
    in_session: bool = True


class ParameterFile(NodeFact):
    """A file of the role ``fabric``; ``own`` are the settings in clusterctl's block."""

    path: str
    exists: bool
    own: dict[str, str] = Field(default_factory=dict)


class KnownHosts(NodeFact):
    """Whether the mesh of clusterctl is in the system's known hosts, and the names of the node's own lines."""

    has_mesh: bool = False
    has_authority: bool = False  # that of clusterctl, with which ssh_mesh_trust is ca
    own_names: tuple[str, ...] = ()


class Resolution(NodeFact):
    """What a name means to this node; ``problem`` says why it means nothing."""

    name: str
    addresses: tuple[str, ...] = ()
    problem: str = ""


class Limit(NodeFact):
    """A resource limit; None means unlimited."""

    soft: int | None
    hard: int | None


class ProcessRoom(NodeFact):
    """How many more processes, threads among them, a session may start, and what limits them."""

    left: int
    by: str  # nproc, or the file of a control group


class User(NodeFact):
    """The login user; ``sudo`` is None when it was not asked for."""

    name: str
    uid: int
    home: str
    sudo: bool | None = None


class SessionTrap(NodeFact):
    """A variable of a session that breaks something; ``source`` is a place such as "/etc/environment line 3".

    ``what``: its value has a carriage return, a quote, or a name that nothing expands; or it breaks a ``program`` at
    its start, which ``said`` so.
    """

    name: str
    what: str  # carriage return, quote, not expanded, breaks
    program: str = ""
    said: str = ""
    source: str = ""


class LoginState(NodeFact):
    """What the login user's sessions have.

    ``unsafe``: paths with their reason, for which sshd refuses the user's keys. ``home_refuses``: why the user cannot
    write to the home, '' if it can.
    """

    shell: str = ""
    traps: tuple[SessionTrap, ...] = ()
    unsafe: tuple[str, ...] = ()
    home_refuses: str = ""


class SessionProgram(NodeFact):
    """What a session of the account that runs jobs finds: a login session, or a unit of ``systemd``.

    ``own``: the program is the one that the account was given. ``place`` is the line that sets PATH, '' where unknown.
    A row with a ``problem`` has no program: the file in ``place`` is ``unreadable``, or the login has ``ended`` or was
    ``silent`` and ran no command.
    """

    kind: str  # login, systemd
    name: str = ""
    path: str = ""
    own: bool = False
    problem: str = ""
    place: str = ""


class JobUser(NodeFact):
    """The account that jobs run as.

    ``uid`` is -1 if the account is missing. ``has_home``: its home is there. ``home_answers``: the file system of
    its home does not hang. ``sudo``: it may do everything as root without a password, None where sudo does not say.
    ``unsafe`` and ``home_refuses`` as in :class:`LoginState`.
    """

    name: str
    uid: int
    home: str = ""
    shell: str = ""
    has_home: bool = True
    home_answers: bool = True
    sudo: bool | None = None
    unsafe: tuple[str, ...] = ()
    home_refuses: str = ""

    @property
    def exists(self) -> bool:
        return self.uid >= 0


class SshDaemon(NodeFact):
    """The node's host keys ("ssh-ed25519 AAAA…", ed25519 first) and the port its daemon answers on.

    ``settings`` are those of its configuration that decide about logins, by keyword; a default is left out.
    """

    host_keys: tuple[str, ...] = ()
    port: int = 22
    settings: dict[str, str] = Field(default_factory=dict)


class Artifact(NodeFact):
    """An installed artifact as its marker and manifest show it; ``problem`` is a sentence unless ``ok``.

    ``linked`` is false where a folder stands in the place of the link.
    ``inputs`` holds what was asked for of everything that shaped it.
    """

    name: str
    link: str
    target: str
    version: str
    key: str
    ok: bool
    linked: bool = True
    problem: str = ""
    inputs: dict[str, Any] = Field(default_factory=dict)

    @property
    def framework(self) -> dict[str, Any]:
        """The training framework among the inputs; empty where the node says nothing of one, or something else."""
        given = self.inputs.get("framework")
        return given if isinstance(given, dict) else {}

    @property
    def library_folder(self) -> str:
        """The folder below which the libraries of an Open MPI are, with links resolved."""
        return str(self.inputs.get("library") or self.target)

    @property
    def has_ucx(self) -> bool:
        """Whether an Open MPI stands on the cluster's UCX, or was configured with another one."""
        options = self.inputs.get("configure", ())
        return bool(self.inputs.get("ucx")) or any(str(word).startswith("--with-ucx") for word in options)


class LibraryFile(NodeFact):
    """A library's file in a session's reach.

    ``real`` has the links resolved, ``version`` is the release it belongs to ('' where nothing tells), and ``via`` says
    why it is in reach: LD_LIBRARY_PATH, /etc/ld.so.cache, default folders, or asked for by the reader.
    """

    path: str
    real: str
    version: str = ""
    via: str = ""


class Library(LibraryFile):
    """The file that a session's loader takes for a name; an empty ``path``: none.

    ``others`` are files in its reach that it does not take, and those that the reader asked for.
    """

    soname: str
    others: tuple[LibraryFile, ...] = ()


class VendorOpenMpi(NodeFact):
    """An Open MPI that stands where vendors put theirs: its folder, and the three numbers of its version."""

    path: str
    version: str


class JobLook(NodeFact):
    """What a job needs to know of a node before its start.

    ``found`` and ``runs`` (may be executed) are in the order in which the job asked for files. It starts in ``folder``.
    """

    found: tuple[bool, ...]
    runs: tuple[bool, ...]
    folder: str
    has_folder: bool
    memory: MemoryKills


class NodeFacts(NodeFact):
    """Everything one node said of itself in one trip; empty values are explained in ``problems``."""

    schema_version: int
    hostname: str
    fqdn: str
    time: float  # seconds since the epoch, by the node's clock
    clock: Clock | None = None  # of ``time`` against this machine's at the question and at the answer
    kernel: str
    machine: str
    distribution: Distribution
    glibc: str
    python: Python
    platform: str
    prefix: PrefixState = PrefixState()
    cuda: Cuda = Cuda()
    cores: int
    threads: int  # of hardware, that the session may use
    threads_online: int = 0  # of hardware; 0 where the record is older
    numa: tuple[NumaNode, ...] = ()
    boot_id: str = ""  # the same for all containers of one machine
    session_start_s: float = 0.0  # from the login until its command ran, without work; 0 where it was not by sshd
    memory_bytes: int
    swap_bytes: int = 0
    swap_used_bytes: int = 0
    disk: tuple[Disk, ...] = ()
    shm_bytes: int = 0
    scratch: tuple[Scratch, ...] = ()
    cpu_quota: CpuQuota = CpuQuota()
    interfaces: tuple[Interface, ...] = ()
    routes: tuple[Route, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    fabric: Fabric | None = None
    switch_ports: tuple[SwitchPort, ...] = ()
    names: tuple[Resolution, ...] = ()  # its own host name first, then those that the reader asked for
    leftovers: tuple[Leftover, ...] = ()
    busy: tuple[BusyProcess, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    limits: dict[str, Limit] = Field(default_factory=dict)
    process_room: ProcessRoom | None = None  # None: nothing limits them
    memory_kills: int = 0  # by the kernel, for lack of memory, in the control groups of the session
    limit_settings: dict[str, str] = Field(default_factory=dict)  # of /etc/security, by "domain type item"
    environment: dict[str, str] = Field(default_factory=dict)
    environment_source: str = ""
    user: User
    login: LoginState = LoginState()
    sessions: tuple[SessionProgram, ...] = ()  # only where they were asked for
    job_user: JobUser | None = None  # only where it was asked for
    ssh: SshDaemon = SshDaemon()
    known_hosts: KnownHosts | None = None
    parameters: tuple[Parameter, ...] = ()
    parameter_files: tuple[ParameterFile, ...] = ()
    launch: tuple[LaunchProgram, ...] = ()
    pmix: Pmix = Pmix()
    slurm: SlurmSettings | None = None
    tools: dict[str, bool | str] = Field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    existing_python: dict[str, Any] | None = None
    existing_openmpi: dict[str, Any] | None = None
    vendor_openmpis: tuple[VendorOpenMpi, ...] = ()
    driverless_cards: tuple[str, ...] = ()  # PCI addresses of RDMA cards that no driver has taken
    libraries: tuple[Library, ...] = ()
    watch: tuple[WatchEntry, ...] = ()
    job_look: JobLook | None = None  # only where a job asked for it, and every file system answered
    problems: tuple[str, ...] = ()

    _project: str = PrivateAttr("")  # the node itself cannot say it
    _by_path: bool = PrivateAttr(default=False)

    @property
    def layout(self) -> Layout:
        """Where the software lies on the node, as it was asked, or as :meth:`with_project` says."""
        return Layout(self.prefix.path, self._project, self._by_path)

    def with_project(self, tree: str, *trees: str) -> NodeFacts:
        """Return the node as a job sees it that runs in the environment of a project.

        ``trees`` are the folders of the environment on all nodes of the job. The launch node's ``PATH`` is that of all
        ranks, and a node has its own folder, ``tree``, alone.
        """
        every = dict.fromkeys((tree, *trees))
        path = ":".join(filter(None, (*(f"{one}/bin" for one in every), self.environment.get("PATH", ""))))
        found = self.model_copy(update={"environment": {**self.environment, "PATH": path}})
        found._project, found._by_path = tree, len(every) > 1  # noqa: SLF001 - its own class
        return found

    @property
    def job_shell(self) -> str:
        """The login shell of the user that jobs run as; of the login user where the other was not asked for."""
        return self.job_user.shell if self.job_user is not None and self.job_user.exists else self.login.shell

    def artifact(self, name: str) -> Artifact:
        """Return what is known of an artifact by its public name; one that was not asked for is not ``ok``."""
        link = self.layout.link(name)
        missing = Artifact(name=name, link=link, target="", version="", key="", ok=False)
        return next((found for found in self.artifacts if found.link == link), missing)
