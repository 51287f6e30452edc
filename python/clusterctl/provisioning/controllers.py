"""Several controllers in a run: which they are, what they must have, whose hosts are whose, and who plays when.

Hosts are divided by the inventory's groups, or in equal parts. All hosts meet first. The builders go ahead on the first
controller, so that its cache has what they installed, and the other controllers compile nothing.
"""

from __future__ import annotations

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import InventorySources, is_host_list
from clusterctl.model.nodeset import folded
from clusterctl.provisioning import batches_and_losses
from clusterctl.provisioning.worker import NAME
from clusterctl.remote import python, reach, ssh_failure
from clusterctl.state import runs
from clusterctl.support import content
from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from clusterctl.inventory.ansible_inventory import ReadInventory
    from clusterctl.model.hosts import Host, Inventory, InventoryOptions
    from clusterctl.model.run_record import RunObserver
    from clusterctl.provisioning.playbook import End

Shares: TypeAlias = "dict[str, tuple[str, ...]]"  # hosts by the name of the worker
OWN = ""  # the first controller's own share


def by_pattern(hosts: Sequence[str], wanted: Mapping[str, Collection[str]]) -> Shares:
    """Return the hosts of each worker, and under :data:`OWN` those that no worker names.

    ``wanted`` has by worker the hosts that its pattern names; hosts of another run are left out.

    Raises:
        ValueError: two workers name the same host; its text is a sentence.
    """
    found: Shares = {}
    owner: dict[str, str] = {}
    for worker, its in wanted.items():
        if twice := [name for name in hosts if name in its and name in owner]:
            raise ValueError(
                f"{owner[twice[0]]} and {worker} both name {folded(twice)}; leave each host to one of the workers."
            )
        found[worker] = tuple(name for name in hosts if name in its)
        owner.update(dict.fromkeys(found[worker], worker))
    return {OWN: tuple(name for name in hosts if name not in owner), **found}


def equal(hosts: Sequence[str], workers: Sequence[str], only_here: Collection[str] = ()) -> Shares:
    """Return the hosts in parts of equal size, for the first controller and each worker.

    Neighbours in the inventory's order stay together. The hosts ``only_here``, which only the first controller can
    reach, count as a part of its share.
    """
    here = [name for name in hosts if name in only_here]
    rest = [name for name in hosts if name not in only_here]
    most = -(-len(hosts) // (1 + len(workers)))
    own = max(0, most - len(here))
    found = {OWN: tuple(name for name in hosts if name in {*here, *rest[:own]})}
    at = own
    for left, worker in zip(range(len(workers), 0, -1), workers, strict=True):
        size = -(-(len(rest) - at) // left)
        found[worker] = tuple(rest[at : at + size])
        at += size
    return found


def without(found: Shares, hosts: Collection[str]) -> Shares:
    return {worker: tuple(name for name in its if name not in hosts) for worker, its in found.items()}


def words(found: Shares) -> str:
    """Return who plays what, for people."""
    shown = {worker or "this controller": its for worker, its in found.items() if its}
    return "; ".join(f"{worker}: {folded(its)}" for worker, its in shown.items())


@dataclass(frozen=True)
class SharedRun:
    """How it ended: all plays as one, who got which hosts, and a sentence where the workers did not begin."""

    end: End
    shares: Shares = field(default_factory=dict)
    message: str = ""


def share(
    found: Shares, builders: Collection[str], meet: Callable[[], End], parts: Callable[[Shares], Sequence[End]]
) -> SharedRun:
    """Play the three steps; the first that goes wrong for another reason than single hosts is the last.

    The ``builders`` go ahead, on the first controller. ``meet`` plays what needs the facts of all hosts, on all of
    them, and ``parts`` the rest, on all controllers that have a host.
    """
    ends = [meet()]
    if _is_over(ends[-1]):
        return SharedRun(ends[-1])
    lost = batches_and_losses.lost_hosts(ends)
    first = tuple(name for its in found.values() for name in its if name in builders and name not in lost)
    if first:
        ends += parts({OWN: first})
        if failed := batches_and_losses.lost_hosts(ends[1:]):
            words = f"The workers did not begin, because {folded(failed)} failed, which goes ahead of the others."
            return SharedRun(batches_and_losses.as_one(ends), message=words)
        if _is_over(ends[-1]):
            return SharedRun(batches_and_losses.as_one(ends))
    rest = without(found, {*builders, *lost})
    if any(rest.values()):
        ends += parts(rest)
    return SharedRun(batches_and_losses.as_one(ends), rest)


def _is_over(end: End) -> bool:
    """Whether a play was stopped, or ended badly for another reason than single hosts."""
    return end.status == "canceled" or (end.rc != 0 and not batches_and_losses.lost_hosts([end]))


NODES = "worker_nodes"  # variable of a worker: a pattern for its nodes, as --limit takes it
_PYTHON = "ansible_python_interpreter"
_INVENTORIES = {".ini", ".yml", ".yaml"}
_MODULE = "clusterctl.provisioning.worker"
_CHECK_S = 60
_VERSION = r"^[A-Za-z0-9.+!_-]{0,80}$"
_MOST_CACHED = 100_000
_SSH_FAILED = 255


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
    """Another controller, ready to play."""

    host: Host  # where it is
    playbooks: str  # the folder of the playbooks there
    cached: frozenset[str]  # the records of packs and the locks that its cache has

    def argv(self, *words: str) -> list[str]:
        """Return the command that runs our program there."""
        return _argv(self.host, *words)


def _argv(host: Host, *words: str) -> list[str]:
    return reach.ssh_command(reach.lasting(host), [host.python, "-m", _MODULE, *words])


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
        return equal(cluster.selected, [host.name for host in workers], only_here)
    if lacking := [host.name for host in workers if host.name not in patterns]:
        raise ConfigError(f"Of the workers, {lacking[0]} lacks {NODES}; set it for each of them, or for none.")
    wanted = {}
    for name, pattern in patterns.items():
        try:
            wanted[name] = read.limited(dataclasses.replace(options, limit=pattern)).selected
        except ConfigError as error:
            raise ConfigError(f"{NODES} of the worker {name} cannot be used: {error}") from None
    try:
        found = by_pattern(cluster.selected, wanted)
    except ValueError as error:
        raise ConfigError(f"In {NODES}, {error}") from None
    for host in cluster.selected_hosts:
        if not host.by_ssh and host.name not in found[OWN]:
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
class Controllers:
    """The workers of a run; without one, it is false."""

    hosts: tuple[Host, ...] = ()  # where they are
    shares: Shares = field(default_factory=dict)  # who plays which hosts
    workers: dict[str, Worker] = field(default_factory=dict)  # those that are ready, by name

    @classmethod
    def of(cls, word: str, cluster: Inventory, read: ReadInventory, options: InventoryOptions) -> Controllers:
        """Return the workers that ``--workers`` names, and their nodes.

        Raises:
            ConfigError: see :func:`named` and :func:`divide`.
        """
        if not word:
            return cls()
        hosts = named(word)
        return cls(hosts, divide(hosts, cluster, read, options))

    def __bool__(self) -> bool:
        return bool(self.hosts)

    def get_ready(self, observer: RunObserver) -> None:
        """Ask the workers what they have."""
        if self.hosts:
            observer.phase(f"looking at the workers {', '.join(host.name for host in self.hosts)}")
            self.workers = ready(self.hosts)
