# SPDX-License-Identifier: Apache-2.0
"""Find the networks that every node has an address in, the best one first."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from .. import ip_address
from .addresses import ROUTED_KINDS, Link, default_interface, is_inside, links, shared_addresses
from .host_words import MOST_NAMED, fold, has_or_have, other_hosts
from .model import Candidates, FabricError, Facts, Network
from .rejections import rejections


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
    found = _common(usable)
    found += [one for one in _routed(nodes, usable, found) if one.key not in {other.key for other in found}]
    if any(_family(one) == 4 for one in found):  # noqa: PLR2004 - IPv6 on the same wires
        found = [one for one in found if _family(one) == 4]  # noqa: PLR2004
    found.sort(key=lambda network: _rank(network, nodes, others))
    return Candidates(tuple(found), tuple(rejections(nodes, table, shared, found)))


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
            found.append(network_of([name], {host: _best(own) for host, own in its.items()}))
    return found


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
