# SPDX-License-Identifier: Apache-2.0
"""Check the members against each other: equal names, addresses and host keys."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

from .model import Problem
from .words import shortened


def merge_members(
    fresh: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]], inventory: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Join the members of this run with those of an earlier one.

    Args:
        fresh: members of this run; they take precedence.
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
            merged.append(now[name])
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
