"""Do names mean the machines that they should?"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from clusterctl.diagnosis.skew import PROVISION, provisioned
from clusterctl.model import ip_address, nodeset
from clusterctl.model.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import NodeFacts

ORDER = 20
_HOSTS = f"{PROVISION} (role hosts), or correct /etc/hosts or the name server"


def findings(view: View) -> Iterator[Finding]:
    """Return what is wrong with names."""
    yield from _one_machine(view)
    yield from _one_name(view)
    yield from _own(view)
    yield from _of_others(view)


def _one_machine(view: View) -> Iterator[Finding]:
    """Name hosts of the inventory that are one machine: its host keys, its name and an address of its own agree."""
    machines: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, node in view.nodes.items():
        if node.ssh.host_keys and (hardware := _hardware(node)):
            machines[node.hostname, node.ssh.host_keys, hardware].append(name)
    for names in machines.values():
        if len(names) > 1:
            cause = "are names of one and the same machine, which would get the ranks of all of them"
            yield Finding("names", "error", tuple(names), cause, "leave one of them in the inventory")


def _hardware(node: NodeFacts) -> frozenset[str]:
    return frozenset(
        f"{link.mac} {entry.address}"
        for link in node.interfaces
        if link.kind not in {"loopback", "bridge"} and link.mac
        for entry in link.addresses
        if entry.scope == "global"
    )


def _one_name(view: View) -> Iterator[Finding]:
    """Name machines that call themselves the same: launchers tell nodes apart by that."""
    called: dict[str, dict[frozenset[str], str]] = defaultdict(dict)
    for name, node in view.nodes.items():
        if node.hostname:
            called[node.hostname].setdefault(_hardware(node), name)
    for hostname, machines in called.items():
        if len(machines) > 1:
            cause = f"all call themselves {hostname}, and mpirun takes them for one node"
            cure = "give each its own name with 'hostnamectl set-hostname'"
            yield Finding("names", "error", tuple(machines.values()), cause, cure)


def _own(view: View) -> Iterator[Finding]:
    for name, node in view.nodes.items():
        own = next((entry for entry in node.names if entry.name == node.hostname), None)
        if own is None:
            continue
        if not own.addresses:
            yield Finding("names", "error", (name,), f"it cannot resolve its own name ({own.problem})", _HOSTS)
        elif _is_loopback(own.addresses[0]):
            cause = f"its own name leads to {own.addresses[0]}, at which no other node finds it"
            yield Finding("names", "error", (name,), cause, _HOSTS)


def _of_others(view: View) -> Iterator[Finding]:
    owners: dict[str, set[str]] = defaultdict(set)
    for name in view.nodes:
        for address in view.addresses(name):
            owners[address].add(name)
    for looking, node in view.nodes.items():
        known = {entry.name: entry for entry in node.names if entry.name != node.hostname}
        asked = [other for other in view.nodes if other in known and other != looking]
        unknown = [other for other in asked if not known[other].addresses]
        if unknown:
            severity: Severity = "error" if provisioned(node) else "warning"
            whom = "any other node" if len(unknown) == len(view.nodes) - 1 else nodeset.folded(unknown)
            yield Finding("names", severity, (looking,), f"it cannot resolve the name of {whom}", _HOSTS)
        for other in asked:
            yield from _meaning(view, looking, other, known[other].addresses, owners)


def _meaning(
    view: View, looking: str, other: str, addresses: Sequence[str], owners: dict[str, set[str]]
) -> Iterator[Finding]:
    if not addresses or view.addresses(other) & set(addresses):
        return
    if all(_is_loopback(address) for address in addresses):
        cause = f"the name {other} leads it to {addresses[0]}, which is itself"
        yield Finding("names", "error", (looking,), cause, _HOSTS)
        return
    for address in addresses:
        whose = owners.get(address, set()) - {other}
        if len(whose) == 1:
            cause = f"the names {other} and {next(iter(whose))} lead it to one address, {address}"
            yield Finding("names", "error", (looking,), cause, _HOSTS)
            return
    cause = f"the name {other} leads it to {addresses[0]}, which is not an address of {other}"
    yield Finding("names", "warning", (looking,), cause, _HOSTS)  # unless something translates addresses in between


def _is_loopback(address: str) -> bool:
    try:
        return ip_address.parsed(address, may_have_scope=True).is_loopback
    except ValueError:
        return False
