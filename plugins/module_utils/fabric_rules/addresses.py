# SPDX-License-Identifier: Apache-2.0
"""Read from the facts of a node which addresses other nodes can reach."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import ip_address

if TYPE_CHECKING:
    from .model import Facts

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
    """
    found = []
    for interface in node.get("interfaces") or ():
        if interface["kind"] == "loopback" or not ip_address.is_interface(interface["name"]):
            continue
        for entry in interface.get("addresses") or ():
            if not ip_address.is_address(entry["address"]):
                continue
            address = ip_address.parsed(entry["address"])
            if not ip_address.is_source(address) or entry.get("scope") in {"host", "link"}:
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
