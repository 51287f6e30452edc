"""Types of an inventory: hosts, the options that change its meaning, and the inventory itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_SSH_CONNECTIONS = frozenset({"ssh", "smart", "ansible.builtin.ssh"})


@dataclass(frozen=True)
class Host:
    """One machine of the inventory, with what is needed to reach it by ssh.

    ``address`` is what ssh connects to; ``cluster_address`` what the other nodes use (the variable
    ``cluster_address``, or the address). ``slots`` is the inventory's own count of ranks, None where it gives none.
    """

    name: str
    address: str
    port: int = 22
    user: str | None = None
    connection: str = "ssh"
    private_key: str | None = None
    ssh_args: tuple[str, ...] = ()
    python: str = "/usr/bin/python3"
    become: bool = False
    become_user: str = "root"
    has_secret_login: bool = False  # a password in the inventory: only Ansible may use it
    is_templated: bool = False  # a connection variable holds an expression: only Ansible can work it out
    slots: int | None = None
    variables: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def by_ssh(self) -> bool:
        """Whether a plain ssh client can do what Ansible's connection does."""
        return self.connection in _SSH_CONNECTIONS and not self.has_secret_login and not self.is_templated

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


@dataclass(frozen=True)
class Inventory:
    """All hosts of the cluster and those that ``--limit`` selects; ``digest`` changes with any variable of any host."""

    path: Path
    hosts: tuple[Host, ...]
    selected: tuple[str, ...]
    digest: str

    def host(self, name: str) -> Host:
        """Return the host of that name.

        Raises:
            KeyError: there is none.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    @property
    def selected_hosts(self) -> tuple[Host, ...]:
        """The hosts that ``--limit`` leaves, in the inventory's order."""
        wanted = set(self.selected)
        return tuple(host for host in self.hosts if host.name in wanted)
