"""Types of an inventory: hosts, the options that change its meaning, and the inventory itself."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from clusterctl.model.layout import DEFAULT_PREFIX, Layout

OF_SLURM = "slurm:"  # begins the source of an inventory whose nodes Slurm has named
OF_KUBERNETES = "kubernetes:"  # begins the source of hosts that are pods
_SSH_CONNECTIONS = frozenset({"ssh", "smart", "ansible.builtin.ssh"})


@dataclass(frozen=True)
class InventorySources:
    """The inventories of one command, in their order: paths, and lists of hosts such as ``node1,node2,``."""

    words: tuple[str, ...]

    @staticmethod
    def of(given: AnyInventory) -> InventorySources:
        """Return the sources that a path stands for; sources stay as they are."""
        return given if isinstance(given, InventorySources) else InventorySources((str(given),))

    def __str__(self) -> str:
        """Return the sources as a message names them."""
        return " and ".join(self.words)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The sources that are files, folders or scripts."""
        return tuple(Path(word) for word in self.words if is_path(word))

    @property
    def are_slurm_s(self) -> bool:
        """Whether Slurm has named the hosts, and not an inventory."""
        return any(word.startswith(OF_SLURM) for word in self.words)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of a command line that name these sources."""
        if len(self.words) == 1:
            return self.words
        return tuple(part for word in self.words for part in ("-i", word))

    @property
    def shown(self) -> str:
        """The sources as they can be pasted behind a command."""
        return shlex.join(self.arguments)


AnyInventory: TypeAlias = "Path | InventorySources"


def is_host_list(word: str) -> bool:
    """Whether an inventory is a list of hosts and not a path: it has a comma, which is how Ansible decides."""
    return "," in word


def is_path(word: str) -> bool:
    """Whether an inventory is a path: it is neither a list of hosts nor what a scheduler names."""
    return not is_host_list(word) and not word.startswith((OF_SLURM, OF_KUBERNETES))


@dataclass(frozen=True)
class SlurmStep:
    """How a host inside a Slurm allocation is reached: by a step of the job on this node.

    ``node`` is Slurm's NodeName. ``submit`` is the host that runs srun, None for this machine. ``variables`` are what
    mpirun needs in its environment to start its daemons as steps of the job.
    """

    job: int
    node: str
    submit: Host | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Host:
    """One machine of the inventory, with what is needed to reach it by ssh, or by a step of a Slurm job.

    ``address`` is what ssh connects to. ``slots`` is the inventory's own count of ranks, None where it gives none.
    ``unheeded`` are clauses about what Ansible is told of the login and clusterctl's own ssh does not do.
    """

    name: str
    address: str
    port: int = 22
    user: str | None = None
    connection: str = "ssh"
    private_key: str | None = None
    gives_port: bool = True  # without it, ssh's own configuration decides the port, as for Ansible
    ssh_args: tuple[str, ...] = ()
    unheeded: tuple[str, ...] = ()
    python: str = "/usr/bin/python3"
    become: bool = False
    become_user: str = "root"
    login_password: str = ""  # the name of the variable that holds one: only Ansible may use it
    sudo_password: str | None = field(default=None, repr=False, compare=False)  # of the inventory, in memory alone
    slots: int | None = None
    step: SlurmStep | None = None  # with one, commands go through srun instead of ssh
    variables: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)  # without passwords

    @property
    def by_ssh(self) -> bool:
        """Whether a plain ssh client, or srun in an allocation, can do what Ansible's connection does."""
        return not self.not_by_ssh

    @property
    def not_by_ssh(self) -> str:
        """Why a plain ssh client cannot reach the host, empty where it can: a clause with the variable."""
        if self.step is not None:
            return ""
        if self.connection not in _SSH_CONNECTIONS:
            return f"ansible_connection is '{self.connection}'"
        if self.login_password:
            return f"{self.login_password} holds a login password"
        return ""

    @property
    def login_words(self) -> tuple[str, ...]:
        """The options of ssh by which Ansible reaches the host: port, key, user and further arguments, where given."""
        port = ("-p", str(self.port)) if self.gives_port else ()
        key = ("-i", self.private_key) if self.private_key else ()
        user = ("-l", self.user) if self.user else ()
        return (*port, *key, *user, *self.ssh_args)

    def with_sudo_password(self, password: str | None) -> Host:
        """Return the host with a password that the user typed; one of the inventory stands above it, as for Ansible."""
        if password is None or self.sudo_password:
            return self
        return dataclasses.replace(self, sudo_password=password)

    @property
    def cluster_address(self) -> str:
        """What the other nodes use to reach this one: the variable of this name, or the address."""
        return str(self.variables.get("cluster_address") or self.address)

    @property
    def layout(self) -> Layout:
        """Where the software lies, by the variable ``cluster_prefix``."""
        return Layout(str(self.variables.get("cluster_prefix") or DEFAULT_PREFIX))

    @property
    def place(self) -> str:
        """What two inventories that name the same machine agree on: where its sshd listens."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class InventoryOptions:
    """The options of the command line that change what an inventory means, under Ansible's own names."""

    limit: str | None = None
    extra_vars: tuple[str, ...] = ()
    vault_ids: tuple[str, ...] = ()
    vault_password_files: tuple[str, ...] = ()
    user: str | None = None
    private_key: str | None = None
    become: bool = False
    vault_passwords: Mapping[str, str] = field(default_factory=dict, repr=False)  # for each id that says LABEL@prompt

    @property
    def is_plain(self) -> bool:
        """Whether what Ansible says of the inventory may be kept: the options bring no secret and name no file."""
        return not (self.extra_vars or self.vault_ids)


# By the role with whose name a variable begins, the tag that plays all that reads it. Others matter to any role.
ROLES_OF_VARIABLES: Mapping[str, str] = {
    "environment": "environment",
    "fabric": "fabric",
    "horovod": "software",
    "mpi4py": "software",
    "nccl": "software",
    "openmpi": "software",
    "python_env": "software",
    "ucx": "software",
    "validation": "validation",
}
# Of those, the ones that a second role reads: fabric tells UCX the network where Open MPI is built with it.
READ_BY_SEVERAL = frozenset({"openmpi_ucx", "openmpi_cuda", "openmpi_builder"})
PLAYED_ALONE = ("fabric", "environment", "software", "validation")  # those tags, in the playbook's order


@dataclass(frozen=True)
class Inventory:
    """All hosts of the cluster and those that ``--limit`` selects; ``digest`` changes with any variable of any host.

    ``limit`` is the pattern as Ansible takes it, None without one. ``parts`` are digests of parts of what ``digest`` is
    about: by role those of the variables that only this role reads, and by '' all the rest. A role with a template
    among its variables has another one after each change, since a template may read anything.
    """

    sources: InventorySources
    hosts: tuple[Host, ...]
    selected: tuple[str, ...]
    digest: str
    limit: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def host(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    @property
    def selected_hosts(self) -> tuple[Host, ...]:
        """The hosts that ``--limit`` leaves, in the inventory's order."""
        wanted = set(self.selected)
        return tuple(host for host in self.hosts if host.name in wanted)
