# SPDX-License-Identifier: Apache-2.0
"""Parse IP addresses, networks and names of interfaces that a node, an inventory or a user gave.

Python's ipaddress takes any text behind a '%' as the scope of an IPv6 address, with quotes and newlines, and keeps it.
So nothing else here parses such text. It needs only Python 3.9 and the standard library.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import Optional, Union

IpAddress = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
IpNetwork = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
# The kernel takes any 15 bytes but blanks, '/' and ':' (dev_valid_name). These are the characters that no file of Open
# MPI, NCCL, sshd or a firewall gives a meaning.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+~@-]{0,14}")


def parsed(text: object, *, may_have_scope: bool = False) -> IpAddress:
    """Return an address without its scope; an IPv4 address in IPv6 (``::ffff:10.0.0.1``) as the IPv4 address it is.

    Args:
        text: the address.
        may_have_scope: whether ``%eth0`` may follow an IPv6 address.

    Raises:
        ValueError: it is not the text of an address, or has a scope that is not wanted or not valid.
    """
    if isinstance(text, str):
        bare, mark, scope = text.partition("%")
        if not mark or (may_have_scope and ":" in bare and _SCOPE.fullmatch(scope)):
            with contextlib.suppress(ValueError):
                address = ipaddress.ip_address(bare)
                return getattr(address, "ipv4_mapped", None) or address
    raise ValueError(f"{_shown(text)} is not an IP address")


def canonical(text: object) -> str:
    """Return the one spelling of an address.

    Raises:
        ValueError: see :func:`parsed`.
    """
    return str(parsed(text))


def is_address(text: object) -> bool:
    """Tell whether something is the text of an address, without a scope."""
    try:
        parsed(text)
    except ValueError:
        return False
    return True


def network(text: object, *, strict: bool = True) -> IpNetwork:
    """Return a network.

    Args:
        text: the network in CIDR form.
        strict: whether a network with bits of a host is refused.

    Raises:
        ValueError: it is not the text of a network.
    """
    if isinstance(text, str) and "%" not in text:
        with contextlib.suppress(ValueError):
            return ipaddress.ip_network(text, strict=strict)
    raise ValueError(f"{_shown(text)} is not a network")


def network_or_none(text: object) -> Optional[IpNetwork]:
    """Return the network of a CIDR, which may have bits of a host; None for anything else."""
    try:
        return network(text, strict=False)
    except ValueError:
        return None


def is_source(address: IpAddress) -> bool:
    """Tell whether another node's connection may come from an address: it belongs to one machine, beyond one link."""
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


def is_ipv6_of_link(text: object) -> bool:
    """Tell whether something is the text of a link-local address of IPv6, with or without a scope."""
    try:
        address = parsed(text, may_have_scope=True)
    except ValueError:
        return False
    return address.version == 6 and address.is_link_local  # noqa: PLR2004


def is_interface(name: object) -> bool:
    """Tell whether something is the name of a network interface that every configuration file can hold."""
    return isinstance(name, str) and bool(_INTERFACE.fullmatch(name))


def _shown(text: object) -> str:
    return ascii(text)[:80]
