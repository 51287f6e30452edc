# SPDX-License-Identifier: Apache-2.0
"""Filters that write the cluster's members as lines of /etc/hosts and of a hostfile."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import ip_address

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")


def _names(member: Mapping[str, Any], domain: str) -> list[str]:
    """Return the member's names, the full one first: hosts(5) takes the first for the canonical name."""
    name = str(member["name"])
    names = [name, *map(str, member.get("aliases") or [])]
    if domain and not name.endswith(f".{domain}"):
        names.insert(0, f"{name}.{domain}")
    names.sort(key=lambda one: not one.startswith(f"{name}."))
    for one in names:
        if not _NAME.fullmatch(one):
            raise ValueError(f"{one!r} of member {name} is not a valid host name")
    return [one for one in dict.fromkeys(names) if not ip_address.is_address(one)]


def hosts_lines(members: Sequence[Mapping[str, Any]], domain: str = "") -> str:
    """Return one line of hosts(5) for each member, in their order.

    Args:
        members: each with ``name``, ``address`` and, where it has more names, ``aliases``.
        domain: each member gets one more name with this domain.

    Raises:
        ValueError: a name or an address is invalid, or two members share a name.
    """
    owners: dict[str, str] = {}
    lines = []
    for member in members:
        address = str(member["address"])
        if not ip_address.is_address(address):
            raise ValueError(f"the address of member {member['name']} is {address!r}, which is not an IP address")
        names = _names(member, domain.strip("."))
        for name in names:
            other = owners.setdefault(name.lower(), str(member["name"]))
            if other != str(member["name"]):
                raise ValueError(f"the name '{name}' belongs to both {other} and {member['name']}; make names unique")
        if names:
            lines.append(f"{address} {' '.join(names)}\n")
    return "".join(lines)


def hostfile_lines(members: Sequence[Mapping[str, Any]]) -> str:
    """Return one line of a hostfile for each member; without a comment, since horovodrun reads each line as a host.

    Args:
        members: each with ``name``, and ``slots``, by default 1.

    Raises:
        ValueError: a name is not valid.
    """
    for member in members:
        if not ip_address.is_address(str(member["name"])):
            _names(member, "")
    return "".join(f"{member['name']} slots={int(member.get('slots') or 1)}\n" for member in members)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"hosts_lines": hosts_lines, "hostfile_lines": hostfile_lines}
