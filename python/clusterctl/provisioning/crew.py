"""Other controllers that take part in a run: which they are, what they must have, and which nodes are theirs."""

from __future__ import annotations

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import InventorySources, is_host_list
from clusterctl.provisioning import shares
from clusterctl.provisioning.worker import NAME
from clusterctl.remote import python, ssh, ssh_failure
from clusterctl.state import runs
from clusterctl.support import content
from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.inventory.ansible_inventory import ReadInventory
    from clusterctl.model.hosts import Host, Inventory, InventoryOptions
    from clusterctl.provisioning.host_run import RunObserver
    from clusterctl.provisioning.shares import Shares

NODES = "worker_nodes"  # variable of a worker: a pattern for its nodes, as --limit takes it
_PYTHON = "ansible_python_interpreter"
_INVENTORIES = {".ini", ".yml", ".yaml"}
_MODULE = "clusterctl.provisioning.worker"
_CHECK_S = 60
_VERSION = r"^[A-Za-z0-9.+!_-]{0,80}$"
_MOST_CACHED = 100_000
_SSH_FAILED = 255
_NOTICE_SILENCE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")


class _Installed(BaseModel):
    """What a worker says of itself; nothing else of its answer is used."""

    model_config = ConfigDict(strict=True)

    clusterctl: str = Field(pattern=_VERSION)
    ansible_core: str = Field(alias="ansible-core", pattern=_VERSION)
    ansible_runner: str = Field("", alias="ansible-runner", pattern=_VERSION)
    content: str = Field(pattern=r"^[0-9a-f]{0,128}$")
    playbooks: str = Field(pattern=r"^/[^\x00-\x1f\x7f]{0,4000}$")
    cached: list[Annotated[str, Field(pattern=f"^{NAME.pattern}$", max_length=300)]] = Field(
        [], max_length=_MOST_CACHED
    )


@dataclass(frozen=True)
class Worker:
    """Another controller, ready to play.

    Attributes:
        host: where it is.
        playbooks: the folder of the playbooks there.
        cached: the records of packs and the locks that its cache has.
    """

    host: Host
    playbooks: str
    cached: frozenset[str]

    def argv(self, *words: str) -> list[str]:
        """Return the command that runs our program there."""
        return _argv(self.host, *words)


def _argv(host: Host, *words: str) -> list[str]:
    lasting = dataclasses.replace(host, ssh_args=(*host.ssh_args, *_NOTICE_SILENCE))
    return ssh.command(lasting, [host.python, "-m", _MODULE, *words])


# --- which workers, and which nodes are theirs ------------------------------------------------------------------------


def named(word: str) -> tuple[Host, ...]:
    """Return the hosts of ``--workers``: an inventory of them, or their names.

    Raises:
        ConfigError: the inventory cannot be read, or only Ansible could reach one of them.
    """
    source = word
    if not is_host_list(word) and not Path(word).exists():
        if "/" in word or Path(word).suffix in _INVENTORIES:
            raise ConfigError(
                f"--workers names {word}, which does not exist; give an inventory of the workers, or their names."
            )
        source = f"{word},"
    found = ansible_inventory.load(InventorySources((source,)))
    for host in found.hosts:
        if not host.by_ssh:
            raise ConfigError(f"The worker {host.name} must be reached by a plain ssh, but {host.not_by_ssh}.")
    return tuple(
        host if _PYTHON in host.variables else dataclasses.replace(host, python=sys.executable) for host in found.hosts
    )


def divide(workers: Sequence[Host], cluster: Inventory, read: ReadInventory, options: InventoryOptions) -> Shares:
    """Return who plays which hosts of a run.

    Raises:
        ConfigError: a pattern matches no host, two match the same, or a worker lacks one that the others have.
    """
    patterns = {host.name: str(host.variables[NODES]) for host in workers if host.variables.get(NODES)}
    if not patterns:
        only_here = [host.name for host in cluster.hosts if not host.by_ssh]
        return shares.equal(cluster.selected, [host.name for host in workers], only_here)
    if lacking := [host.name for host in workers if host.name not in patterns]:
        raise ConfigError(f"Of the workers, {lacking[0]} lacks {NODES}; set it for each of them, or for none.")
    wanted = {}
    for name, pattern in patterns.items():
        try:
            wanted[name] = read.limited(dataclasses.replace(options, limit=pattern)).selected
        except ConfigError as error:
            raise ConfigError(f"{NODES} of the worker {name} cannot be used: {error}") from None
    try:
        found = shares.by_pattern(cluster.selected, wanted)
    except ValueError as error:
        raise ConfigError(f"In {NODES}, {error}") from None
    for host in cluster.selected_hosts:
        if not host.by_ssh and host.name not in found[shares.OWN]:
            raise ConfigError(
                f"In {NODES}, {host.name} is given away, but {host.not_by_ssh}, so only this controller reaches it."
            )
    return found


def ready(hosts: Sequence[Host]) -> dict[str, Worker]:
    """Ask all workers what they have, at the same time; nothing is changed there.

    Raises:
        ConfigError: a worker lacks clusterctl or Ansible, or has another version of them.
        UnreachableError: a worker does not answer.
    """
    with ThreadPoolExecutor(max(1, len(hosts))) as pool:
        return dict(zip((host.name for host in hosts), pool.map(_ready, hosts), strict=True))


def _ready(host: Host) -> Worker:
    reply = python.ask(_argv(host, "check"), b"", _CHECK_S, ("clusterctl", "ansible-core", "content", "playbooks"))
    if reply.answer is None:
        raise _refusal(host, reply)
    try:
        there = _Installed.model_validate(reply.answer)
    except ValidationError as error:
        where = ", ".join(sorted({str(one["loc"][0]) for one in error.errors(include_input=False)}))
        raise ConfigError(
            f"The worker {host.name} gave an answer that no clusterctl gives ({where}); reinstall clusterctl there."
        ) from None
    here = runs.versions()
    install = f"install clusterctl {here['clusterctl']} there, with ansible-core {here['ansible-core']}"
    if not there.ansible_runner:
        raise ConfigError(f"The worker {host.name} has no ansible-runner beside {host.python}; {install}.")
    for name, its in (("clusterctl", there.clusterctl), ("ansible-core", there.ansible_core)):
        if its != here[name]:
            has = f"{name} {its}" if its else f"no {name}"
            raise ConfigError(f"The worker {host.name} has {has}, and this controller has {here[name]}; {install}.")
    if there.content != content.digest():
        raise ConfigError(
            f"The worker {host.name} has other roles or plugins in its collection than this controller; install the "
            "same build of clusterctl on both."
        )
    return Worker(host, there.playbooks, frozenset(there.cached))


def _refusal(host: Host, reply: python.Reply) -> ConfigError | UnreachableError:
    errors = "" if reply.done is None else reply.done.errors.decode("utf-8", "replace")
    if reply.done is None or reply.done.returncode == _SSH_FAILED:
        words = f"it {reply.problem}; see whether it hangs: {ssh_failure.by_hand(host)}."
        if reply.done is not None:
            words = ssh_failure.classify(host, _SSH_FAILED, errors).message
        return UnreachableError(f"The worker {host.name} cannot be used: {words}")
    which = f"name the Python of its environment as {_PYTHON} in the inventory of the workers"
    if "No module named" in errors and "clusterctl" not in reply.problem:
        return ConfigError(f"The worker {host.name} lacks a package ({reply.problem}); reinstall clusterctl there.")
    if "No module named" in errors:
        return ConfigError(f"The worker {host.name} has no clusterctl in {host.python}, or an older one; {which}.")
    if host.python in errors:
        return ConfigError(f"The worker {host.name} has no {host.python}; {which}.")
    return ConfigError(f"The worker {host.name} cannot be used: {reply.problem}.")


@dataclass
class Crew:
    """The workers of a run; without one, it is false.

    Attributes:
        hosts: where they are.
        shares: who plays which hosts.
        workers: those that are ready, by name.
    """

    hosts: tuple[Host, ...] = ()
    shares: Shares = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)

    @classmethod
    def of(cls, word: str, cluster: Inventory, read: ReadInventory, options: InventoryOptions) -> Crew:
        """Return the workers that ``--workers`` names, and their nodes.

        Raises:
            ConfigError: see :func:`named` and :func:`divide`.
        """
        if not word:
            return cls()
        hosts = named(word)
        return cls(hosts, divide(hosts, cluster, read, options))

    def __bool__(self) -> bool:
        """Whether there is a worker."""
        return bool(self.hosts)

    def get_ready(self, observer: RunObserver) -> None:
        """Ask the workers what they have.

        Raises:
            ConfigError: a worker cannot be used.
            UnreachableError: a worker does not answer.
        """
        if self.hosts:
            observer.phase(f"looking at the workers {', '.join(host.name for host in self.hosts)}")
            self.workers = ready(self.hosts)
