# SPDX-License-Identifier: Apache-2.0
"""Say for each network and interface that is not a candidate why it is not."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, List, Mapping, Sequence, Tuple

from .. import config_line, ip_address
from .addresses import ROUTED_KINDS, Link
from .host_words import fold, has_or_have
from .model import Facts, Network, Rejection


def rejections(
    nodes: Mapping[str, Facts],
    table: Mapping[str, Sequence[Link]],
    shared: Mapping[str, Tuple[str, ...]],
    found: Sequence[Network],
    *,
    pinned: bool = False,
) -> List[Rejection]:
    """Return each network and interface that is not a candidate, with its hosts and the reason."""
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
    return rejected + _unnamable(nodes) + _without_address(nodes)


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
        words.append(f"{fold(missing)} {has_or_have(missing)} no address in it")
    if words:
        return "; ".join(words)
    if pinned:
        return "another network is pinned"
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


def _without_address(nodes: Mapping[str, Facts]) -> List[Rejection]:
    """Return the interfaces that could carry jobs but have no address."""
    bare: Dict[str, List[str]] = defaultdict(list)
    for host, node in nodes.items():
        for interface in node.get("interfaces") or ():
            kind, master = interface["kind"], interface.get("master")
            if not ip_address.is_interface(interface["name"]):
                continue
            if kind in ROUTED_KINDS and not master and not interface.get("addresses"):
                bare[interface["name"]].append(host)
    return [Rejection(name, tuple(hosts), f"has no address on {fold(hosts)}") for name, hosts in bare.items()]
