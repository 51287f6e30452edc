"""Does NCCL_IB_GID_INDEX name the RoCE v2 entry for IPv4 in the GID table of each port that NCCL uses?

One index holds for all ports of a node. The index of an entry depends on the order in which a node got its addresses.
A setting that fits one node may be wrong on another (NCCL User Guide, "Environment Variables", NCCL_IB_GID_INDEX).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.model import fabric, ip_address, nodeset
from clusterctl.model.findings import Finding, majority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.fabric import RdmaChoice
    from clusterctl.model.facts import Gid, NodeFacts

ORDER = 34
_INDEX, _CARDS = "NCCL_IB_GID_INDEX", "NCCL_IB_HCA"
_NCCL = "/etc/nccl.conf"
_LEAST = 3
_BITS, _IPV6 = 32, 6
_LARGEST = 3  # digits of an index; tables have at most 256 entries


class _Set(NamedTuple):
    """The value of a setting that counts, and the place that sets it."""

    value: str
    source: str


class _NamedEntry(NamedTuple):
    """What a node's index names in the GID table of a port; None: no entry."""

    choice: RdmaChoice
    number: int
    source: str
    entry: Gid | None


def findings(view: View) -> Iterator[Finding]:
    """Return the ports on which the index names another entry than the one that RoCE needs."""
    for host, node in view.nodes.items():
        for named in _named(node):
            wrong = _wrong(named)
            if wrong:
                place = f"{named.choice.device} port {named.choice.port}"
                cause = f"{_INDEX} = {named.number} ({named.source}) names {wrong} of {place}"
                yield Finding("gid index", "error", (host,), cause, _cure(named))
    yield from _networks(view)


def notes(view: View) -> Iterator[str]:
    """Return the ports whose entry stands at different places on nodes that leave the index to NCCL."""
    places: dict[str, dict[int, list[str]]] = {}
    for host, node in view.nodes.items():
        if not _setting(node, _INDEX).value:
            for choice in _ports(node):
                if choice.gid_index is not None:
                    port = f"{choice.device} port {choice.port}"
                    places.setdefault(port, {}).setdefault(choice.gid_index, []).append(host)
    for port, indices in places.items():
        if len(indices) > 1:
            shown = ", ".join(f"{index} on {nodeset.folded(hosts)}" for index, hosts in sorted(indices.items()))
            yield (
                f"The RoCE v2 entry for IPv4 of {port} has different indices: {shown}. No {_INDEX} fits all nodes; "
                "leave it unset, since NCCL 2.21 and later find the entry by themselves."
            )


def _named(node: NodeFacts) -> Iterator[_NamedEntry]:
    found = _setting(node, _INDEX)
    if not (found.value.isascii() and found.value.isdecimal() and len(found.value) <= _LARGEST):
        return  # not set, or -1: NCCL chooses
    index = int(found.value)
    tables = {(device.name, port.number): port.gids for device in node.rdma for port in device.ports}
    for choice in _ports(node):
        table = tables.get((choice.device, choice.port), ())
        if table and all(entry.type for entry in table):  # an old kernel does not tell the version of an entry
            entry = next((entry for entry in table if entry.index == index), None)
            yield _NamedEntry(choice, index, found.source, entry)


def _wrong(named: _NamedEntry) -> str:
    """Say what the index names in place of the right entry, '' if nothing is wrong."""
    entry = named.entry
    if entry is None:
        return "no entry of the GID table"
    if entry.type != "RoCE v2":
        return f"an entry of type {entry.type}, which is not routed,"
    address = _address(entry)
    if address is None:
        return ""  # not in a form that is known
    if address.version == _IPV6 and (named.choice.gid_index is not None or address.is_link_local):
        return f"the address {address}, which is not an IPv4 address,"
    return ""


def _cure(named: _NamedEntry) -> str:
    if named.choice.gid_index is None:
        return f"{named.choice.reason}; until then unset {_INDEX}"
    right = f"{named.choice.gid_index} is {named.choice.reason}"
    return f"set {_INDEX}={named.choice.gid_index} there, or unset it (NCCL 2.21 or later): {right}"


def _networks(view: View) -> Iterator[Finding]:
    """Name the nodes on which the same index leads to another network than on most nodes."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for host, node in view.nodes.items():
        for named in _named(node):
            network = _network(node, named.entry) if named.entry is not None and not _wrong(named) else ""
            if network:
                found.setdefault((f"{named.choice.device} port {named.choice.port}", named.number), {})[host] = network
    for (port, index), networks in found.items():
        spread = majority(networks)
        usual = sum(network == spread.usual for network in networks.values())
        if len(networks) < _LEAST or usual * 2 <= len(networks):
            continue  # with a network for each node or rack, none is usual
        for network, hosts in spread.others.items():
            cause = f"{_INDEX} = {index} leads {port} to {network}, and to {spread.usual} on most nodes"
            cure = "compare the GID tables ('show_gids'); name the entry of the same network on all nodes"
            yield Finding("gid index", "error", hosts, cause, cure)


def _network(node: NodeFacts, entry: Gid) -> str:
    address = _address(entry)
    for link in node.interfaces:
        for own in link.addresses:
            if address is not None and address.version != _IPV6 and own.address == str(address):
                return str(ip_address.network(f"{address}/{max(0, min(own.prefix, _BITS))}", strict=False))
    return ""


def _address(entry: Gid) -> ip_address.IpAddress | None:
    """Return the address of a GID, an IPv4 address that it maps as such; None for a form that is not known."""
    try:
        return ip_address.parsed(entry.gid)
    except ValueError:
        return None


def _setting(node: NodeFacts, name: str) -> _Set:
    """Return the setting that counts: the environment, then a file of the home, then /etc/nccl.conf."""
    found = [_Set(one.value, one.source) for one in node.parameters if one.name == name and one.in_session]
    found += [
        _Set(file.own[name], file.path) for file in node.parameter_files if file.path == _NCCL and name in file.own
    ]
    return min(found, key=lambda one: _rank(one.source), default=_Set("", ""))


def _rank(source: str) -> int:
    if source == _NCCL:
        return 2
    return 1 if source.endswith("nccl.conf") else 0


def _ports(node: NodeFacts) -> list[RdmaChoice]:
    """Return the active ports of RoCE that NCCL takes; NCCL_IB_HCA names prefixes, '=' whole names, '^' excludes."""
    words = _setting(node, _CARDS).value
    excludes = words.startswith("^")
    words = words.removeprefix("^")
    exact = words.startswith("=")
    names = [word.strip() for word in words.removeprefix("=").split(",") if word.strip()]
    active = [choice for choice in fabric.rdma(node) if choice.state == "ACTIVE" and choice.link_layer == "Ethernet"]
    return [choice for choice in active if not names or _is_meant(choice, names, exact=exact) is not excludes]


def _is_meant(choice: RdmaChoice, names: list[str], *, exact: bool) -> bool:
    for name in names:
        device, _, port = name.partition(":")
        same = choice.device == device if exact else choice.device.startswith(device)
        if same and port in ("", str(choice.port)):
            return True
    return False
