# SPDX-License-Identifier: Apache-2.0
"""Choose the network that carries the cluster's jobs: facts of all nodes in, candidates and a decision out.

These modules neither read nor write anything. The role ``fabric`` and ``clusterctl`` use them on the controller. They
need the standard library of Python 3.9 alone. Facts are the dicts of ``node_look``.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from types import MappingProxyType
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .. import config_line, ip_address
from .carriers import over_cables, pace_of, rails, words_of, written
from .model import (
    KIND_WORDS,
    Candidates,
    Decision,
    FabricError,
    Facts,
    Network,
    PairKind,
    PairResult,
    RdmaChoice,
    Rejection,
    connection_results,
    failure_words,
    fold,
    from_plain,
    listener_ports,
    listener_problems,
    pace,
    plain,
    tells_cables,
    title,
)
from .networks import ROUTED_KINDS, cable_pins, candidates, links, nccl_pins, rdma

# The decision between the candidates, the files and the openings that follow from it.

# --- decision --------------------------------------------------------------------------------------------------------

ALL_PAIRS_UP_TO = 32


def pairs(hosts: Sequence[str], seed: int = 0) -> Tuple[Tuple[str, str], ...]:
    """Return who connects to whom: all ordered pairs up to 32 hosts, else a sample with every host.

    The sample is a ring in random order, which connects all hosts, and log2(N) further targets for each host.
    """
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return tuple((source, target) for source in hosts for target in hosts if source != target)
    chance = random.Random(seed)  # noqa: S311 - a sample, not a secret
    order = list(hosts)
    chance.shuffle(order)
    found = dict.fromkeys(zip(order, order[1:] + order[:1]))  # noqa: B905 - strict= came with Python 3.10
    for source in hosts:
        for target in chance.sample(order, math.ceil(math.log2(len(hosts)))):
            if target != source:
                found[source, target] = None
    return tuple(found)


def decide(
    found: Candidates,
    results: Sequence[PairResult],
    nodes: Mapping[str, Facts] = MappingProxyType({}),
    blind: Collection[str] = (),
) -> Decision:
    """Take the best candidate in which every connection came through, and the carriers of messages.

    Args:
        found: the candidates, best first.
        results: of the probe; without results, the first candidate is taken.
        nodes: facts by host, for rails; without them, there are none.
        blind: hosts whose Open MPI cannot tell which of its interfaces leads to which node. Cables are of no use there.
    """
    failures = tuple(one for one in results if one.kind != "ok")
    failed: Dict[str, List[PairResult]] = defaultdict(list)
    for one in failures:
        failed[one.network].append(one)
    chosen = next((network for network in found.networks if network.key not in failed), None)
    rejected = list(found.rejected)
    proven = [network for network in found.networks if network.key not in failed]
    carriers = [chosen, *rails(proven, chosen, nodes)] if chosen else []
    if found.cables and chosen:
        broken = [one for cable in found.cables for one in failed[cable.key]]
        if not blind and not broken:
            carriers = list(found.cables)
        why = f"Open MPI of {fold(blind)} cannot tell which of them leads to which node"
        why = failure_words(broken) if broken else why
        rejected += [Rejection(title(one), tuple(one.addresses), why) for one in found.cables if one not in carriers]
    for network in found.networks:
        if network is not chosen and network not in carriers:
            hosts = tuple(network.addresses)
            why = failure_words(failed[network.key]) if failed[network.key] else _slower(network, chosen)
            rejected.append(Rejection(title(network), hosts, why))
    if chosen is not None:
        seen = sum(one.network == chosen.key for one in results)
        how = "pinned" if found.pinned else _how(chosen, found, failed)
        proof = f"{seen} connections came through" if seen else "not probed"
        reason = f"{title(chosen)}: {how}; {proof}"
        if carriers != [chosen]:
            reason += f"; messages go over {words_of(carriers)}"
    elif found.networks:
        reason = "no network carries connections between all nodes"
    else:
        reason = "no network is common to all nodes"
    return Decision(chosen, tuple(rejected), failures, found.pinned, reason, tuple(carriers))


def disputed(results: Sequence[PairResult]) -> Dict[str, Tuple[PairResult, ...]]:
    """Return by host its claims against others that they and a third one contradict.

    A host alone says that it did not reach another one. The other one reached it, and a third one reached the other.
    """
    reached = {(one.network, one.source, one.target) for one in results if one.kind == "ok"}
    lost = {(one.network, one.source, one.target) for one in results if one.kind != "ok"}
    to: Dict[Tuple[str, str], List[str]] = defaultdict(list)
    accused: Dict[Tuple[str, str], List[str]] = defaultdict(list)
    for network, source, target in reached:
        to[network, target].append(source)
    for network, source, target in lost:
        accused[network, target].append(source)
    found: Dict[str, List[PairResult]] = defaultdict(list)
    for one in results:
        back = (one.network, one.target, one.source) in reached
        alone = accused[one.network, one.target] == [one.source]
        if one.kind != "ok" and back and alone and to[one.network, one.target]:
            found[one.source].append(one)
    return {host: tuple(claims) for host, claims in found.items()}


def at_fault(failures: Sequence[PairResult]) -> Tuple[str, ...]:
    """Return the hosts that explain all failures of a network: again and again those with the most failures left."""
    left = {(one.source, one.target) for one in failures}
    found: List[str] = []
    while left:
        count = Counter(host for pair in left for host in pair)
        most = max(count.values())
        worst = [host for host in sorted(count) if count[host] == most]
        found += worst
        left = {pair for pair in left if not set(pair) & set(worst)}
    return tuple(found)


def _how(chosen: Network, found: Candidates, failed: Mapping[str, Sequence[PairResult]]) -> str:
    if len(found.networks) == 1:
        return "the only network that all nodes have"
    if all(network is chosen or failed.get(network.key) for network in found.networks):
        return "the only network that carries"
    return f"the fastest of those that carry ({pace(chosen)})"


def _slower(network: Network, chosen: Optional[Network]) -> str:
    if chosen is None:
        return "was not proven"
    word = "carries too, and is slower" if pace_of(network) < pace_of(chosen) else "carries too, and is no faster"
    return f"{word} ({pace(network)}; {title(chosen)} has {pace(chosen)})"


def prefer(found: Candidates, records: Mapping[str, Optional[Facts]]) -> Candidates:
    """Put the network first that the nodes have on record; a run on a part of a cluster needs this."""
    known = {",".join(record["cidrs"]) for record in records.values() if record}
    order = sorted(found.networks, key=lambda network: network.key not in known)
    return found._replace(networks=tuple(order))


def recorded(
    found: Candidates, records: Mapping[str, Optional[Facts]], nodes: Mapping[str, Facts] = MappingProxyType({})
) -> Optional[Network]:
    """Return the candidate that all nodes have on record, if it is still the best one.

    Each record names the nodes with which this one was proven. If they are all here and the facts that decide are the
    same, it needs no second proof; a new node does.

    Args:
        found: the present candidates.
        records: by host, what /etc/clusterctl/fabric.json says.
        nodes: facts by host, for rails.
    """
    if not found.networks:
        return None
    best = found.networks[0]
    carriers = found.cables or (best, *rails(found.networks, best, nodes))
    for host in best.addresses:
        known = proven_with(best, host, records.get(host))
        if known is None or not set(best.addresses) <= {host, *known}:
            return None
        if list((records[host] or {}).get("carriers") or ()) != carriers_of(host, best, carriers):
            return None
    return best


def carriers_of(host: str, network: Network, carriers: Sequence[Network]) -> List[Dict[str, str]]:
    """Return cidr, interface and address of each carrier of a host; none where it is the network itself alone."""
    if list(carriers) in ([], [network]):
        return []
    return [
        {"cidr": own_subnets(one, host), "interface": one.interfaces[host], "address": one.addresses[host]}
        for one in carriers
        if host in one.addresses
    ]


def proven_with(network: Network, host: str, record: Optional[Facts]) -> Optional[Tuple[str, ...]]:
    """Return the nodes with which a host's connections in this network are proven, None if it is not on record."""
    record = record or {}
    known = (tuple(record.get("cidrs") or ()), record.get("interface"), record.get("address"))
    if known != (network.cidrs, network.interfaces[host], network.addresses[host]):
        return None
    return tuple(record.get("proven") or ())


def matrix(found: Candidates, results: Sequence[PairResult] = ()) -> Tuple[str, ...]:
    """Return a line for each rejected network and interface: its hosts, and the reason."""
    rejected = decide(found, results).rejected
    width = max((len(one.network) for one in rejected), default=0)
    hosts = [fold(one.hosts) for one in rejected]
    wide = max((len(words) for words in hosts), default=0)
    return tuple(
        f"{one.network:<{width}}  {words:<{wide}}  {one.reason}"
        for one, words in zip(rejected, hosts)  # noqa: B905 - strict= came with Python 3.10
    )


TWINS_CURE = "give each card an address of its own"


def own_twins(node: Facts) -> Dict[str, List[str]]:
    """Return the addresses that several cards of one node have, with their names.

    An address without its network (/32, /128) may be on several links of a router on purpose.
    """
    having: Dict[str, Dict[str, None]] = defaultdict(dict)
    for interface in node.get("interfaces") or ():
        for entry in interface.get("addresses") or () if interface.get("kind") in ROUTED_KINDS else ():
            if ip_address.is_address(entry.get("address")):
                address = ip_address.parsed(entry["address"])
                if ip_address.is_source(address) and entry.get("prefix") not in {address.max_prefixlen, None}:
                    having[str(address)][str(interface.get("name", ""))] = None
    return {address: list(names) for address, names in having.items() if len(names) > 1}


def idle_cards(names: str, count: int) -> Tuple[str, str]:
    """Return cause and cure for RDMA cards of a node without a driver, by their names in words and their number."""
    what, them = (f"cards {names} have", "them") if count > 1 else (f"card {names} has", "it")
    return (
        f"the RDMA {what} no driver, so jobs cannot use {them}",
        "run 'modprobe mlx5_core' and 'modprobe mlx5_ib', and look in the kernel's log",
    )


# --- config files ----------------------------------------------------------------------------------------------------

# PRRTE's daemons start ranks in 16 threads of their own. A rank that ends before its thread has noted its process id is
# reaped by another thread, which does not know it, and mpirun waits forever: 11 of 252 runs of hostname with PRRTE
# 3.0.8 of Open MPI 5.0.7. Without such threads, the one that reaps starts the ranks.
_NO_THREADS = "odls_base_max_threads = 0\n"


def openmpi_include(network: Network, host: str) -> str:
    """Return the value of *_if_include on a node: its own subnets in CIDR form.

    Subnets of other nodes would cause a warning. Open MPI does not read IPv6 in CIDR form, so an IPv6 network is given
    by the name of the interface.
    """
    if ip_address.parsed(network.addresses[host]).version == 6:  # noqa: PLR2004
        return network.interfaces[host]
    return own_subnets(network, host)


def own_subnets(network: Network, host: str) -> str:
    """Return the subnets of a network that a node is in, joined by commas."""
    address = ip_address.parsed(network.addresses[host])
    return ",".join(cidr for cidr in network.cidrs if address in ip_address.network(cidr))


def prrte_include(network: Network) -> str:
    """Return the value of prte_if_include: the names of the interfaces of all nodes.

    PRRTE passes its own value to the daemons of the other nodes, and skips a name that a node does not have. The CIDR
    form does not work: PRRTE 3.0 (Open MPI 5.0.7) fails to match it behind an interface without an IPv4 address.
    """
    return ",".join(dict.fromkeys(network.interfaces.values()))


def _is_ipv6(network: Network) -> bool:
    return ip_address.network(network.cidrs[0]).version == 6  # noqa: PLR2004


def files(
    network: Optional[Network], host: str, settings: Mapping[str, str], carriers: Sequence[Network] = ()
) -> Dict[str, str]:
    """Return the text of the files on a node, under the keys ``openmpi``, ``prrte`` and ``nccl``.

    Args:
        network: the decision; None empties the files.
        host: the node.
        settings: more variables of NCCL.
        carriers: the networks that carry messages; none are the network itself.

    Raises:
        FabricError: the name of an interface or the value of a setting does not fit into a line.
    """
    if network is None:
        return {"openmpi": "", "prrte": "", "nccl": _nccl(settings, host)}
    for name, interface in (pair for one in (network, *carriers) for pair in one.interfaces.items()):
        if not ip_address.is_interface(interface):
            raise FabricError(
                f"The interface {config_line.shown(interface)} of {name} has a name that the files of Open MPI and "
                "NCCL cannot hold; give it another one there, or name a network without it in fabric_cidr.",
                [name],
            )
    include = openmpi_include(network, host)
    its = [one for one in carriers if host in one.addresses] or [network]
    messages = ",".join(openmpi_include(one, host) for one in its)
    # NCCL's first contact goes over the first of these, and each of its sockets goes to any node.
    sockets = its if network in its else [network]
    nccl = {"NCCL_SOCKET_IFNAME": f"={','.join(one.interfaces[host] for one in sockets)}", **settings}
    links = ""
    if _is_ipv6(network):  # the interface may have addresses of IPv4 too, which are outside of the network
        # oob_tcp_disable_ipv4_family is no twin of it: with it, PMIx finds no address to listen on (Open MPI 5.0.7).
        links = "btl_tcp_disable_family = 4\n"
        nccl.setdefault("NCCL_SOCKET_FAMILY", "AF_INET6")
    return {
        "openmpi": f"btl_tcp_if_include = {messages}\n{links}oob_tcp_if_include = {include}\n",
        "prrte": f"prte_if_include = {prrte_include(network)}\n{_NO_THREADS}",
        "nccl": _nccl(nccl, host),
    }


def ucx_conf(
    network: Optional[Network], host: str, choices: Iterable[RdmaChoice], carriers: Sequence[Network] = ()
) -> str:
    """Return the lines of ucx.conf on a node: its RDMA ports that are up, and the interfaces for TCP.

    UCX takes the fastest of what it is given, and does not use another interface such as docker0.

    Args:
        network: the decision; None empties the file.
        host: the node.
        choices: the node's RDMA ports.
        carriers: the networks that carry messages; none are the network itself.

    Raises:
        FabricError: the name of a device does not fit into the line.
    """
    if network is None:
        return ""
    ports = [f"{one.device}:{one.port}" for one in choices if one.usable and one.state == "ACTIVE"]
    interfaces = [one.interfaces[host] for one in carriers if host in one.interfaces] or [network.interfaces[host]]
    value = ",".join([*ports, *interfaces])
    try:
        return f"UCX_NET_DEVICES={config_line.checked(value, f'UCX_NET_DEVICES of {host} in ucx.conf')}\n"
    except config_line.LineError as error:
        raise FabricError(f"{error}.", [host]) from None


def _nccl(settings: Mapping[str, str], host: str) -> str:
    """Return the lines of nccl.conf."""
    lines = []
    for name in sorted(settings):
        try:
            lines.append(f"{name}={config_line.checked(str(settings[name]), f'{name} of {host} in nccl.conf')}\n")
        except config_line.LineError as error:
            raise FabricError(f"{error}.", [host]) from None
    return "".join(lines)


def record(
    network: Network,
    host: str,
    rejected: Sequence[Rejection] = (),
    proven: Iterable[str] = (),
    *,
    opened: bool = False,
    carriers: Sequence[Network] = (),
) -> Dict[str, Any]:
    """Return the content of /etc/clusterctl/fabric.json on a node.

    Args:
        network: the decision.
        host: the node.
        rejected: rejections that follow from facts; the words of a probe may differ the next time.
        proven: the nodes with which connections of this node came through.
        opened: whether the role opens the network in the node's firewall.
        carriers: the networks that carry messages.
    """
    carrying = carriers_of(host, network, carriers)
    return {
        "schema_version": 1,
        "cidrs": list(network.cidrs),
        "interface": network.interfaces[host],
        "address": network.addresses[host],
        "rejected": {one.network: one.reason for one in rejected},
        "proven": sorted(set(proven) - {host}),
        **({"opened": True} if opened else {}),
        **({"carriers": carrying} if carrying else {}),
    }


# --- openings --------------------------------------------------------------------------------------------------------


def openings(networks: Iterable[Network], host: str, members: Iterable[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Return for each network the one of its subnets that a node is in, its interface, and the other members.

    Args:
        networks: those to open.
        host: the node.
        members: all members; of those that the network does not name, the addresses inside of it count.
    """
    found = []
    for network in networks:
        if host not in network.addresses:
            continue
        own = ip_address.parsed(network.addresses[host])
        subnets = [ip_address.network(cidr) for cidr in network.cidrs]
        others = {address for name, address in network.addresses.items() if name != host}
        for member in members:
            if str(member.get("name")) not in network.addresses:  # not in this run, or not in this network
                known = [member.get("address"), *(member.get("addresses") or ())]
                texts = [str(one) for one in known if ip_address.is_address(str(one))]
                others |= {one for one in texts if any(ip_address.parsed(one) in subnet for subnet in subnets)}
        found.append(
            {
                "cidr": next((str(one) for one in subnets if own in one), network.cidrs[0]),
                "interface": network.interfaces[host],
                "members": sorted(others),
            }
        )
    return found


__all__ = [
    "ALL_PAIRS_UP_TO",
    "KIND_WORDS",
    "TWINS_CURE",
    "Candidates",
    "Decision",
    "FabricError",
    "Facts",
    "Network",
    "PairKind",
    "PairResult",
    "RdmaChoice",
    "Rejection",
    "at_fault",
    "cable_pins",
    "candidates",
    "carriers_of",
    "connection_results",
    "decide",
    "disputed",
    "failure_words",
    "files",
    "fold",
    "from_plain",
    "idle_cards",
    "links",
    "listener_ports",
    "listener_problems",
    "matrix",
    "nccl_pins",
    "openings",
    "openmpi_include",
    "over_cables",
    "own_subnets",
    "own_twins",
    "pairs",
    "plain",
    "prefer",
    "proven_with",
    "prrte_include",
    "rdma",
    "record",
    "recorded",
    "tells_cables",
    "title",
    "ucx_conf",
    "words_of",
    "written",
]
