"""Network interfaces beside those of other nodes: speed, duplex, a lost carrier, and members of bonds that are down.

An interface that is off, or without a carrier on every node, is meant to be so.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import alike
from clusterctl.diagnosis.rules.network import judged_interfaces
from clusterctl.diagnosis.skew import compare
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware

ORDER = 32
_PORT = "look at the cable, and at the speed that the switch's port allows"


def findings(view: View) -> Iterator[Finding]:
    """Return what differs between interfaces of one name and one driver, and what is wrong with bonds."""
    judged = judged_interfaces(view)
    for seen in alike.groups(view, least=1):
        for (device, _driver), hosts in _alike(seen).items():
            yield from _interface(device, {host: seen[host] for host in hosts}, judged)
        yield from _bonds(seen)


def _interface(device: str, looks: Mapping[str, Hardware], judged: frozenset[tuple[str, str]]) -> Iterator[Finding]:
    up = {host: look for host, look in looks.items() if look.text("interface", "operstate", device) == "up"}
    yield from _carrier(device, looks, list(up))
    speeds = {
        host: f"{speed} Mb/s"
        for host, look in up.items()
        if (speed := look.number("interface", "speed", device)) and (host, device) not in judged
    }
    yield from compare("interfaces", "warning", f"the speed of {device}", speeds, _PORT)
    for host, look in up.items():
        if look.text("interface", "duplex", device) == "half":
            cause = f"{device} runs in half duplex"
            yield Finding("interfaces", "warning", (host,), cause, "set both ends to negotiate by themselves")


def _alike(seen: Mapping[str, Hardware]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, look in seen.items():
        for device, driver in look.texts("interface", "driver").items():
            found[device, driver].append(host)
    return found


def _carrier(device: str, looks: Mapping[str, Hardware], up: list[str]) -> Iterator[Finding]:
    for host, look in looks.items():
        wanted = look.flag("interface", "wanted_up", device)
        lost = look.text("interface", "operstate", device) == "down"
        others = [other for other in up if other != host]
        if wanted and lost and len(others) > 1 and len(others) * 2 > len(looks):
            cause = f"{device} is switched on and has no carrier, and it is up on {nodeset.folded(others)}"
            yield Finding("interfaces", "warning", (host,), cause, "look at the cable and at the switch's port")


def _bonds(seen: Mapping[str, Hardware]) -> Iterator[Finding]:
    modes: dict[str, dict[str, str]] = defaultdict(dict)
    sizes: dict[str, dict[str, str]] = defaultdict(dict)
    for host, look in seen.items():
        for bond, mode in look.texts("bond", "mode").items():
            modes[bond][host] = mode
        for bond, size in look.numbers("bond", "members").items():
            sizes[bond][host] = f"{size}"
        yield from _members(host, look)
    for bond, found in modes.items():
        yield from compare("bonds", "warning", f"the mode of {bond}", found, "set the same mode on all nodes")
        what, cure = f"the number of members of {bond}", "add the missing interface to the bond"
        yield from compare("bonds", "warning", what, sizes[bond], cure)


def _members(host: str, look: Hardware) -> Iterator[Finding]:
    bonds, grouped = look.texts("bond_member", "bond"), look.flags("bond_member", "in_group")
    for member, state in look.texts("bond_member", "mii_status").items():
        bond = bonds.get(member, "a bond")
        if state != "up":
            cause = f"{member} of {bond} is {state}, so the bond has lost a link"
            yield Finding("bonds", "warning", (host,), cause, "look at the cable and at the switch's port")
        elif grouped.get(member) is False:
            cause = f"{member} of {bond} is up and outside its LACP group, so it carries nothing"
            yield Finding("bonds", "warning", (host,), cause, "put both ports of the switch into one LACP group")
