"""What the user asks of a run that changes hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from clusterctl.model.hosts import InventoryOptions
from clusterctl.provisioning.look import EVERY_SLICE
from clusterctl.provisioning.playbook import DEFAULT_FORKS
from clusterctl.provisioning.shared_cache import NO_SHARED_CACHE, SharedCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.hosts import AnyInventory, Host
    from clusterctl.provisioning import partial
    from clusterctl.provisioning.timing import Stopwatch


@dataclass(frozen=True)
class HostRequest:
    """What the user asked of every run that changes hosts."""

    inventory: AnyInventory | Cluster  # read once by whoever needs it first
    options: InventoryOptions = field(default_factory=InventoryOptions)
    check: bool = False
    diff: bool = False
    skip_unreachable: bool = False  # leave out hosts that cannot be reached
    verbosity: int = 0  # how much Ansible writes into its log
    forks: int = DEFAULT_FORKS
    become_password: str | None = field(default=None, repr=False)
    ca_passphrase: str | None = field(default=None, repr=False)
    argv: tuple[str, ...] = ()  # as it may be shown and kept: no value of an extra variable
    adopt: bool = False  # take over nodes of another cluster
    take_lock: bool = False  # take the lock of a run that the user knows to be dead


AskedAfter: TypeAlias = "Callable[[Sequence[Host]], Mapping[str, Any]]"


@dataclass(frozen=True, kw_only=True)
class ProvisionRequest(HostRequest):
    """What the user asked for."""

    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    trust_snapshots: bool = False  # in check mode, ask Ansible only where a host is not as its last run left it
    verify: bool = False  # compare the content of every watched file
    every_role: bool = False  # play all roles on all hosts, also where nothing differs
    slices: tuple[int, ...] = ()  # compare the content of these slices only
    while_busy: bool = False  # switch links also where jobs run
    max_fail: partial.Amount | None = None  # None: the others finish, however many hosts fail
    batch: partial.Amount | None = None  # None: all hosts at once
    workers: str = ""  # other controllers that play a part: an inventory of them, or their names
    cache: SharedCache = NO_SHARED_CACHE  # in place of the inventory's
    asked_after: AskedAfter | None = None  # what the look after the run asks, so that a validation can use it
    stopwatch: Stopwatch | None = None  # measures the stages; the record then has them

    @property
    def content(self) -> tuple[int, ...]:
        """The slices of the artifacts' files whose content is compared."""
        return EVERY_SLICE if self.verify else self.slices

    @property
    def is_full(self) -> bool:
        """Whether a success leaves the hosts in the state that the inventory asks for."""
        return not (self.tags or self.skip_tags or self.check)
