# SPDX-License-Identifier: Apache-2.0
"""Which network carries the cluster's jobs: facts of all nodes in, candidates, pairs to try and a decision out.

Nothing is read or written here. Used on the controller, by the role ``fabric`` and by ``clusterctl``; kept to Python
3.9 and the standard library, so that it can go wherever the collection goes. Facts are the dicts of ``node_probe``.
"""

from __future__ import annotations

import ipaddress
import math
import random
import re
from collections import defaultdict
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

Facts = Mapping[str, Any]
IpNetwork = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

ALL_PAIRS_UP_TO = 32
# What may join subnets by routing. A bridge, tunnel or veth with its own subnet on each node is somebody's overlay.
_ROUTED_KINDS = frozenset({"physical", "bond", "infiniband", "vlan"})
_MOST_NAMED = 3
_INTERFACE = re.compile(r"[^\s/:=,^]{1,15}")
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}(?::[0-9]{1,3})?")
KIND_WORDS = {
    "refused": "connection refused",
    "timeout": "timed out",
    "wrong_source": "arrived from another address",
    "wrong_node": "another node answered",
    "error": "failed",
}


class FabricError(Exception):
    """The user's pin cannot be kept; the message is a sentence that names the culprit and the cure.

    ``hosts`` are those that lack what was pinned; none where it is malformed.
    """

    def __init__(self, message: str, hosts: Iterable[str] = ()) -> None:
        """Keep whose fault it is beside the sentence."""
        super().__init__(message)
        self.hosts = tuple(hosts)


class Link(NamedTuple):
    """One address of one interface of a node."""

    interface: str
    kind: str
    up: bool
    speed_mbps: Optional[int]
    mtu: Optional[int]
    address: str
    network: str


class Network(NamedTuple):
    """A network that every node has an address in; ``interfaces`` and ``addresses`` are by host."""

    cidrs: Tuple[str, ...]
    interfaces: Dict[str, str]
    addresses: Dict[str, str]
    speed_mbps: Optional[int] = None
    mtu: Optional[int] = None

    @property
    def key(self) -> str:
        """What results of the probe call it."""
        return ",".join(self.cidrs)


class Rejection(NamedTuple):
    """A network or interface that is not taken, on which hosts, and why."""

    network: str
    hosts: Tuple[str, ...]
    reason: str


class Candidates(NamedTuple):
    """Networks worth a probe, the best one first, and what was rejected before."""

    networks: Tuple[Network, ...]
    rejected: Tuple[Rejection, ...]
    pinned: bool = False


class PairResult(NamedTuple):
    """How one connection went; ``kind`` is ok, refused, timeout, wrong_source, wrong_node or error."""

    network: str
    source: str
    target: str
    problem: str = ""
    kind: str = "ok"


class Decision(NamedTuple):
    """The network to use; None where none carries, or where a single node has none and needs none."""

    network: Optional[Network]
    rejected: Tuple[Rejection, ...]
    failures: Tuple[PairResult, ...]
    pinned: bool
    reason: str


class RdmaChoice(NamedTuple):
    """What a port of an RDMA device offers; ``reason`` says why the index, or why there is none."""

    device: str
    port: int
    link_layer: str
    state: str
    rate_gbps: Optional[float]
    gid_index: Optional[int]
    gid: str
    reason: str
    usable: bool


# --- what the nodes have ---------------------------------------------------------------------------------------------


def links(node: Facts) -> List[Link]:
    """Return the addresses of a node that another one could reach, those of interfaces that are down included."""
    found = []
    for interface in node.get("interfaces") or ():
        if interface["kind"] == "loopback":
            continue
        for entry in interface.get("addresses") or ():
            address = ipaddress.ip_address(entry["address"])
            if address.is_link_local or address.is_loopback or entry.get("scope") in {"host", "link"}:
                continue
            found.append(
                Link(
                    interface=interface["name"],
                    kind=interface["kind"],
                    up=bool(interface.get("up") and interface.get("carrier")),
                    speed_mbps=interface.get("speed_mbps"),
                    mtu=interface.get("mtu"),
                    address=str(address),
                    network=str(ipaddress.ip_network(f"{address}/{entry['prefix']}", strict=False)),
                )
            )
    return found


def default_interface(node: Facts) -> str:
    """Return the interface of the default route of least metric, IPv4 before IPv6; '' where there is none."""
    routes = [route for route in node.get("routes") or () if str(route["destination"]) in {"0.0.0.0/0", "::/0"}]
    routes = [route for route in routes if route["interface"] != "lo"]
    routes.sort(key=lambda route: (route["family"], route["metric"]))
    return str(routes[0]["interface"]) if routes else ""


# --- candidates ------------------------------------------------------------------------------------------------------


def candidates(
    nodes: Mapping[str, Facts], cidrs: Sequence[str] = (), interfaces: Sequence[str] = (), others: Sequence[str] = ()
) -> Candidates:
    """Return the networks in which every node has an address of its own that is up, best first.

    Args:
        nodes: facts by host.
        cidrs: the user's pin; addresses outside are not looked at.
        interfaces: the user's pin; of each node, the first of these that has an address is taken.
        others: addresses of nodes that this run does not look at; networks that hold them all come first.

    Raises:
        FabricError: a pin is malformed, or some node has no such network.
    """
    networks = _parsed(cidrs)
    _check_interfaces(interfaces)
    table = {host: links(node) for host, node in nodes.items()}
    shared = _shared(table)
    if networks or interfaces:
        return _pinned(nodes, table, shared, networks, interfaces)
    usable = {host: [one for one in its if one.up and one.address not in shared] for host, its in table.items()}
    found = _common(usable)
    found += [one for one in _routed(nodes, usable, found) if one.key not in {other.key for other in found}]
    if any(_family(one) == 4 for one in found):  # noqa: PLR2004 - the other family's twin of the same wires
        found = [one for one in found if _family(one) == 4]  # noqa: PLR2004
    found.sort(key=lambda network: _rank(network, nodes, others))
    return Candidates(tuple(found), tuple(_rejections(nodes, table, shared, found)))


def _parsed(cidrs: Sequence[str]) -> List[IpNetwork]:
    found: List[IpNetwork] = []
    for text in cidrs:
        try:
            found.append(ipaddress.ip_network(str(text)))
        except ValueError as error:
            try:
                cure = f"{ipaddress.ip_network(str(text), strict=False)} is probably meant"
            except ValueError:
                cure = "a network is written like 10.0.0.0/24"
            raise FabricError(f"fabric_cidr has {text!r}, which is no network ({error}); {cure}.") from None
    return found


def _check_interfaces(interfaces: Sequence[str]) -> None:
    for name in interfaces:
        if not _INTERFACE.fullmatch(str(name)):
            raise FabricError(
                f"fabric_interfaces has {name!r}, which is no interface's name; 'ip -br address' on a node shows them."
            )


def _shared(table: Mapping[str, Sequence[Link]]) -> Dict[str, Tuple[str, ...]]:
    """Return the addresses that more than one node has, with these nodes."""
    owners: Dict[str, Dict[str, None]] = defaultdict(dict)
    for host, its in table.items():
        for link in its:
            owners[link.address][host] = None
    return {address: tuple(hosts) for address, hosts in owners.items() if len(hosts) > 1}


def _best(its: Iterable[Link]) -> Link:
    return min(its, key=lambda link: (-(link.speed_mbps or 0), -(link.mtu or 0), link.interface, link.address))


def _network(cidrs: Iterable[str], chosen: Mapping[str, Link]) -> Network:
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
    network = ipaddress.ip_network(text)
    return network.version, int(network.network_address), network.prefixlen


def _common(usable: Mapping[str, Sequence[Link]]) -> List[Network]:
    """Return the subnets in which all nodes have an address."""
    names = dict.fromkeys(link.network for its in usable.values() for link in its)
    found = []
    for name in names:
        its = {host: [link for link in own if link.network == name] for host, own in usable.items()}
        if all(its.values()):
            found.append(_network([name], {host: _best(own) for host, own in its.items()}))
    return found


def _routed(
    nodes: Mapping[str, Facts], usable: Mapping[str, Sequence[Link]], common: Sequence[Network]
) -> List[Network]:
    """Return what may be one network by routing: the default route's interfaces, or one name in several subnets."""
    taken = {(host, name) for network in common for host, name in network.interfaces.items()}
    ways: List[Dict[str, Set[str]]] = [{host: {default_interface(node)} for host, node in nodes.items()}]
    names = dict.fromkeys(link.interface for its in usable.values() for link in its if link.kind in _ROUTED_KINDS)
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
                    if link.interface in way[host] and ipaddress.ip_network(link.network).version == version
                ]
                for host, own in usable.items()
            }
            if its and all(its.values()):
                chosen = {host: _best(own) for host, own in its.items()}
                found.append(_network((link.network for link in chosen.values()), chosen))
    return list({one.key: one for one in reversed(found)}.values())


def _family(network: Network) -> int:
    return ipaddress.ip_network(network.cidrs[0]).version


def _rank(network: Network, nodes: Mapping[str, Facts], others: Sequence[str]) -> Tuple[Any, ...]:
    known = [ipaddress.ip_address(one) for one in others if _is_address(one)]
    ways_out = {host: default_interface(node) for host, node in nodes.items()}
    out = all(ways_out[host] == name for host, name in network.interfaces.items())
    return (
        not all(any(one in ipaddress.ip_network(cidr) for cidr in network.cidrs) for one in known),
        not out and len(nodes) == 1,  # alone, a node cannot tell docker0 from a network
        -(network.speed_mbps or 0),
        -(network.mtu or 0),
        not out,
        len(network.cidrs),
        [_cidr_order(cidr) for cidr in network.cidrs],
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _pinned(
    nodes: Mapping[str, Facts],
    table: Mapping[str, Sequence[Link]],
    shared: Mapping[str, Tuple[str, ...]],
    networks: Sequence[IpNetwork],
    interfaces: Sequence[str],
) -> Candidates:
    chosen: Dict[str, Link] = {}
    lacking: Dict[str, str] = {}
    for host, its in table.items():
        inside = [link for link in its if not networks or any(_inside(link, one) for one in networks)]
        inside = [link for link in inside if not interfaces or link.interface in interfaces]
        own = [link for link in inside if link.up and link.address not in shared]
        if own:
            first = min((interfaces.index(link.interface) for link in own), default=0) if interfaces else 0
            chosen[host] = _best(link for link in own if not interfaces or link.interface == interfaces[first])
        elif any(link.up for link in inside):
            same = next(link.address for link in inside if link.up)
            lacking[host] = f"{same} there is also the address of {_others(shared[same], host)}"
        elif inside:
            lacking[host] = f"{inside[0].interface} is down"
        else:
            lacking[host] = "has " + (", ".join(f"{link.interface} {link.address}" for link in its) or "no address")
    if lacking:
        asked = " and ".join(
            [f"fabric_cidr {', '.join(str(one) for one in networks)}"] * bool(networks)
            + [f"fabric_interfaces {', '.join(interfaces)}"] * bool(interfaces)
        )
        words = "; ".join(f"{host}: {why}" for host, why in list(lacking.items())[:_MOST_NAMED])
        raise FabricError(
            f"{asked}: {fold(lacking)} {_has(lacking)} no address of its own there that is up ({words}); "
            "name a network that all nodes have, or leave it empty and it is found out.",
            lacking,
        )
    cidrs = [str(one) for one in networks if any(_inside(link, one) for link in chosen.values())]
    found = _network(cidrs or (link.network for link in chosen.values()), chosen) if chosen else None
    rejected = _rejections(nodes, table, shared, [found] if found else [], pinned=True)
    return Candidates((found,) if found else (), tuple(rejected), pinned=True)


def _inside(link: Link, network: IpNetwork) -> bool:
    return ipaddress.ip_address(link.address) in network


# --- why not the others ----------------------------------------------------------------------------------------------


def _rejections(
    nodes: Mapping[str, Facts],
    table: Mapping[str, Sequence[Link]],
    shared: Mapping[str, Tuple[str, ...]],
    found: Sequence[Network],
    *,
    pinned: bool = False,
) -> List[Rejection]:
    """Return, for each network and interface that is no candidate, who has it and why not."""
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
        rejected.append(Rejection(title, tuple(members), _why_not(nodes, members, shared, pinned=pinned)))
    merged = {name: hosts for name, hosts in single.items() if len(hosts) > 1}
    rejected = [
        one
        for one in rejected
        if not (len(one.hosts) == 1 and one.hosts[0] in merged.get(one.network.split(" ")[0], ()))
    ]
    rejected += [
        Rejection(name, tuple(hosts), "leads to a network of its own on each node") for name, hosts in merged.items()
    ]
    return rejected + _without_address(nodes)


def _why_not(
    nodes: Mapping[str, Facts],
    members: Mapping[str, Sequence[Link]],
    shared: Mapping[str, Tuple[str, ...]],
    *,
    pinned: bool,
) -> str:
    same = {link.address: shared[link.address] for its in members.values() for link in its if link.address in shared}
    only_shared = [host for host, its in members.items() if all(link.address in shared for link in its)]
    if only_shared:
        address = next(iter(same))
        return f"carries the same address {address} on {fold(same[address])}"
    words = []
    down: Dict[str, List[str]] = defaultdict(list)
    for host, its in members.items():
        if not any(link.up for link in its):
            down[its[0].interface].append(host)
    words += [f"{interface} is down on {fold(hosts)}" for interface, hosts in down.items()]
    missing = [host for host in nodes if host not in members]
    if missing:
        words.append(f"{fold(missing)} {_has(missing)} no address in it")
    if words:
        return "; ".join(words)
    if pinned:
        return "another network is pinned"
    return "IPv4 is taken, which all nodes have as well"


def _without_address(nodes: Mapping[str, Facts]) -> List[Rejection]:
    """Return the interfaces that could carry something and have no address at all."""
    bare: Dict[str, List[str]] = defaultdict(list)
    for host, node in nodes.items():
        for interface in node.get("interfaces") or ():
            kind, master = interface["kind"], interface.get("master")
            if kind in _ROUTED_KINDS and not master and not interface.get("addresses"):
                bare[interface["name"]].append(host)
    return [Rejection(name, tuple(hosts), f"has no address on {fold(hosts)}") for name, hosts in bare.items()]


def _has(hosts: Iterable[str]) -> str:
    return "has" if len(list(hosts)) == 1 else "have"


def _others(hosts: Iterable[str], host: str) -> str:
    return fold(one for one in hosts if one != host)


def fold(names: Iterable[str]) -> str:
    """Return host names in short: node[1-3,7], rack2-a; names that end alike in a number share brackets."""
    groups: Dict[str, List[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        stem = name.rstrip("0123456789")
        groups[stem].append(name[len(stem) :])
    words = []
    for stem, tails in groups.items():
        if len(tails) == 1:
            words.append(stem + tails[0])
            continue
        words += [stem] * ("" in tails)
        ranges: List[List[str]] = []
        for tail in sorted((tail for tail in tails if tail), key=lambda tail: (int(tail), len(tail))):
            if ranges and _follows(ranges[-1][-1], tail):
                ranges[-1] = [ranges[-1][0], tail]
            else:
                ranges.append([tail])
        words.append(f"{stem}[{','.join('-'.join(one) for one in ranges)}]")
    return ",".join(words)


def _follows(before: str, tail: str) -> bool:
    padded = "0" in {before[0], tail[0]}
    return int(tail) == int(before) + 1 and (len(tail) == len(before) or not padded)


# --- the probe -------------------------------------------------------------------------------------------------------


def pairs(hosts: Sequence[str], seed: int = 0) -> Tuple[Tuple[str, str], ...]:
    """Return who connects to whom: everybody to everybody up to 32 hosts, else a sample that leaves nobody out.

    The sample is a ring in random order (so it is connected) and log2(N) further targets for each host.
    """
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return tuple((source, target) for source in hosts for target in hosts if source != target)
    chance = random.Random(seed)  # noqa: S311 - a sample, no secret
    order = list(hosts)
    chance.shuffle(order)
    found = dict.fromkeys(zip(order, order[1:] + order[:1]))  # noqa: B905 - strict= came with Python 3.10
    for source in hosts:
        for target in chance.sample(order, math.ceil(math.log2(len(hosts)))):
            if target != source:
                found[source, target] = None
    return tuple(found)


def decide(found: Candidates, results: Sequence[PairResult]) -> Decision:
    """Take the best candidate in which every connection came through.

    Args:
        found: the candidates, best first.
        results: of the probe; without any, the candidates are believed.
    """
    failures = tuple(one for one in results if one.kind != "ok")
    failed: Dict[str, List[PairResult]] = defaultdict(list)
    for one in failures:
        failed[one.network].append(one)
    chosen = next((network for network in found.networks if network.key not in failed), None)
    rejected = list(found.rejected)
    for network in found.networks:
        if network is not chosen:
            hosts = tuple(network.addresses)
            why = failure_words(failed[network.key]) if failed[network.key] else _slower(network, chosen)
            rejected.append(Rejection(title(network), hosts, why))
    if chosen is not None:
        seen = sum(one.network == chosen.key for one in results)
        how = "pinned" if found.pinned else _how(chosen, found, failed)
        proof = f"{seen} connections came through" if seen else "not probed"
        reason = f"{title(chosen)}: {how}; {proof}"
    elif found.networks:
        reason = "no network carries connections between all nodes"
    else:
        reason = "no network is common to all nodes"
    return Decision(chosen, tuple(rejected), failures, found.pinned, reason)


def title(network: Network) -> str:
    """Return a network in the words of a report: eth0 10.0.0.0/24."""
    names = dict.fromkeys(network.interfaces.values())
    return f"{'/'.join(names)} {', '.join(network.cidrs)}"


def _how(chosen: Network, found: Candidates, failed: Mapping[str, Sequence[PairResult]]) -> str:
    if len(found.networks) == 1:
        return "the only network that all nodes have"
    if all(network is chosen or failed.get(network.key) for network in found.networks):
        return "the only network that carries"
    return f"the fastest of those that carry ({_pace(chosen)})"


def _pace(network: Network) -> str:
    speed = f"{network.speed_mbps} Mb/s" if network.speed_mbps else "speed unknown"
    return f"{speed}, MTU {network.mtu}" if network.mtu else speed


def _slower(network: Network, chosen: Optional[Network]) -> str:
    if chosen is None:
        return "was not proven"
    ours = ((network.speed_mbps or 0), (network.mtu or 0))
    theirs = ((chosen.speed_mbps or 0), (chosen.mtu or 0))
    word = "carries too, and is slower" if ours < theirs else "carries too, and is no faster"
    return f"{word} ({_pace(network)}; {title(chosen)} has {_pace(chosen)})"


def failure_words(failures: Sequence[PairResult]) -> str:
    """Return in words which connections of a network failed; where one node is in all of them, it is named."""
    kinds = {one.kind for one in failures}
    ends = [{one.source, one.target} for one in failures]
    common = set.intersection(*ends)
    words = "; ".join(
        f"{one.source} to {one.target}: {one.problem or KIND_WORDS.get(one.kind, one.kind)}"
        for one in failures[:_MOST_NAMED]
    )
    more = f" and {len(failures) - _MOST_NAMED} more" if len(failures) > _MOST_NAMED else ""
    if len(common) == 1 and len(failures) > 1:
        what = KIND_WORDS.get(next(iter(kinds)), "failed") if len(kinds) == 1 else "failed"
        return f"every failing connection has {common.pop()} at one end ({what}: {words}{more})"
    return f"{words}{more}"


def matrix(found: Candidates, results: Sequence[PairResult] = ()) -> Tuple[str, ...]:
    """Return a line for each network and interface: who has it, and why it will not do."""
    rejected = decide(found, results).rejected
    width = max((len(one.network) for one in rejected), default=0)
    hosts = [fold(one.hosts) for one in rejected]
    wide = max((len(words) for words in hosts), default=0)
    return tuple(
        f"{one.network:<{width}}  {words:<{wide}}  {one.reason}"
        for one, words in zip(rejected, hosts)  # noqa: B905 - strict= came with Python 3.10
    )


def prefer(found: Candidates, records: Mapping[str, Optional[Facts]]) -> Candidates:
    """Return the candidates with the one first that nodes have on record: for a run that visits a part of a cluster."""
    known = {",".join(record["cidrs"]) for record in records.values() if record}
    order = sorted(found.networks, key=lambda network: network.key not in known)
    return found._replace(networks=tuple(order))


def recorded(found: Candidates, records: Mapping[str, Optional[Facts]]) -> Optional[Network]:
    """Return the candidate that all nodes have on record as their fabric, if it is still the best one.

    It was proven when it was written down, and nothing that decides is another now: no need to prove it again.

    Args:
        found: the candidates of now.
        records: by host, what /etc/clusterctl/fabric.json says.
    """
    if not found.networks:
        return None
    best = found.networks[0]
    for host, address in best.addresses.items():
        record = records.get(host) or {}
        known = (tuple(record.get("cidrs") or ()), record.get("interface"), record.get("address"))
        if known != (best.cidrs, best.interfaces[host], address):
            return None
    return best


# --- as plain data, for Ansible's results -------------------------------------------------------------------------


def plain(found: Candidates) -> Dict[str, Any]:
    """Return candidates as JSON-ready data."""
    return {
        "networks": [{**network._asdict(), "cidrs": list(network.cidrs)} for network in found.networks],
        "rejected": [{**one._asdict(), "hosts": list(one.hosts)} for one in found.rejected],
        "pinned": found.pinned,
    }


def from_plain(data: Mapping[str, Any]) -> Candidates:
    """Return the candidates that :func:`plain` made data of."""
    return Candidates(
        tuple(Network(**{**one, "cidrs": tuple(one["cidrs"])}) for one in data["networks"]),
        tuple(Rejection(one["network"], tuple(one["hosts"]), one["reason"]) for one in data["rejected"]),
        bool(data["pinned"]),
    )


# --- RDMA ------------------------------------------------------------------------------------------------------------


def rdma(node: Facts) -> Tuple[RdmaChoice, ...]:
    """Return what each port of each RDMA device offers, and on Ethernet the GID that routes over IPv4.

    A RoCE port's GID table has an entry for each address and each version of RoCE: the one wanted is of type RoCE v2
    and maps an IPv4 address (::ffff:a.b.c.d), on the port's own interface where several do.
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
    mapped = [entry for entry in second if ipaddress.IPv6Address(entry["gid"]).ipv4_mapped is not None]
    if not mapped:
        if second:
            return None, "", "its RoCE v2 GIDs are of IPv6 alone; give its interface an IPv4 address"
        return None, "", "it has no RoCE v2 GID; give its interface an address, and see that RoCE v2 is enabled"
    own = [entry for entry in mapped if entry.get("netdev") == port.get("netdev")]
    taken = min(own or mapped, key=lambda entry: int(entry["index"]))
    address = ipaddress.IPv6Address(taken["gid"]).ipv4_mapped
    return int(taken["index"]), str(taken["gid"]), f"RoCE v2 of {address} on {taken.get('netdev') or 'its interface'}"


def nccl_pins(host: str, choices: Sequence[RdmaChoice], devices: Sequence[str], *, gid: bool) -> Dict[str, str]:
    """Return what is written for NCCL where the user asks for it.

    Args:
        host: whose choices these are, for the complaint.
        choices: of this node.
        devices: names such as mlx5_0 or mlx5_0:1, or ``auto`` for all usable ports of the fastest rate.
        gid: whether to pin the GID index.

    Raises:
        FabricError: a device is not there or its port cannot be used, or no single index fits.
    """
    for name in devices:
        if not _DEVICE.fullmatch(str(name)):
            raise FabricError(f"fabric_pin_hca has {name!r}, which is no device such as mlx5_0 or mlx5_0:1.")
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


# --- the files -------------------------------------------------------------------------------------------------------


def openmpi_include(network: Network, host: str) -> str:
    """Return what *_if_include gets on a node: its own subnets in CIDR form, which hold whatever interfaces are called.

    Other nodes' subnets would draw a warning, and Open MPI reads no IPv6 in CIDR form, so there the name is given.
    """
    address = ipaddress.ip_address(network.addresses[host])
    if address.version == 6:  # noqa: PLR2004
        return network.interfaces[host]
    return ",".join(cidr for cidr in network.cidrs if address in ipaddress.ip_network(cidr))


def prrte_include(network: Network) -> str:
    """Return what prte_if_include gets: the interfaces' names, those of all nodes.

    PRRTE gives its own to the daemons of the other nodes, and passes over a name that a node does not have. The CIDR
    form would not do: PRRTE 3.0 (Open MPI 5.0.7) fails to match it behind an interface that has no IPv4 address.
    """
    return ",".join(dict.fromkeys(network.interfaces.values()))


def files(network: Optional[Network], host: str, settings: Mapping[str, str]) -> Dict[str, str]:
    """Return the text of what the role lays out on a node, by the words ``openmpi``, ``prrte`` and ``nccl``.

    Args:
        network: what was decided; None takes everything out.
        host: whose files.
        settings: further variables of NCCL.
    """
    if network is None:
        return {"openmpi": "", "prrte": "", "nccl": "".join(f"{name}={settings[name]}\n" for name in sorted(settings))}
    include = openmpi_include(network, host)
    nccl = {"NCCL_SOCKET_IFNAME": f"={network.interfaces[host]}", **settings}
    return {
        "openmpi": f"btl_tcp_if_include = {include}\noob_tcp_if_include = {include}\n",
        "prrte": f"prte_if_include = {prrte_include(network)}\n",
        "nccl": "".join(f"{name}={nccl[name]}\n" for name in sorted(nccl)),
    }


def record(network: Network, host: str, rejected: Sequence[Rejection] = ()) -> Dict[str, Any]:
    """Return what /etc/clusterctl/fabric.json holds on a node.

    Args:
        network: what was decided.
        host: whose file.
        rejected: what facts alone rejected; what a probe says may be other words the next time.
    """
    return {
        "schema_version": 1,
        "cidrs": list(network.cidrs),
        "interface": network.interfaces[host],
        "address": network.addresses[host],
        "rejected": {one.network: one.reason for one in rejected},
    }
