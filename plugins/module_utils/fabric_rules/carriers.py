# SPDX-License-Identifier: Apache-2.0
"""Networks that carry a job's messages beside, or in place of, the one network of all nodes: rails and cables.

A rail is a second network of all nodes that is as fast as the first. A cable is a network that joins some of the nodes
alone, often two of them. Cables carry the messages where each pair of nodes has one. The runtime and NCCL's first
contact stay on the network of all nodes, because each node must be reached there.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from .model import MOST_NAMED, Network, fold, title

if TYPE_CHECKING:
    from .model import Facts
    from .networks import Link

RAIL_MBPS = 10_000  # a second network that is slower is mostly there for another purpose
# Kinds of interfaces that are wires of their own. A VLAN and a function of a card share the wire of another interface.
_WIRES = frozenset({"physical", "bond", "infiniband", "veth"})


def pace_of(network: Network) -> Tuple[int, int]:
    """Return speed and MTU of a network; the larger pair is the faster network."""
    return network.speed_mbps or 0, network.mtu or 0


def cables(
    usable: Mapping[str, Sequence[Link]],
    common: Sequence[Network],
    made: Callable[[Iterable[str], Mapping[str, Sequence[Link]]], Network],
) -> Tuple[List[Network], Dict[str, str]]:
    """Return the cables that carry the messages, or why there are none.

    Args:
        usable: by host, its addresses that are up and its own.
        common: the networks of all nodes, best first. Cables count where they are faster than the first.
        made: makes a network of its subnet and the links of each of its hosts.

    Returns:
        The cables where each pair of hosts has one, else none; and by the key of each other one, why it is left out.
    """
    groups: Dict[str, Dict[str, List[Link]]] = defaultdict(lambda: defaultdict(list))
    for host, its in usable.items():
        for link in its:
            groups[link.network][host].append(link)
    least = pace_of(common[0]) if common else (0, 0)
    found = [made([name], its) for name, its in groups.items() if 1 < len(its) < len(usable)]
    found = sorted((one for one in found if common and pace_of(one) > least), key=lambda one: one.key)
    there = {pair for one in found for pair in combinations(sorted(one.addresses), 2)}
    missing = [pair for pair in combinations(sorted(usable), 2) if pair not in there]
    if not missing:
        return found, {}
    more = f" and {len(missing) - MOST_NAMED} more pairs" if len(missing) > MOST_NAMED else ""
    lack = f"{', '.join(' and '.join(pair) for pair in missing[:MOST_NAMED])}{more} have no such link"
    return [], {one.key: f"joins {fold(one.addresses)} alone, and {lack}" for one in found}


def rails(networks: Sequence[Network], chosen: Network, nodes: Mapping[str, Facts]) -> List[Network]:
    """Return the networks of all nodes that are as fast as the chosen one and have wires of their own.

    Args:
        networks: candidates.
        chosen: the best of them that was proven.
        nodes: facts by host.
    """
    if (chosen.speed_mbps or 0) < RAIL_MBPS or not _own_wires(chosen, nodes):
        return []
    return [
        one
        for one in networks
        if one is not chosen
        and one.speed_mbps == chosen.speed_mbps
        and not set(one.interfaces.items()) & set(chosen.interfaces.items())
        and _own_wires(one, nodes)
    ]


def _own_wires(network: Network, nodes: Mapping[str, Facts]) -> bool:
    for host, name in network.interfaces.items():
        its = [one for one in nodes.get(host, {}).get("interfaces") or () if one["name"] == name]
        if not its or its[0]["kind"] not in _WIRES or its[0].get("is_function"):
            return False
    return True


def written(records: Mapping[str, Any]) -> List[Network]:
    """Return the networks that carry messages by the records of the nodes, without the first network of all.

    Args:
        records: by host, what /etc/clusterctl/fabric.json says, or None.
    """
    groups: Dict[str, Dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for host, record in records.items():
        for one in (record or {}).get("carriers") or ():
            if one["cidr"] not in ((record or {}).get("cidrs") or ()):
                groups[str(one["cidr"])][host] = one
    return [
        Network(
            (cidr,),
            {host: str(one["interface"]) for host, one in its.items()},
            {host: str(one["address"]) for host, one in its.items()},
        )
        for cidr, its in sorted(groups.items())
        if len(its) > 1
    ]


def over_cables(record: Any) -> bool:
    """Tell whether the record of a node has cables carry its messages, and not the cluster's network."""
    carriers, cidrs = (record or {}).get("carriers") or (), (record or {}).get("cidrs") or ()
    return bool(carriers) and all(one["cidr"] not in cidrs for one in carriers)


def words_of(carriers: Sequence[Network]) -> str:
    """Return the networks and their hosts, as in 'cx0 10.0.12.0/30 (node[1-2])'."""
    return ", ".join(f"{title(one)} ({fold(one.addresses)})" for one in carriers)
