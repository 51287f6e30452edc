# SPDX-License-Identifier: Apache-2.0
"""Networks and RDMA ports that all nodes share, from their addresses and routes, and why others are rejected."""

from __future__ import annotations

import re
from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import config_line, ip_address
from .carriers import cables
from .model import (
    MOST_NAMED,
    Candidates,
    FabricError,
    Facts,
    Network,
    RdmaChoice,
    Rejection,
    fold,
    has_or_have,
    other_hosts,
)

if TYPE_CHECKING:
    from .model import Facts


# --- addresses -------------------------------------------------------------------------------------------------------

# Kinds that may join subnets by routing. A bridge, tunnel or veth with a subnet per node belongs to an overlay.
ROUTED_KINDS = frozenset({"physical", "bond", "infiniband", "vlan"})


class Link(NamedTuple):
    """One address of one interface of a node."""

    interface: str
    kind: str
    up: bool
    speed_mbps: Optional[int]
    mtu: Optional[int]
    address: str
    network: str


def links(node: Facts) -> List[Link]:
    """Return the addresses of a node that another node could reach, also those of interfaces that are down.

    A temporary address of IPv6 is left out: it is another one tomorrow. So is what no configuration file can name.
    A link-local address of IPv4 counts: two machines on one cable often have no other. Open MPI sends nothing over one
    of IPv6 (5.0.7).
    """
    found = []
    for interface in node.get("interfaces") or ():
        if interface["kind"] == "loopback" or not ip_address.is_interface(interface["name"]):
            continue
        for entry in interface.get("addresses") or ():
            if not ip_address.is_address(entry["address"]):
                continue
            address = ip_address.parsed(entry["address"])
            if not _is_on_link(address) and (
                not ip_address.is_source(address) or entry.get("scope") in {"host", "link"}
            ):
                continue
            if entry.get("temporary"):
                continue
            network = _network_of(node, interface["name"], address, int(entry["prefix"]))
            if network is None:
                continue
            found.append(
                Link(
                    interface=interface["name"],
                    kind=interface["kind"],
                    up=bool(interface.get("up") and interface.get("carrier")),
                    speed_mbps=interface.get("speed_mbps"),
                    mtu=interface.get("mtu"),
                    address=str(address),
                    network=str(network),
                )
            )
    return found


def _is_on_link(address: ip_address.IpAddress) -> bool:
    return address.version == 4 and address.is_link_local  # noqa: PLR2004


def _network_of(
    node: Facts, interface: str, address: ip_address.IpAddress, prefix: int
) -> Optional[ip_address.IpNetwork]:
    """Return the network of an address, None for a prefix that it cannot have.

    DHCPv6 gives an address without its network (/128), which a route without a gateway on the interface then names.
    """
    if prefix == address.max_prefixlen:
        routes = (
            ip_address.network_or_none(str(route["destination"]))
            for route in node.get("routes") or ()
            if route["interface"] == interface and not route.get("gateway")
        )
        around = [one for one in routes if one is not None and 0 < one.prefixlen < prefix and address in one]
        if around:
            return max(around, key=lambda one: one.prefixlen)
    return ip_address.network_or_none(f"{address}/{prefix}")


def default_interface(node: Facts) -> str:
    """Return the interface of the default route with the least metric, IPv4 before IPv6; '' if it is missing."""
    routes = [route for route in node.get("routes") or () if str(route["destination"]) in {"0.0.0.0/0", "::/0"}]
    routes = [route for route in routes if route["interface"] != "lo"]
    routes.sort(key=lambda route: (route["family"], route["metric"]))
    return str(routes[0]["interface"]) if routes else ""


def shared_addresses(table: Mapping[str, Sequence[Link]]) -> Dict[str, Tuple[str, ...]]:
    """Return the addresses that more than one node has, with those nodes."""
    owners: Dict[str, Dict[str, None]] = defaultdict(dict)
    for host, its in table.items():
        for link in its:
            owners[link.address][host] = None
    return {address: tuple(hosts) for address, hosts in owners.items() if len(hosts) > 1}


def is_inside(link: Link, network: ip_address.IpNetwork) -> bool:
    """Tell whether a link's address belongs to a network."""
    return ip_address.parsed(link.address) in network


# --- rejections ------------------------------------------------------------------------------------------------------


def rejections(
    nodes: Mapping[str, Facts],
    table: Mapping[str, Sequence[Link]],
    shared: Mapping[str, Tuple[str, ...]],
    found: Sequence[Network],
    *,
    pinned: bool = False,
    alone: Mapping[str, str] = MappingProxyType({}),
) -> List[Rejection]:
    """Return each network and interface that is not a candidate, with its hosts and the reason.

    ``alone`` has the reason for networks that join some of the nodes alone.
    """
    covered = {(host, address) for network in found for host, address in network.addresses.items()}
    groups: Dict[str, Dict[str, List[Link]]] = defaultdict(dict)
    for host, its in table.items():
        for link in its:
            groups[link.network].setdefault(host, []).append(link)
    single: Dict[str, List[str]] = defaultdict(list)  # interfaces whose network differs from node to node
    rejected = []
    for name, members in groups.items():
        if any((host, link.address) in covered for host, its in members.items() for link in its):
            continue
        title = f"{'/'.join(dict.fromkeys(link.interface for its in members.values() for link in its))} {name}"
        if len(members) == 1 and len(nodes) > 1:
            host = next(iter(members))
            single[members[host][0].interface].append(host)
        on_link = any(_is_on_link(ip_address.parsed(link.address)) for its in members.values() for link in its)
        why = _why_not(nodes, members, shared, alone.get(name, ""), pinned=pinned, on_link=on_link)
        rejected.append(Rejection(title, tuple(members), why, on_link))
    merged = {name: hosts for name, hosts in single.items() if len(hosts) > 1}
    rejected = [
        one
        for one in rejected
        if not (len(one.hosts) == 1 and one.hosts[0] in merged.get(one.network.split(" ")[0], ()))
    ]
    rejected += [
        Rejection(name, tuple(hosts), "leads to a network of its own on each node") for name, hosts in merged.items()
    ]
    return rejected + _unnamable(nodes) + _without_address(nodes)


def _why_not(
    nodes: Mapping[str, Facts],
    members: Mapping[str, Sequence[Link]],
    shared: Mapping[str, Tuple[str, ...]],
    alone: str,
    *,
    pinned: bool,
    on_link: bool,
) -> str:
    same = {link.address: shared[link.address] for its in members.values() for link in its if link.address in shared}
    only_shared = [host for host, its in members.items() if all(link.address in shared for link in its)]
    if only_shared:
        address = next(iter(same))
        return f"carries the same address {address} on {fold(same[address])}"
    if alone:
        return alone
    words = []
    down: Dict[str, List[str]] = defaultdict(list)
    for host, its in members.items():
        if not any(link.up for link in its):
            down[its[0].interface].append(host)
    words += [f"{interface} is down on {fold(hosts)}" for interface, hosts in down.items()]
    missing = [host for host in nodes if host not in members]
    if missing:
        words.append(f"{fold(missing)} {has_or_have(missing)} no address in it")
    if words:
        return "; ".join(words)
    if pinned:
        return "another network is pinned"
    if on_link:
        return "has link-local addresses, and another network is as fast"
    return "all nodes have IPv4 as well, which is preferred; fabric_cidr can name this one"


def _unnamable(nodes: Mapping[str, Facts]) -> List[Rejection]:
    """Return the interfaces with names that no file of Open MPI and NCCL can hold."""
    found: Dict[str, List[str]] = defaultdict(list)
    for host, node in nodes.items():
        for interface in node.get("interfaces") or ():
            if not ip_address.is_interface(interface["name"]):
                found[config_line.shown(str(interface["name"]))].append(host)
    return [
        Rejection(name, tuple(hosts), "has a name that the files of Open MPI and NCCL cannot hold")
        for name, hosts in found.items()
    ]


def _is_ipv6_of_link(entry: Facts) -> bool:
    return entry.get("scope") == "link" and entry.get("family") == 6  # noqa: PLR2004


def _without_address(nodes: Mapping[str, Facts]) -> List[Rejection]:
    """Return the interfaces that could carry jobs but have no address, or one of IPv6 on their link alone.

    Nodes that are containers have interfaces of one name. The ends of other containers have names of their own.
    """
    bare: Dict[str, List[str]] = defaultdict(list)
    on_link: Dict[str, List[str]] = defaultdict(list)
    kinds: Dict[str, Set[str]] = defaultdict(set)
    for host, node in nodes.items():
        for interface in node.get("interfaces") or ():
            kind, master = interface["kind"], interface.get("master")
            if not ip_address.is_interface(interface["name"]):
                continue
            addresses = interface.get("addresses") or ()
            if kind not in {*ROUTED_KINDS, "veth"} or master or interface.get("has_both_ends"):
                continue
            if not addresses:
                if kind != "veth":
                    bare[interface["name"]].append(host)
            elif interface.get("carrier") and all(_is_ipv6_of_link(entry) for entry in addresses):
                on_link[interface["name"]].append(host)
                kinds[interface["name"]].add(kind)
    return [
        *(Rejection(name, tuple(hosts), f"has no address on {fold(hosts)}") for name, hosts in bare.items()),
        *(
            Rejection(
                name,
                tuple(hosts),
                f"has link-local addresses of IPv6 alone on {fold(hosts)}, over which Open MPI sends nothing; give it "
                "addresses of IPv4",
                on_link=True,
            )
            for name, hosts in on_link.items()
            if len(hosts) > 1 or "veth" not in kinds[name]
        ),
    ]


_FILLED = 4  # addresses of a subnet with two machines: /30, /31; of IPv6 /126, /127


# --- networks --------------------------------------------------------------------------------------------------------


def candidates(
    nodes: Mapping[str, Facts], cidrs: Sequence[str] = (), interfaces: Sequence[str] = (), others: Sequence[str] = ()
) -> Candidates:
    """Return the networks in which every node has an address of its own that is up, best first.

    Args:
        nodes: facts by host.
        cidrs: the user's pin; addresses outside it are ignored.
        interfaces: the user's pin; of each node, the first of these that has an address is taken.
        others: addresses of nodes outside this run; networks that hold them all come first.

    Raises:
        FabricError: a pin is malformed, or a node lacks the pinned network.
    """
    networks = _parsed(cidrs)
    _check_interfaces(interfaces)
    table = {host: links(node) for host, node in nodes.items()}
    shared = shared_addresses(table)
    if networks or interfaces:
        return _pinned(nodes, table, shared, networks, interfaces)
    usable = {host: [one for one in its if one.up and one.address not in shared] for host, its in table.items()}
    found = sorted(_common(usable), key=lambda network: _rank(network, nodes, others))
    joining, alone = cables(usable, found, _joined)
    direct = {one.key for one in joining} | _between_two(usable)
    found += [
        one
        for one in _routed(nodes, usable, found)
        if one.key not in {other.key for other in found} and direct.isdisjoint(one.cidrs)
    ]
    if any(_family(one) == 4 for one in found):  # noqa: PLR2004 - IPv6 on the same wires
        found = [one for one in found if _family(one) == 4]  # noqa: PLR2004
    found.sort(key=lambda network: _rank(network, nodes, others))
    # A link-local network is often that of a service processor. It counts where nothing else is as fast.
    found = [one for one in found if not _on_link(one) or one is found[0]]
    rejected = rejections(nodes, table, shared, [*found, *joining], alone=alone)
    return Candidates(tuple(found), tuple(rejected), cables=tuple(joining))


def _parsed(cidrs: Sequence[str]) -> List[ip_address.IpNetwork]:
    found: List[ip_address.IpNetwork] = []
    for text in cidrs:
        try:
            found.append(ip_address.network(str(text)))
        except ValueError:
            near = ip_address.network_or_none(str(text))
            cure = "a network is written like 10.0.0.0/24" if near is None else f"{near} is probably meant"
            raise FabricError(f"fabric_cidr has {text!r}, which is not a network; {cure}.") from None
    return found


def _check_interfaces(interfaces: Sequence[str]) -> None:
    for name in interfaces:
        if not ip_address.is_interface(str(name)):
            raise FabricError(
                f"fabric_interfaces has {name!r}, which is not the name of an interface; "
                "'ip -br address' on a node lists the names."
            )


def _best(its: Iterable[Link]) -> Link:
    return min(its, key=lambda link: (-(link.speed_mbps or 0), -(link.mtu or 0), link.interface, link.address))


def network_of(cidrs: Iterable[str], chosen: Mapping[str, Link]) -> Network:
    """Return the network of the chosen links, with the slowest speed and the smallest MTU."""
    speeds = [link.speed_mbps for link in chosen.values() if link.speed_mbps]
    mtus = [link.mtu for link in chosen.values() if link.mtu]
    return Network(
        cidrs=tuple(sorted(set(cidrs), key=_cidr_order)),
        interfaces={host: link.interface for host, link in chosen.items()},
        addresses={host: link.address for host, link in chosen.items()},
        speed_mbps=min(speeds) if speeds else None,
        mtu=min(mtus) if mtus else None,
    )


def _cidr_order(text: str) -> Tuple[int, int, int]:
    network = ip_address.network(text)
    return network.version, int(network.network_address), network.prefixlen


def _common(usable: Mapping[str, Sequence[Link]]) -> List[Network]:
    """Return the subnets in which all nodes have an address."""
    names = dict.fromkeys(link.network for its in usable.values() for link in its)
    found = []
    for name in names:
        its = {host: [link for link in own if link.network == name] for host, own in usable.items()}
        if all(its.values()):
            found.append(_joined([name], its))
    return found


def _joined(cidrs: Iterable[str], its: Mapping[str, Sequence[Link]]) -> Network:
    return network_of(cidrs, {host: _best(own) for host, own in its.items()})


def _between_two(usable: Mapping[str, Sequence[Link]]) -> Set[str]:
    """Return the subnets that two nodes fill, so that there is no router in them."""
    hosts: Dict[str, Set[str]] = defaultdict(set)
    for host, its in usable.items():
        for link in its:
            hosts[link.network].add(host)
    return {name for name, its in hosts.items() if len(its) > 1 and ip_address.network(name).num_addresses <= _FILLED}


def _routed(
    nodes: Mapping[str, Facts], usable: Mapping[str, Sequence[Link]], common: Sequence[Network]
) -> List[Network]:
    """Return networks that routing may join: the interfaces of the default routes, or one name in several subnets."""
    taken = {(host, name) for network in common for host, name in network.interfaces.items()}
    ways: List[Dict[str, Set[str]]] = [{host: {default_interface(node)} for host, node in nodes.items()}]
    names = dict.fromkeys(link.interface for its in usable.values() for link in its if link.kind in ROUTED_KINDS)
    ways += [{host: {name} for host in nodes} for name in names]
    found = []
    for way in ways:
        if any((host, name) in taken for host, wanted in way.items() for name in wanted):
            continue
        for version in (4, 6):
            its = {
                host: [
                    link
                    for link in own
                    if link.interface in way[host] and ip_address.network(link.network).version == version
                ]
                for host, own in usable.items()
            }
            if its and all(its.values()):
                chosen = {host: _best(own) for host, own in its.items()}
                found.append(network_of((link.network for link in chosen.values()), chosen))
    return list({one.key: one for one in reversed(found)}.values())


def _on_link(network: Network) -> bool:
    return any(_is_on_link(ip_address.parsed(one)) for one in network.addresses.values())


def _family(network: Network) -> int:
    return ip_address.network(network.cidrs[0]).version


def _rank(network: Network, nodes: Mapping[str, Facts], others: Sequence[str]) -> Tuple[Any, ...]:
    known = [ip_address.parsed(one) for one in others if ip_address.is_address(one)]
    ways_out = {host: default_interface(node) for host, node in nodes.items()}
    out = all(ways_out[host] == name for host, name in network.interfaces.items())
    return (
        not all(any(one in ip_address.network(cidr) for cidr in network.cidrs) for one in known),
        not out and len(nodes) == 1,  # a single node cannot tell docker0 from a real network
        -(network.speed_mbps or 0),
        -(network.mtu or 0),
        not out,
        len(network.cidrs),
        [_cidr_order(cidr) for cidr in network.cidrs],
    )


def _pinned(
    nodes: Mapping[str, Facts],
    table: Mapping[str, Sequence[Link]],
    shared: Mapping[str, Tuple[str, ...]],
    networks: Sequence[ip_address.IpNetwork],
    interfaces: Sequence[str],
) -> Candidates:
    chosen: Dict[str, Link] = {}
    lacking: Dict[str, str] = {}
    for host, its in table.items():
        inside = [link for link in its if not networks or any(is_inside(link, one) for one in networks)]
        inside = [link for link in inside if not interfaces or link.interface in interfaces]
        own = [link for link in inside if link.up and link.address not in shared]
        if own:
            first = min((interfaces.index(link.interface) for link in own), default=0) if interfaces else 0
            chosen[host] = _best(link for link in own if not interfaces or link.interface == interfaces[first])
        elif any(link.up for link in inside):
            same = next(link.address for link in inside if link.up)
            lacking[host] = f"{same} there is also the address of {other_hosts(shared[same], host)}"
        elif inside:
            lacking[host] = f"{inside[0].interface} is down"
        else:
            lacking[host] = "has " + (", ".join(f"{link.interface} {link.address}" for link in its) or "no address")
    if lacking:
        asked = " and ".join(
            [f"fabric_cidr {', '.join(str(one) for one in networks)}"] * bool(networks)
            + [f"fabric_interfaces {', '.join(interfaces)}"] * bool(interfaces)
        )
        words = "; ".join(f"{host}: {why}" for host, why in list(lacking.items())[:MOST_NAMED])
        raise FabricError(
            f"{asked}: {fold(lacking)} {has_or_have(lacking)} no address of its own there that is up ({words}); "
            "name a network that all nodes have, or leave it empty to choose automatically.",
            lacking,
        )
    cidrs = [str(one) for one in networks if any(is_inside(link, one) for link in chosen.values())]
    found = network_of(cidrs or (link.network for link in chosen.values()), chosen) if chosen else None
    rejected = rejections(nodes, table, shared, [found] if found else [], pinned=True)
    return Candidates((found,) if found else (), tuple(rejected), pinned=True)


# --- rdma ports ------------------------------------------------------------------------------------------------------

_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}(?::[0-9]{1,3})?")


def rdma(node: Facts) -> Tuple[RdmaChoice, ...]:
    """Return what each port of each RDMA device offers, and on Ethernet the GID that routes over IPv4.

    The GID table of a RoCE port has an entry for each address and each version of RoCE. The wanted entry has the type
    RoCE v2 and maps an IPv4 address (::ffff:a.b.c.d). If several do, the port's own interface decides.
    """
    return tuple(_choice(device["name"], port) for device in node.get("rdma") or () for port in device["ports"])


def _choice(device: str, port: Facts) -> RdmaChoice:
    layer, state = port.get("link_layer") or "", port.get("state") or ""
    index, gid = None, ""
    usable = state == "ACTIVE"
    if not usable:
        reason = f"the port is {state or 'of unknown state'} ({port.get('physical_state') or 'no physical state'})"
    elif layer == "InfiniBand":
        reason = "InfiniBand needs no GID index"
    else:
        index, gid, reason = _roce_gid(port)
        usable = index is not None
    return RdmaChoice(
        device=device,
        port=int(port["number"]),
        link_layer=layer,
        state=state,
        rate_gbps=port.get("rate_gbps"),
        gid_index=index,
        gid=gid,
        reason=reason,
        usable=usable,
    )


def _roce_gid(port: Facts) -> Tuple[Optional[int], str, str]:
    second = [entry for entry in port.get("gids") or () if entry.get("type") == "RoCE v2"]
    mapped = [entry for entry in second if _ipv4(entry["gid"])]
    if not mapped:
        if second:
            return None, "", "its RoCE v2 GIDs are of IPv6 alone; give its interface an IPv4 address"
        return None, "", "it has no RoCE v2 GID; give its interface an address, and see that RoCE v2 is enabled"
    own = [entry for entry in mapped if entry.get("netdev") == port.get("netdev")]
    taken = min(own or mapped, key=lambda entry: int(entry["index"]))
    return (
        int(taken["index"]),
        str(taken["gid"]),
        f"RoCE v2 of {_ipv4(taken['gid'])} on {taken.get('netdev') or 'its interface'}",
    )


def _ipv4(gid: str) -> str:
    """Return the IPv4 address that a GID maps, '' if it maps none or is not readable."""
    try:
        address = ip_address.parsed(gid)
    except ValueError:
        return ""
    return str(address) if address.version == 4 else ""  # noqa: PLR2004


def nccl_pins(host: str, choices: Sequence[RdmaChoice], devices: Sequence[str], *, gid: bool) -> Dict[str, str]:
    """Return the variables of NCCL that the user wants pinned.

    Args:
        host: the name of the node, for messages.
        choices: of this node.
        devices: names such as mlx5_0 or mlx5_0:1, or ``auto`` for all usable ports of the fastest rate.
        gid: whether to pin the GID index.

    Raises:
        FabricError: a device is missing, its port is not usable, or one index does not fit all devices.
    """
    for name in devices:
        if not _DEVICE.fullmatch(str(name)):
            raise FabricError(f"fabric_pin_hca has {name!r}, which is not a device; write mlx5_0 or mlx5_0:1.")
    if "auto" in devices:
        rates = [choice.rate_gbps or 0 for choice in choices if choice.usable]
        wanted = [choice for choice in choices if choice.usable and (choice.rate_gbps or 0) == max(rates)]
        names = [f"{choice.device}:{choice.port}" for choice in wanted]
    else:
        names = [str(name) for name in devices]
        wanted = [
            choice for name in names for choice in choices if name in {choice.device, f"{choice.device}:{choice.port}"}
        ]
    pins: Dict[str, str] = {}
    for name in names:
        its = [choice for choice in wanted if name in {choice.device, f"{choice.device}:{choice.port}"}]
        if not any(choice.usable for choice in its):
            why = its[0].reason if its else f"it has {', '.join(sorted({one.device for one in choices})) or 'none'}"
            raise FabricError(f"fabric_pin_hca names {name}, which {host} cannot use: {why}.", [host])
    if names:
        pins["NCCL_IB_HCA"] = "=" + ",".join(names)
    if gid:
        roce = [choice for choice in (wanted if devices else choices) if choice.usable and choice.gid_index is not None]
        indices = {choice.gid_index for choice in roce}
        if len(indices) > 1:
            words = ", ".join(f"{choice.device} at {choice.gid_index}" for choice in roce)
            raise FabricError(
                f"fabric_pin_gid: NCCL takes one index for all devices of a node, and {host} has {words}; "
                "leave it to NCCL, or name devices of one index in fabric_pin_hca.",
                [host],
            )
        if indices:
            pins["NCCL_IB_GID_INDEX"] = str(indices.pop())
    return pins


def cable_pins(node: Facts, interfaces: Iterable[str]) -> Dict[str, str]:
    """Return the variables by which NCCL takes the RDMA ports of cables, none if one of them has no usable port.

    NCCL assigns the ports to peers in turn, and a port with a cable reaches one peer. Since 2.30 it can choose the port
    by the peer's subnet.

    Args:
        node: its facts.
        interfaces: those of its cables.
    """
    usable = {(one.device, one.port) for one in rdma(node) if one.usable}
    ports = {
        str(port.get("netdev")): f"{device['name']}:{port['number']}"
        for device in node.get("rdma") or ()
        for port in device["ports"]
        if (device["name"], int(port["number"])) in usable
    }
    names = [ports.get(name, "") for name in interfaces]
    if not names or not all(names):
        return {}
    return {
        "NCCL_IB_HCA": f"={','.join(names)}",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    }
