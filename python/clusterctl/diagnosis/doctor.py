"""The verb doctor: look at the hosts, change nothing, say what would hurt.

The story: read the inventory and look at every node and its hardware; then have the nodes connect to each other's ports
and log in to each other; read the counters of the hardware again; and put what was seen into findings. Nothing is
written on any node, and nothing stays running there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.analysis import part_ledger
from clusterctl.diagnosis import hardware, skew, training_stack
from clusterctl.diagnosis.rules import logins as name_rules
from clusterctl.diagnosis.rules import parameters, registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.inventory import ansible_inventory
from clusterctl.model import fabric
from clusterctl.model.findings import Diagnosis
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.job_login import has_own_account, job_host, job_user, through_sudo
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.model.rank_slots import slots_of
from clusterctl.remote import facts, login_probe, network_probe, reach
from clusterctl.state import hardware_looks, paths
from clusterctl.state.certificate_status import Certificates
from clusterctl.support import memory_room
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.fabric import Candidates, PairResult
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.findings import Finding
    from clusterctl.model.hardware import HardwareLooks
    from clusterctl.model.hosts import AnyInventory, Host, Inventory
    from clusterctl.model.probe import FailureKind

# Together with what the controller needs they stay below a minute, and below a minute and a half where a node hangs.
_FACTS_S = 30.0
_LOGIN_S = 5
_LOGINS_S = 15.0
_ANSWER_S = 25.0
# Up to so many hosts, each logs in to all others. Both ends of a login take 0.06 s of processor time.
_ALL_LOGINS_UP_TO = 8
_CONNECT_S = 5.0
_NOT_REACHED: frozenset[FailureKind] = frozenset({"unreachable", "timeout", "refused", "host_key"})


@dataclass(frozen=True)
class DoctorOptions:
    """What the user asked for."""

    inventory: InventoryOptions = field(default_factory=InventoryOptions)
    quick: bool = False  # each host alone, no login session, counters read once


def examine(
    inventory: AnyInventory | Cluster,
    options: DoctorOptions | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> Diagnosis:
    """Look at the hosts of an inventory, provisioned or not.

    Args:
        inventory: the inventory.
        options: what the user asked for.
        tell: hears a short text for every step.

    Raises:
        ConfigError: the inventory or an option is wrong, or this machine lacks open files or memory for so many hosts.
    """
    options = options or DoctorOptions()
    tell("reading the inventory")
    cluster = ansible_inventory.load(inventory, options.inventory)
    started = datetime.now(timezone.utc)
    hosts = cluster.selected_hosts
    if not options.quick:
        memory_room.allow_open_files(len(hosts))
        memory_room.allow_for(len(hosts))
    name = paths.cluster_id(cluster.sources)
    past = hardware_looks.past(name, {host.name for host in hosts}, started)
    with reach.control_folder() as control:
        looking = f"looking at {_hosts(len(hosts))}"
        tell(looking)
        more = {"sessions": not options.quick}
        first = _look(hosts, control, lambda count: tell(f"{looking}, {count} done"), **more)
        probe, closed = as_jobs_see_it(hosts, first, control, **more)
        seen = hardware.look(hosts, probe, past, control)
        view = replace(view_of(cluster, probe), closed_to_jobs=closed)
        if not options.quick:
            view = _between(view, probe, control, tell)
            tell("reading counters a second time")
            seen = hardware.look_again(hosts, seen, control)
    view = with_hardware(view, name, seen)
    findings = skew.ordered((*registry.diagnose(view), *Certificates(cluster).findings(started)))
    kept = _keep(name, view, findings, cluster, started)
    return Diagnosis(
        clusterctl_version=__version__,
        inventory=str(cluster.sources),
        started=started,
        finished=datetime.now(timezone.utc),
        hosts=tuple(host.name for host in hosts),
        unreachable=tuple(name for name, failure in probe.failures.items() if failure.kind in _NOT_REACHED),
        findings=findings,
        notes=(*registry.notes(view), *kept),
    )


def with_hardware(view: View, name: str, seen: Mapping[str, HardwareLooks]) -> View:
    """Return a view with looks at the hardware, and with what became of parts since the last ones."""
    now = {host: looks.now for host, looks in seen.items()}
    return replace(view, hardware=seen, part_changes=part_ledger.changes(hardware_looks.ledger(name), now))


def _keep(name: str, view: View, findings: Sequence[Finding], cluster: Inventory, at: datetime) -> tuple[str, ...]:
    """Keep the looks for later runs and the errors for the history, and return a note where that fails."""
    try:
        moved = hardware_looks.keep(name, {host: looks.now for host, looks in view.hardware.items()}, at)
        return (*moved, *hardware_looks.keep_errors(name, findings, {host.name for host in cluster.hosts}, at))
    except (ConfigError, OSError) as error:
        return (f"What this look found is not kept: {error}",)


def exit_code(found: Diagnosis) -> ExitCode:
    """Return what the command line ends with: 4 (a host is out of reach), 10 (there are findings) or 0."""
    if found.unreachable:
        return ExitCode.UNREACHABLE
    return ExitCode.VALIDATION_FAILED if found.findings else ExitCode.OK


def _look(hosts: Sequence[Host], control: Path, ended: Callable[[int], None], **more: bool) -> Probe:
    by_ssh = [replace(host, become=False) for host in hosts if host.by_ssh]  # what ranks will see: no sudo
    users = {host.name: job_user(host) for host in by_ssh}
    probe = _ask(by_ssh, hosts, control, job_users=users, ended=ended, **more)
    for host in hosts:
        if not host.by_ssh:
            reason = f"{host.name} is not reached by plain ssh with a key: {host.not_by_ssh}"
            why = f"{reason}; give it a key, so that doctor can look."
            probe.failures[host.name] = ProbeFailure(host.name, "error", why)
    return probe


def as_jobs_see_it(
    hosts: Sequence[Host], probe: Probe, control: Path, **more: bool
) -> tuple[Probe, Mapping[str, ProbeFailure]]:
    """Look again where jobs have an account of their own, whose session, limits and files may be others.

    ``more`` are further questions of :class:`facts.Questions`.

    Returns:
        The facts as jobs see them, and why an account could not be logged in to, by host name.
    """
    known = {
        host.name: node.job_user
        for host in hosts
        if has_own_account(host)
        and (node := probe.facts.get(host.name)) is not None
        and node.job_user is not None
        and node.job_user.exists
        and node.job_user.home_answers
        and node.job_user.name != node.user.name
    }
    if not known:
        return probe, {}
    own = _ask([job_host(host) for host in hosts if host.name in known], hosts, control, **more)
    seen = {name: node.model_copy(update={"job_user": known[name]}) for name, node in own.facts.items()}
    return Probe({**probe.facts, **seen}, probe.failures), own.failures


def _ask(asked: Sequence[Host], hosts: Sequence[Host], control: Path, **more: Any) -> Probe:
    return facts.gather(
        asked,
        artifacts=training_stack.ARTIFACTS,
        libraries=training_stack.LIBRARIES,
        resolve=[host.name for host in hosts],
        leftovers=True,
        timeout_s=_FACTS_S,
        control_dir=control,
        **more,
    )


def view_of(cluster: Inventory, probe: Probe) -> View:
    """Return what the facts of the nodes show by themselves, without connections between nodes."""
    hosts = cluster.selected_hosts
    there = [host for host in hosts if host.name in probe.facts]
    found, pinned = _candidates(there, probe.facts)
    return View(
        hosts=hosts,
        nodes=probe.facts,
        failures=probe.failures,
        slots={host.name: slots_of(host, probe.facts[host.name]) for host in there},
        candidates=found,
        pinned=pinned,
        nccl_align={host.name: str(host.variables.get("nccl_align", "framework")) for host in hosts},
    )


def _between(view: View, probe: Probe, control: Path, tell: Callable[[str], None]) -> View:
    """Have the nodes that answer try each other, and return all that was seen."""
    hosts, closed = view.hosts, view.closed_to_jobs
    there = [replace(host, become=False) for host in hosts if host.name in probe.facts]
    tell(f"trying ports between {_hosts(len(there))}")
    pairs = (
        () if view.candidates is None else _pairs(there, view.candidates, control, parameters.tcp_ports(probe.facts))
    )
    rules = (
        {}
        if view.candidates is None
        else network_probe.gather(there, view.candidates, pairs, timeout_s=_ANSWER_S, control_dir=control)
    )
    # Afterwards, not beside it: logins cost processor time, and what starves looks like a firewall.
    plan = _logins(hosts, [host for host in there if host.name not in closed], probe)
    of_all = f"of {sum(len(one.targets) for one in plan)} done"
    tell(f"trying logins between {_hosts(len(there))}, 0 {of_all}")
    tried = login_probe.gather(
        plan,
        login_timeout_s=_LOGIN_S,
        budget_s=_LOGINS_S,
        timeout_s=_ANSWER_S,
        control_dir=control,
        ended=lambda count: tell(f"trying logins between {_hosts(len(there))}, {count} {of_all}"),
    )
    limits = network_probe.TrialLimits(_CONNECT_S, control_dir=control)
    called = network_probe.called(there, view.candidates, limits, name_rules.elsewhere(view)) if view.candidates else ()
    return replace(view, logins=tried, pairs=(*pairs, *called), firewalls=rules)


def _pairs(
    there: Sequence[Host], found: Candidates, control: Path, ports: Mapping[str, Sequence[tuple[int, int]]]
) -> tuple[PairResult, ...]:
    """Have nodes connect to each other, and believe in a failure when it has been seen twice."""
    limits = network_probe.TrialLimits(_CONNECT_S, control_dir=control, ports=ports)
    first = network_probe.probe(there, found, limits)
    return network_probe.confirmed(there, found, replace(limits, connect_s=2 * _CONNECT_S), first)


def _logins(hosts: Sequence[Host], there: Sequence[Host], probe: Probe) -> list[login_probe.Login]:
    """Return which host logs in to which of those that may be up, beginning with the next in the inventory."""
    targets = {
        host.name: login_probe.LoginTarget(host.name, host.cluster_address, _cluster_port(host))
        for host in hosts
        if host.name in probe.facts or probe.failures[host.name].kind not in {"unreachable", "timeout"}
    }
    names = list(targets)
    plan = []
    for host in there:
        others = tuple(targets[name] for name in login_targets(names, names.index(host.name)))
        node = probe.facts[host.name]
        if node.job_user is not None and not node.job_user.exists:  # the next provision makes it
            plan.append(login_probe.Login(host, others))
        else:
            plan.append(login_probe.Login(job_host(host), others, through_sudo(host, node)))
    return plan


def login_targets(names: Sequence[str], at: int) -> tuple[str, ...]:
    """Return the hosts that the one at an index logs in to: all others, or in a larger cluster three of them.

    The three are the next host, and those about a quarter and half way round. So three hosts log in to each, and no
    two hosts log in to each other. A host with a fault is told from one pair that does not get on.
    """
    others = (*names[at + 1 :], *names[:at])
    count = len(names)
    return others if count <= _ALL_LOGINS_UP_TO else (others[0], others[count // 4], others[(count - 1) // 2 - 1])


def _cluster_port(host: Host) -> int:
    given = str(host.variables.get("cluster_port") or host.port)
    return int(given) if given.isdigit() else host.port


def _candidates(there: Sequence[Host], nodes: Mapping[str, NodeFacts]) -> tuple[Candidates | None, str]:
    """Return the networks to try, and why what was pinned cannot be taken."""
    if len(there) < 2:  # noqa: PLR2004 - a network joins two
        return None, ""
    cidrs = _words([host.variables.get("fabric_cidr") for host in there])
    interfaces = _words([host.variables.get("fabric_interfaces") for host in there])
    try:
        found = fabric.candidates(dict(nodes), cidrs=cidrs, interfaces=interfaces)
        return fabric.with_written(found, nodes), ""
    except ConfigError as error:
        return None, str(error).rstrip(".")


def _words(given: Sequence[Any]) -> tuple[str, ...]:
    """Return the words of variables that are a text, a list or nothing, each once."""
    found: list[str] = []
    for value in given:
        found += value.replace(",", " ").split() if isinstance(value, str) else map(str, value or ())
    return tuple(dict.fromkeys(found))


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"
