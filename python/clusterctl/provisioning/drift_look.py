"""The verb drift: compare every host with what its last run left, and change nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.model.drift import DriftReport
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.nodeset import folded
from clusterctl.provisioning import drift, plan, refusals
from clusterctl.provisioning.look import EVERY_SLICE, look, state_of
from clusterctl.state import locks, paths, snapshots
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.hosts import AnyInventory, Inventory
    from clusterctl.model.probe import Probe
    from clusterctl.model.snapshot import HostSnapshot

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

    Raises:
        ConfigError: the inventory is wrong, another run holds a host, or no host was provisioned.
    """
    cluster = ansible_inventory.load(request.inventory, request.options)
    refusals.check_files(cluster, request.options)
    cluster = replace(cluster, hosts=cluster.selected_hosts)
    with locks.HostLock(cluster.hosts, _COMMAND):
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
            after = drift.with_damage(before, states, everything=True)
            if after != before:
                snapshots.write(cluster_id, after)
    return _report(request, cluster, before.hosts, probe)


def exit_code(report: DriftReport) -> ExitCode:
    """Return 4 where a host did not answer, 2 where one could not be looked at, 10 for drift, else 0."""
    if report.unreachable:
        return ExitCode.UNREACHABLE
    if report.failed:
        return ExitCode.HOST_FAILED
    return ExitCode.VALIDATION_FAILED if report.hosts or report.unknown else ExitCode.OK


def _report(request: DriftRequest, cluster: Inventory, known: dict[str, HostSnapshot], probe: Probe) -> DriftReport:
    problems = {name: refusals.connection_problem(failure) for name, failure in probe.failures.items()}
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
            found[name] = drift.known_differences(known[name], state_of(probe.facts[name]), verified=request.verify)
    return DriftReport(
        inventory=str(cluster.sources),
        compared=tuple(found),
        verified=request.verify,
        hosts={name: differences for name, differences in found.items() if differences},
        unknown=unknown,
        unreachable=tuple(name for name, problem in problems.items() if problem.kind == "unreachable"),
        failed=tuple(failed),
    )
