"""RDMA devices and ports beside those of other nodes: which are there, state, rate, MTU, partitions, firmware.

Nodes of one kind are compared, which have equal boards.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import alike
from clusterctl.diagnosis.skew import compare
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, majority
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware

ORDER = 31
_SHOWN = 4
_CABLE = "reseat or replace the cable, then look at the port of the switch"
_WAITING = frozenset({"INIT", "ARMED"})  # the link is up, and the subnet manager has not activated it


def findings(view: View) -> Iterator[Finding]:
    """Return what differs, nodes without a card, and ports of InfiniBand without a subnet manager or on one lane."""
    yield from alike.without(view, "rdma_device", "rdma_ports", "rdma", "RDMA card")
    for group in alike.groups(view, least=1):
        seen = {host: look for host, look in group.items() if look.devices("rdma_device")}
        yield from _missing(seen)
        yield from _firmware(seen)
        states = _by_port(seen, "state")
        for port, found in states.items():
            yield from _state(port, found, seen)
        yield from _rates(seen, states)
        yield from _settings(seen, states)


def _by_port(seen: Mapping[str, Hardware], name: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for host, look in seen.items():
        for port, value in look.values("rdma_port", name).items():
            found[port][host] = str(value)
    return found


def _missing(seen: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Name devices that most nodes have; two machines with as many devices in other slots are alike."""
    places = {host: _places(look) for host, look in seen.items() if not look.odd_ones("rdma_device", "place")}
    found = majority({host: frozenset(own) for host, own in places.items()})
    if found.usual is None:
        counts = {host: f"{len(own)} devices" for host, own in places.items()}
        cure = "look with 'lspci' and in the kernel's log for a card that dropped out"
        yield from compare("rdma", "error", "the number of RDMA devices", counts, cure)
        return
    for own, hosts in found.others.items():
        lacking = sorted(found.usual - own)
        if len(own) < len(found.usual):
            usual = next(own for own in places.values() if frozenset(own) == found.usual)
            shown = and_more((f"{usual[place]} ({place})" for place in lacking), _SHOWN)
            cause = f"{len(own)} RDMA devices, and {len(found.usual)} on most nodes; missing: {shown}"
            yield Finding(
                "rdma", "error", hosts, cause, "look with 'lspci' and in the kernel's log, then reseat the card"
            )


def _places(look: Hardware) -> dict[str, str]:
    """Return the names of devices by their PCI address."""
    return {place or device: device for device, place in look.texts("rdma_device", "place").items()}


def _firmware(seen: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Compare the firmware of all cards of one board, and the boards of the devices of one name."""
    boards: dict[str, dict[str, str]] = defaultdict(dict)
    versions: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for host, look in seen.items():
        firmware = look.texts("rdma_device", "fw_ver")
        for device, board in look.texts("rdma_device", "board_id").items():
            boards[device][host] = board
            if device in firmware:
                versions[board][host, device] = firmware[device]
    for device, found in boards.items():
        cure = "replace the odd card, or run jobs on nodes with the same cards"
        yield from compare("rdma", "warning", f"the board of {device}", found, cure)
    cure = "flash the same firmware on all cards of this board ('mlxfwmanager -u', 'flint')"
    for board, cards in versions.items():
        spread = majority(cards)
        by_version = {version: tuple(dict.fromkeys(own for own, _ in held)) for version, held in spread.others.items()}
        if by_version and spread.usual is None:
            shown = ", ".join(f"{version} on {nodeset.folded(hosts)}" for version, hosts in by_version.items())
            cause = f"the firmware of cards of board {board} differs, with no majority: {shown}"
            yield Finding("firmware", "warning", tuple(dict.fromkeys(own for own, _ in cards)), cause, cure)
            continue
        for version, hosts in by_version.items():
            for host in hosts:
                shown = and_more((device for own, device in spread.others[version] if own == host), _SHOWN)
                cause = f"the firmware of {shown} (board {board}) is {version}, and {spread.usual} on most"
                yield Finding("firmware", "warning", (host,), cause, cure)


def _state(port: str, found: Mapping[str, str], seen: Mapping[str, Hardware]) -> Iterator[Finding]:
    active = [host for host, state in found.items() if state == "ACTIVE"]
    for host, state in found.items():
        physical = seen[host].text("rdma_port", "phys_state", port) or "unknown"
        layer = seen[host].text("rdma_port", "link_layer", port)
        if state in _WAITING and layer == "InfiniBand":
            manager = seen[host].number("rdma_port", "sm_lid", port)
            why = (
                "no subnet manager has found it (SM lid 0)"
                if manager == 0
                else "the subnet manager has not activated it"
            )
            cause = f"RDMA {port} is {state}, its link is {physical}, and {why}"
            yield Finding("rdma", "error", (host,), cause, "start opensm, or the subnet manager of a switch ('sminfo')")
        elif state != "ACTIVE" and active:
            cause = f"RDMA {port} is {state} ({physical}), and ACTIVE on {nodeset.folded(active)}"
            cure = "switch it on ('ibportstate', 'ip link set')" if physical == "Disabled" else _CABLE
            fix = _switched_on(seen[host], port) if physical == "Disabled" else ()
            yield Finding("rdma", "error", (host,), cause, cure, fix)


def _switched_on(look: Hardware, port: str) -> tuple[tuple[str, ...], ...]:
    """Return the command that enables a port: that of its interface, or that of its InfiniBand (ibportstate(8))."""
    interface, (device, _, number) = look.text("rdma_port", "interface", port), port.partition("/")
    if look.text("rdma_port", "link_layer", port) == "InfiniBand":
        return (("ibportstate", "-C", device, "-P", number, "-D", "0", number, "enable"),)
    return (("ip", "link", "set", "dev", interface, "up"),) if interface else ()


def _rates(seen: Mapping[str, Hardware], states: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    told: set[tuple[str, str]] = set()
    for port, found in states.items():
        rates = {host: _rate(seen[host], port) for host, state in found.items() if state == "ACTIVE"}
        for finding in compare("rdma", "warning", f"the rate of RDMA {port}", rates, _CABLE):
            told.update((host, port) for host in finding.hosts)
            yield finding
        for host, rate in rates.items():
            ports = seen[host]
            fabric = ports.text("rdma_port", "link_layer", port) == "InfiniBand"
            if fabric and ports.number("rdma_port", "width", port) == 1 and (host, port) not in told:
                cause = f"RDMA {port} runs on one lane: {rate}; a port of InfiniBand has four"
                yield Finding("rdma", "warning", (host,), cause, _CABLE)


def _rate(look: Hardware, port: str) -> str:
    if any(port in look.odd_ones("rdma_port", name) for name in ("rate_gbps", "width", "generation")):
        return ""
    rate, width = look.number("rdma_port", "rate_gbps", port), look.number("rdma_port", "width", port)
    if rate is None:
        return ""
    lanes = f" ({width:g}X {look.text('rdma_port', 'generation', port)}".rstrip() + ")" if width else ""
    return f"{rate:g} Gb/s{lanes}"


def _settings(seen: Mapping[str, Hardware], states: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Compare what the subnet manager, or the administrator of RoCE, has set on active ports."""
    for port, hosts in states.items():
        active = [seen_on for seen_on, state in hosts.items() if state == "ACTIVE"]
        layers = {host: seen[host].text("rdma_port", "link_layer", port) for host in active}
        fabric = [host for host in active if layers[host] == "InfiniBand"]
        cure = "set the MTU of the partition in the subnet manager (partitions.conf), and look at the port's own limit"
        yield from compare("rdma", "error", f"the active MTU of RDMA {port}", _mtus(seen, port, fabric), cure)
        keys = {host: seen[host].text("rdma_port", "pkeys", port) for host in active}
        cure = "make the port a member of the same partitions in the subnet manager (partitions.conf)"
        yield from compare("rdma", "error", f"the P_Key table of RDMA {port}", keys, cure)
        roce = {host: seen[host].text("rdma_port", "interface", port) for host in active}
        sizes = {host: str(seen[host].values("interface", "mtu").get(name, "")) for host, name in roce.items() if name}
        cure = "set the same MTU on all nodes and on the switch"
        what = f"the MTU of the interface of RDMA {port}"
        told: set[str] = set()
        for finding in compare("rdma", "warning", what, sizes, cure, alike.mtu_fix(roce.values())):
            told.update(finding.hosts)
            yield finding
        cure = "restart the interface so that its RDMA port takes the interface's MTU, and look at the port's own limit"
        mtus = _mtus(seen, port, [host for host in active if host not in fabric])
        for finding in compare("rdma", "warning", f"the active MTU of RDMA {port}", mtus, cure):
            if not told.issuperset(finding.hosts):
                yield finding


def _mtus(seen: Mapping[str, Hardware], port: str, hosts: Iterable[str]) -> dict[str, str]:
    return {host: str(seen[host].values("rdma_port", "active_mtu").get(port, "")) for host in hosts}
