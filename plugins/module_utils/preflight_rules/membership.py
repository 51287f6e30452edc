# SPDX-License-Identifier: Apache-2.0
"""Check the members against each other: equal names, addresses and host keys."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

from .. import ip_address
from ..fabric_rules.addresses import ROUTED_KINDS
from .member import Settings, node_addresses
from .model import Problem
from .words import shortened


def merge_members(
    fresh: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]], inventory: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Join the members of this run with those of an earlier one.

    Args:
        fresh: members of this run; they take precedence. Each keeps its ``user_key`` of an earlier run.
        known: members of an earlier run; they stand for hosts of the inventory that this run does not visit.
        inventory: names of all hosts of the inventory, in its order; other hosts are dropped.

    Returns:
        The members in the inventory's order, and the names of hosts without a member.
    """
    now = {entry["name"]: dict(entry) for entry in fresh}
    before = {entry["name"]: dict(entry) for entry in known}
    merged: list[dict[str, Any]] = []
    missing: list[str] = []
    for name in inventory:
        if name in now:
            key = before.get(name, {}).get("user_key")
            merged.append({**now[name], "user_key": key} if key else now[name])
        elif name in before:
            merged.append(before[name])
        else:
            missing.append(name)
    return merged, missing


def membership_problems(
    members: Sequence[Mapping[str, Any]],
    hostnames: Mapping[str, str],
    visited: Iterable[str],
    *,
    require_unique_host_keys: bool = True,
) -> list[Problem]:
    """Return the problems between members: equal names, addresses or host keys (cloned machines).

    Args:
        members: all members, also those of an earlier run.
        hostnames: the host names of the visited nodes, by inventory name.
        visited: names of this run's hosts; only they are reported.
        require_unique_host_keys: whether equal host keys are a problem.
    """
    seen = set(visited)
    found: list[Problem] = []
    names = {str(entry["name"]) for entry in members}
    for hostname, hosts in _shared({host: [name] for host, name in hostnames.items()}).items():
        found += [
            Problem(host, "hostname", f"its host name {hostname} is also that of {_others(hosts, host)}", _RENAME)
            for host in hosts
        ]
    claims = _shared({str(m["name"]): [m["name"], *m.get("aliases", ())] for m in members})
    for name, hosts in claims.items():
        found += [
            Problem(host, "hostname", f"its name {name} is also that of {_others(hosts, host)}", _UNIQUE)
            for host in hosts
            if host in seen
        ]
    for host, hostname in hostnames.items():
        if hostname in names and hostname != host:
            text = f"it calls itself {hostname}, which is the inventory's name of another node"
            found.append(Problem(host, "hostname", text, _RENAME))
    for address, hosts in _shared({m["name"]: [m["address"]] for m in members if m["address"]}).items():
        found += [
            Problem(
                host,
                "address",
                f"its address {address} is also that of {_others(hosts, host)}",
                "correct ansible_host or set cluster_address; one machine is listed once",
            )
            for host in hosts
            if host in seen
        ]
    if require_unique_host_keys:
        clones: dict[str, set[str]] = defaultdict(set)
        for hosts in _shared({m["name"]: m["host_keys"] for m in members}).values():
            for host in hosts:
                clones[host] |= set(hosts)
        found += [
            Problem(
                host,
                "host_key",
                f"its ssh host key is also that of {_others(sorted(hosts), host)}: cloned, or listed twice",
                "on the clones remove /etc/ssh/ssh_host_*, run 'ssh-keygen -A' and restart sshd",
            )
            for host, hosts in clones.items()
            if host in seen
        ]
    return found


def claim_problems(
    members: Sequence[Mapping[str, Any]], listed: Sequence[Settings], visited: Iterable[str]
) -> list[Problem]:
    """Return the nodes that say to have an address that another node, or another host of the inventory, has.

    The other nodes would accept the liar's key from there. An address that several nodes have besides, such as that of
    Docker's bridge, is no node's own: it is in no list of addresses (:func:`mesh_rules.source_addresses`).

    Args:
        members: all members, also those of an earlier run.
        listed: the variables of all hosts of the inventory.
        visited: names of this run's hosts; only they are reported.
    """
    having = {str(one["name"]): {str(one["address"]), *map(str, one.get("addresses", ()))} for one in members}
    owners = {str(one["address"]): str(one["name"]) for one in members if one["address"]}
    given: dict[str, list[str]] = defaultdict(list)
    for its in listed:
        for address in _given(its):
            if address in having.get(its.name, (address,)):
                given[its.name].append(address)
                owners.setdefault(address, its.name)
    found: list[Problem] = []
    for name in visited:
        for address in sorted(having.get(name, ())):
            owner = owners.get(address, name)
            if owner != name and address not in given[name]:
                cure = f"take it from {name}, or correct ansible_host or cluster_address; one machine is listed once"
                problem = f"it says that it has {address}, which is the address of {owner}"
                found.append(Problem(name, "address", problem, cure))
    return found


def _given(its: Settings) -> list[str]:
    """Return the addresses that the inventory gives a host to be reached at by the other nodes."""
    texts = its.resolved if its.cluster_address is None else [its.cluster_address]
    found = [ip_address.parsed(text) for text in texts if ip_address.is_address(text)]
    return [str(address) for address in found if ip_address.is_source(address)]


def shared_address_warnings(nodes: Mapping[str, Mapping[str, Any]], members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each set of nodes that have an address in common on an interface to other machines.

    Bridges, tunnels and the like have one address everywhere as a rule, and are left out.
    """
    own = {str(one["address"]) for one in members}
    owners: dict[str, list[str]] = defaultdict(list)
    for host, node in nodes.items():
        links = [one for one in node.get("interfaces") or () if one.get("kind") in ROUTED_KINDS]
        for address in node_addresses({"interfaces": links}):
            if address not in own and ip_address.is_source(ip_address.parsed(address)):
                owners[address].append(host)
    sets: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for address, hosts in owners.items():
        if len(hosts) > 1:
            sets[tuple(hosts)].append(address)
    return [
        f"{shortened(hosts)} have the same address {shortened(addresses)}; no node accepts a key of the mesh from it."
        for hosts, addresses in sets.items()
    ]


_UNIQUE = "correct cluster_aliases or ansible_host, or the node's own name with 'hostnamectl set-hostname NAME'"
_RENAME = "give it a unique name with 'hostnamectl set-hostname NAME'"


def _shared(values: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return each value that more than one host has, with those hosts."""
    owners: dict[str, list[str]] = defaultdict(list)
    for host, its in values.items():
        for value in its:
            owners[value].append(host)
    return {value: hosts for value, hosts in owners.items() if len(hosts) > 1}


def _others(hosts: Sequence[str], host: str) -> str:
    return shortened([one for one in hosts if one != host])
