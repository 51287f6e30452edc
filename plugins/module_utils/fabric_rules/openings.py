# SPDX-License-Identifier: Apache-2.0
"""Say what a node's firewall has to let in: the other members, in the networks of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping

from .. import ip_address

if TYPE_CHECKING:
    from .model import Network


def openings(networks: Iterable[Network], host: str, members: Iterable[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Return for each network the one of its subnets that a node is in, its interface, and the other members.

    Args:
        networks: those to open.
        host: the node.
        members: all members; of those that the network does not name, the addresses inside of it count.
    """
    found = []
    for network in networks:
        own = ip_address.parsed(network.addresses[host])
        subnets = [ip_address.network(cidr) for cidr in network.cidrs]
        others = {address for name, address in network.addresses.items() if name != host}
        for member in members:
            if str(member.get("name")) not in network.addresses:
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
