# SPDX-License-Identifier: Apache-2.0
"""The members of the cluster: names and addresses of each, and what may not be of two."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import fabric_rules, ip_address
from ..fabric_rules.networks import ROUTED_KINDS
from .node import Problem, shortened, shown_value

# --- member ----------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")

_MAX_PORT = 65535

_MAX_SLOTS = 65535

# Drivers of RDMA devices that UCX has no transport for: Amazon's EFA and Cisco's usNIC.
_NOT_UCX = ("efa", "usnic_verbs")


@dataclass(frozen=True)
class Settings:
    """The variables of one host that its membership depends on.

    ``resolved`` are the addresses of ``reached_at`` (ansible_host or the name), looked up on the controller.
    """

    name: str
    reached_at: str
    resolved: Sequence[str] = ()
    cluster_address: str | None = None
    cluster_port: int | None = None
    cluster_aliases: Sequence[str] = ()
    slots: int | None = None


def settings(host: str, its: Mapping[str, Any], resolved: Sequence[str]) -> tuple[Settings, list[Problem]]:
    """Return the variables of a host that its membership depends on.

    Args:
        host: its inventory name.
        its: its variables.
        resolved: the addresses of ansible_host (or the name), looked up on the controller.

    Returns:
        The settings, and a problem for each variable that is not valid.
    """
    found: list[Problem] = []

    def number(name: str, most: int) -> int | None:
        given = its.get(name)
        if given is None:
            return None
        try:
            value = int(given)
        except (TypeError, ValueError):
            value = 0
        if 0 < value <= most:
            return value
        cure = f"correct {name} of this host in the inventory"
        found.append(
            Problem(
                host, "variable", f"{name} is {shown_value(given)}, which is not a number from 1 to {most}", cure, name
            )
        )
        return None

    address = its.get("cluster_address")
    aliases = its.get("cluster_aliases") or []
    made = Settings(
        name=host,
        reached_at=reached_at(host, its),
        resolved=resolved,
        cluster_address=None if address is None else str(address),
        cluster_port=number("cluster_port", _MAX_PORT),
        cluster_aliases=[str(one) for one in ([aliases] if isinstance(aliases, str) else aliases)],
        slots=number("slots", _MAX_SLOTS),
    )
    return made, found


def reached_at(host: str, its: Mapping[str, Any]) -> str:
    """Return the name or address by which Ansible reaches a host; the older variable wins there."""
    return str(its.get("ansible_ssh_host") or its.get("ansible_host") or host)


def inventory_names(settings: Settings) -> list[str]:
    """Return every name that the inventory gives a host: its own, its ``cluster_aliases``, and an ``ansible_host``."""
    names = [settings.name, *settings.cluster_aliases, settings.reached_at]
    return [name for name in dict.fromkeys(names) if _NAME.fullmatch(name) and not ip_address.is_address(name)]


def own_names(settings: Settings, node: Mapping[str, Any], domains: Sequence[str] = ()) -> list[str]:
    """Return the names of a node's own that other nodes may believe.

    A node may call itself anything, for example like a package index. Its word counts for the first label of a name
    that the inventory gives it, and for names inside the domains.

    Args:
        settings: its variables.
        node: its facts.
        domains: domains whose names a node may give itself.
    """
    labels = {name.partition(".")[0].lower() for name in inventory_names(settings)}
    ends = tuple(f".{domain.strip('.').lower()}" for domain in domains if domain.strip("."))
    own = dict.fromkeys(str(node.get(key, "")) for key in ("hostname", "fqdn"))
    return [name for name in own if name.lower() in labels or (ends and name.lower().endswith(ends))]


def known_names(settings: Settings, given: Sequence[str], domains: Sequence[str] = ()) -> list[str]:
    """Return those aliases of an earlier run that the inventory and the domains still allow."""
    allowed = {name for word in given for name in own_names(settings, {"hostname": word}, domains)}
    return [word for word in given if word in allowed or word in inventory_names(settings)]


def member(
    settings: Settings, node: Mapping[str, Any], *, domains: Sequence[str] = (), alone: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    """Describe a node as the others see it.

    Args:
        settings: its variables.
        node: its facts.
        domains: domains whose names a node may give itself; its other own names are no aliases.
        alone: whether it is the only member, for which a loopback address is enough.

    Returns:
        The member (see the role's README) and its problems.
    """
    own = node_addresses(node)
    address, problems = _address(settings, own, _default_address(node), alone=alone)
    # The port on which the node itself answered: behind a port forward, the controller uses another one.
    port = settings.cluster_port or int((node.get("ssh") or {}).get("port") or 22)
    names: dict[str, str] = {}
    for name in (*inventory_names(settings), *own_names(settings, node, domains)):
        names.setdefault(name.lower(), name)
    aliases = [
        name
        for key, name in names.items()
        if key != settings.name.lower()
        and _NAME.fullmatch(name)
        and not name.startswith("localhost")
        and not ip_address.is_address(name)
    ]
    entry = {
        "name": settings.name,
        "address": address,
        "addresses": source_addresses(node),
        "port": port,
        "host_keys": sorted((node.get("ssh") or {}).get("host_keys") or []),
        "aliases": aliases,
        "platform": str(node.get("platform", "")),
        "slots": settings.slots or gpu_devices(node) or int(node.get("cores") or 1),
        "provides": provides(node),
        "gpus": len(_usable_gpus(node)),
        "idle_gpus": idle_gpus(node),
        "cuda": cuda_of(node),
        "pmix": pmix_of(node),
    }
    return entry, problems


def pmix_of(node: Mapping[str, Any]) -> dict[str, str]:
    """Return prefix, library, version and headers of the site's PMIx; {} without one."""
    site = (node.get("pmix") or {}).get("site") or {}
    return {name: str(site.get(name) or "") for name in ("prefix", "library", "version", "headers")} if site else {}


def _usable_gpus(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the GPUs that NVIDIA's driver has taken and that a session's programs reach."""
    return [gpu for gpu in node.get("gpus") or [] if gpu.get("driver") == "nvidia" and not gpu.get("unusable")]


def gpu_devices(node: Mapping[str, Any]) -> int:
    """Return how many ranks can take a GPU of their own; a MIG instance counts as one."""
    return sum(len(gpu.get("instances") or []) or 1 for gpu in _usable_gpus(node))


def idle_gpus(node: Mapping[str, Any]) -> str:
    """Return in words the GPUs that jobs cannot use, '' without them.

    Cards of the class of screens without NVIDIA's driver are left out. So are GPUs that were given to a virtual
    machine, and those of a machine that a container was not given.
    """
    idle = [
        gpu
        for gpu in node.get("gpus") or []
        if gpu.get("unusable") not in {None, "", "device"}
        and gpu.get("driver") != "vfio-pci"
        and not (gpu.get("display") and gpu["unusable"] == "driver")
    ]
    if not idle:
        return ""
    return f"{'1 GPU' if len(idle) == 1 else f'{len(idle)} GPUs'} that jobs cannot use: {idle[0].get('problem', '')}"


def cuda_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CUDA major that the driver can run (0 without a driver), and the versions of driver and toolkit."""
    cuda = node.get("cuda") or {}
    driver = str(cuda.get("driver_version") or "")
    return {
        "driver_major": int(cuda.get("major") or 0) if driver else 0,
        "driver_version": driver,
        "toolkit_version": str(cuda.get("toolkit_version") or ""),
    }


def provides(node: Mapping[str, Any]) -> list[str]:
    """Return what a build can rely on here: libraries, the CUDA toolkit, and RDMA devices and NVLinks that UCX uses.

    Where UCX is installed, links that are down or not known count, and so do those of GPUs that jobs cannot use at the
    moment. A passing state is then no reason for a new build.
    """
    has_ucx = any(one.get("name") == "ucx" for one in node.get("artifacts") or ())
    gpus = node.get("gpus") or () if has_ucx else _usable_gpus(node)
    cuda, tools = node.get("cuda") or {}, node.get("tools") or {}
    found = {
        "cuda_toolkit": cuda.get("toolkit_version"),
        "libcuda": cuda.get("libcuda"),
        "gdrcopy": tools.get("gdrcopy"),
        "rdma": usable_devices(node),
        "nvlink": any(gpu.get("nvlink") or (has_ucx and gpu.get("nvlink_down")) for gpu in gpus),
    }
    return [name for name, there in found.items() if there]


def usable_devices(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the RDMA devices that UCX can use."""
    return [one for one in node.get("rdma") or [] if one.get("driver") not in _NOT_UCX]


def node_addresses(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of a node's interfaces, each with its interface's name; other text is left out."""
    found: dict[str, str] = {}
    for interface in node.get("interfaces") or []:
        for entry in interface.get("addresses") or []:
            with contextlib.suppress(ValueError):
                found[ip_address.canonical(entry.get("address"))] = str(interface.get("name", ""))
    return found


def source_addresses(node: Mapping[str, Any]) -> list[str]:
    """Return the addresses from which a node's connections may reach another machine: neither loopback nor link."""
    return [text for text in node_addresses(node) if ip_address.is_source(ip_address.parsed(text))]


def _default_address(node: Mapping[str, Any]) -> str:
    """Return the address of the interface with the default route, IPv4 before IPv6; '' if it is unknown."""
    sources = source_addresses(node)
    for destination, sign in (("0.0.0.0/0", "."), ("::/0", ":")):
        for route in node.get("routes") or []:
            if route.get("destination") == destination:
                for address, interface in node_addresses(node).items():
                    if interface == route.get("interface") and sign in address and address in sources:
                        return address
    return ""


def _address(settings: Settings, own: Mapping[str, str], suggestion: str, *, alone: bool) -> tuple[str, list[Problem]]:
    """Choose the address by which the other nodes reach a node; '' and a problem if there is no such address.

    ``own`` is empty if the node could not tell its addresses; then the inventory decides.
    """
    reached_at, given = settings.reached_at, settings.cluster_address
    if given is not None and ip_address.is_address(given):
        given = ip_address.canonical(given)  # IPv6 has many spellings of one address
    address, problem = "", ""
    if given is not None:
        problem = _why_not(given, own, alone=alone)
        address = "" if problem else given
    else:
        mine = [one for one in settings.resolved if not own or one in own]
        outside = [one for one in mine if alone or _leads_elsewhere(one)]
        if not settings.resolved:
            problem = f"{reached_at} does not resolve to an address on this machine"
        elif not mine:
            problem = f"it is reached at {reached_at}, an address that none of its interfaces has"
        elif not outside:
            what = _OF_A_LINK if any(map(ip_address.is_ipv6_of_link, mine)) else "which every node has itself"
            problem = f"it is reached at {reached_at}, {what}"
        else:
            address = outside[0]
    if not problem:
        return address, []
    cure = f"set cluster_address={suggestion or 'ADDRESS'} for it, the address by which the other nodes reach it"
    return "", [Problem(settings.name, "address", problem, cure)]


def _why_not(given: str, own: Mapping[str, str], *, alone: bool) -> str:
    """Return why the others cannot reach a node at its cluster_address, '' if they can."""
    if ip_address.is_ipv6_of_link(given):
        return f"its cluster_address is {given}, {_OF_A_LINK}"
    if not ip_address.is_address(given):
        return f"cluster_address is {shown_value(given)}, which is not an IP address"
    if not (alone or _leads_elsewhere(given)):
        return f"its cluster_address is {given}, which every node has itself"
    return f"none of its interfaces has its cluster_address {given}" if own and given not in own else ""


_OF_A_LINK = "a link-local address of IPv6, over which Open MPI sends nothing"


def _leads_elsewhere(text: str) -> bool:
    """Tell whether other nodes may reach an address; IPv4 of one link is enough where a cable is all there is."""
    address = ip_address.parsed(text)
    return ip_address.is_source(address) or (address.version == 4 and address.is_link_local)  # noqa: PLR2004


# --- membership ------------------------------------------------------------------------------------------------------


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
    names = {str(entry["name"]).lower() for entry in members}
    for hostname, hosts in _shared({host: [name.lower()] for host, name in hostnames.items()}).items():
        found += [
            Problem(host, "hostname", f"its host name {hostname} is also that of {_others(hosts, host)}", _RENAME)
            for host in hosts
        ]
    claims = _shared(
        {str(m["name"]): dict.fromkeys(map(str.lower, [m["name"], *m.get("aliases", ())])) for m in members}
    )
    for name, hosts in claims.items():
        found += [
            Problem(host, "hostname", f"its name {name} is also that of {_others(hosts, host)}", _UNIQUE)
            for host in hosts
            if host in seen
        ]
    for host, hostname in hostnames.items():
        if hostname.lower() in names and hostname.lower() != host.lower():
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


def card_warnings(nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for RDMA cards without a driver, and for cards of one node with the same address.

    Nodes of which the same is to be said share a sentence.
    """
    folded: dict[str, list[str]] = defaultdict(list)
    for host, node in nodes.items():
        if idle := node.get("driverless_cards") or ():
            cause, cure = fabric_rules.idle_cards(shortened(idle), len(idle))
            folded[f"{cause}; {cure}."].append(host)
        for address, names in fabric_rules.own_twins(node).items():
            cause = f"{' and '.join(names)} have the same address {address}"
            folded[f"{cause}; {fabric_rules.TWINS_CURE}."].append(host)
    return [f"{shortened(hosts)}: {sentence}" for sentence, hosts in folded.items()]


_UNIQUE = "correct cluster_aliases or ansible_host, or the node's own name with 'hostnamectl set-hostname NAME'"
_RENAME = "give it a unique name with 'hostnamectl set-hostname NAME'"


def _shared(values: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return each value that more than one host has, with those hosts."""
    owners: dict[str, list[str]] = defaultdict(list)
    for host, its in values.items():
        for value in its:
            owners[value].append(host)
    return {value: hosts for value, hosts in owners.items() if len(hosts) > 1}


def _others(hosts: Sequence[str], host: str) -> str:
    return shortened([one for one in hosts if one != host])
