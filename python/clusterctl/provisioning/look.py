"""Look at the hosts before a decision, and the request that decides; the verb drift is a look alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from clusterctl.diagnosis.rules import launchable, machine
from clusterctl.diagnosis.skew import PROVISION
from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.nodeset import folded
from clusterctl.model.snapshot import SLICES, DriftReport, NodeState
from clusterctl.provisioning import plan, playbook
from clusterctl.provisioning.playbook import DEFAULT_FORKS
from clusterctl.remote import facts, reach
from clusterctl.remote.shared_cache.exchange import NO_SHARED_CACHE, SharedCache
from clusterctl.state import locks, paths, snapshots
from clusterctl.support.errors import ConfigError, ExitCode, LockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.facts import Limit, NodeFacts
    from clusterctl.model.hosts import AnyInventory, Host, Inventory
    from clusterctl.model.probe import Probe
    from clusterctl.model.snapshot import HostSnapshot
    from clusterctl.provisioning import batches_and_losses
    from clusterctl.provisioning.task_results import Stopwatch


EVERY_SLICE = tuple(range(SLICES))
_TIMEOUT_S = 30.0
_READING_TIMEOUT_S = 1800.0  # tens of gigabytes from a slow disk
_LIMITS = {"nofile": "limit of open files", "memlock": "limit of locked memory"}


def look(
    cluster: Inventory,
    watch: Mapping[str, Sequence[dict[str, Any]]],
    *,
    content: Sequence[int] = (),
    busy: bool = False,
    sudo_password: str | None = None,
    also: Mapping[str, Any] | None = None,
    connections: Path | None = None,
) -> Probe:
    """Look at all hosts that a plain ssh can reach, also those outside the limit: the others refer to them.

    ``watch`` has by host the entries of its snapshot. ``content`` are the slices of the artifacts' files whose content
    is compared. With ``busy``, ranks and processes that use an artifact are found as well. ``also`` asks more, as for
    ``facts.gather``; its watched entries take the place of those of the snapshots. ``connections`` is the folder of
    connections that others go on with; None is for sessions of their own.
    """
    hosts = [host.with_sudo_password(sudo_password) for host in cluster.hosts if host.by_ssh]
    hosts = hosts if connections is None else [reach.lasting(host) for host in hosts]
    patience_s = _READING_TIMEOUT_S if content else _TIMEOUT_S
    asked: dict[str, Any] = {"watch": watch, **(also or {}), "content": content, "busy": busy}
    return facts.gather(hosts, **asked, timeout_s=patience_s, control_dir=connections)


def state_of(node: NodeFacts) -> NodeState:
    """Return what of a node's facts decides."""
    return NodeState(
        platform=node.platform,
        host_keys=tuple(node.ssh.host_keys),
        user=node.user.name,
        watch=tuple(plain(entry) for entry in node.watch),
        gpus=_gpus(node),
        lost_address=_lost_address(node),
        addresses=frozenset(entry.address for link in node.interfaces for entry in link.addresses),
        traits=_traits(node),
        offers=_offers(node),
    )


def session_warnings(nodes: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """Return what sessions lack after a run, a sentence each: a start-up file may undo what a role has written.

    Another run is no cure for it.
    """
    found = [*machine.sessions(nodes), *(one for name, node in nodes.items() for one in launchable.login(name, node))]
    told: dict[str, list[str]] = {}
    for one in found:
        cure = ", or ".join(way for way in one.cure.split(", or ") if PROVISION not in way)
        told.setdefault(f"{one.cause}; {cure}.", []).extend(one.hosts)
    return tuple(f"On {folded(hosts)}, {words}" for words, hosts in told.items())


def plain(value: Any) -> dict[str, Any]:
    """Return a record as a dict for JSON."""
    data = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return dict(data)


def _traits(node: NodeFacts) -> dict[str, str]:
    found = {"host name": node.hostname}
    found.update({_LIMITS[name]: _limit(node.limits[name]) for name in _LIMITS if name in node.limits})
    found.update({f"limit '{name}'": value for name, value in node.limit_settings.items()})
    found.update({f"sshd's {name}": value for name, value in node.ssh.settings.items()})
    return found


def _limit(limit: Limit) -> str:
    soft, hard = ("unlimited" if value is None else str(value) for value in (limit.soft, limit.hard))
    return soft if soft == hard else f"{soft} of at most {hard}"


def _offers(node: NodeFacts) -> str:
    """Return what of a node decides about the builds of its cluster, as the role preflight describes its members."""
    found = {
        node.platform: True,
        "RDMA": bool(node.rdma),
        "gdrcopy": bool(node.tools.get("gdrcopy")),
        "libcuda": node.cuda.libcuda,
        f"CUDA toolkit {node.cuda.toolkit_version}": bool(node.cuda.toolkit_version),
        f"driver {node.cuda.driver_version} for CUDA {node.cuda.major}": bool(node.cuda.driver_version),
        f"GPUs {_gpus(node)}": bool(_gpus(node)),
    }
    return ", ".join(words for words, there in found.items() if there)


def _lost_address(node: NodeFacts) -> str:
    if node.fabric is None:
        return ""
    links = [link for link in node.interfaces if link.name == node.fabric.interface]
    present = {entry.address for link in links for entry in link.addresses}
    return "" if node.fabric.address in present else node.fabric.address


def _gpus(node: NodeFacts) -> str:
    taken = [gpu for gpu in node.gpus if gpu.usable]
    instances = sum(len(gpu.instances) for gpu in taken)
    split = f" in {instances} MIG instances" if instances else ""
    return f"{len(taken)}{split} with driver {node.cuda.driver_version}" if taken else ""


# --- What the user asks of a run that changes hosts -------------------------------------------------------------------


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
    max_fail: batches_and_losses.Amount | None = None  # None: the others finish, however many hosts fail
    batch: batches_and_losses.Amount | None = None  # None: all hosts at once
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


# --- The verb drift: compare every host with what its last run left, and change nothing -------------------------------

_COMMAND = "clusterctl drift"


@dataclass(frozen=True)
class DriftRequest:
    """What the user asked for; ``verify`` reads every watched file to its last byte."""

    inventory: AnyInventory | Cluster
    options: InventoryOptions = field(default_factory=InventoryOptions)
    verify: bool = False
    sudo_password: str | None = field(default=None, repr=False)


def examine(request: DriftRequest) -> DriftReport:
    """Compare the selected hosts with their snapshots.

    A difference that only a comparison of contents shows is kept, so that the next plain ``provision`` repairs it.

    A plain look changes nothing. So it may look while another run holds a host, and the report has a note of that.

    Raises:
        ConfigError: the inventory is wrong, no host was provisioned, or contents are to be compared while another run
            holds a host.
    """
    cluster = ansible_inventory.load(request.inventory, request.options)
    playbook.check_files(cluster, request.options)
    cluster = replace(cluster, hosts=cluster.selected_hosts)
    notes: list[str] = []
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locks.HostLock(cluster.hosts, _COMMAND))
        except LockedError as error:
            if request.verify:
                raise
            notes.append(f"{str(error).partition(';')[0]}; what differs may be its doing.")
        cluster_id = paths.cluster_id(cluster.sources)
        before = snapshots.read(cluster_id)
        names = [host.name for host in cluster.hosts]
        if not any(name in before.hosts for name in names):
            raise ConfigError(
                f"{folded(names)}: {plan.NOT_PROVISIONED}; run 'clusterctl provision {cluster.sources.shown}' first."
            )
        probe = look(
            cluster,
            {name: host.watch for name, host in before.hosts.items()},
            content=EVERY_SLICE if request.verify else (),
            sudo_password=request.sudo_password,
        )
        if request.verify:
            states = {name: state_of(node) for name, node in probe.facts.items()}
            after = plan.with_damage(before, states, everything=True)
            if after != before:
                snapshots.write(cluster_id, after)
    return _report(request, cluster, before.hosts, probe).model_copy(update={"notes": tuple(notes)})


def exit_code(report: DriftReport) -> ExitCode:
    """Return 4 where a host did not answer, 2 where one could not be looked at, 10 for drift, else 0."""
    if report.unreachable:
        return ExitCode.UNREACHABLE
    if report.failed:
        return ExitCode.HOST_FAILED
    return ExitCode.VALIDATION_FAILED if report.hosts or report.unknown else ExitCode.OK


def _report(request: DriftRequest, cluster: Inventory, known: dict[str, HostSnapshot], probe: Probe) -> DriftReport:
    problems = {name: playbook.connection_problem(failure) for name, failure in probe.failures.items()}
    found = {}
    unknown = {}
    failed = [name for name, problem in problems.items() if problem.kind != "unreachable"]
    for name in (host.name for host in cluster.hosts):
        if name in problems:
            unknown[name] = problems[name].problem
        elif name not in known:
            unknown[name] = plan.NOT_PROVISIONED
        elif name not in probe.facts:
            unknown[name] = "it can be looked at through Ansible only"
            failed.append(name)
        else:
            found[name] = plan.known_differences(known[name], state_of(probe.facts[name]), verified=request.verify)
    return DriftReport(
        inventory=str(cluster.sources),
        compared=tuple(found),
        verified=request.verify,
        hosts={name: differences for name, differences in found.items() if differences},
        unknown=unknown,
        unreachable=tuple(name for name, problem in problems.items() if problem.kind == "unreachable"),
        failed=tuple(failed),
    )
