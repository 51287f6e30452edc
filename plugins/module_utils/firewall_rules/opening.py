# SPDX-License-Identifier: Apache-2.0
"""Open the cluster's network to its members, and to them alone: the commands for firewalld and ufw.

A plan holds what is still missing, and what an earlier cluster left, so a second run has an empty one. In a ruleset of
nftables without a manager nothing is changed: the user gets the line for the file that loads it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Iterable, List, NamedTuple, Tuple

NAME = "clusterctl"
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class OpeningError(Exception):
    """What is wanted is malformed; the message says what to do."""


class Wanted(NamedTuple):
    """The cluster's network as a node sees it, and the addresses of the other nodes in it; empty opens nothing."""

    cidr: str = ""
    members: Tuple[str, ...] = ()

    @classmethod
    def of(cls, cidr: str, members: Iterable[str]) -> Wanted:
        """Return the checked form.

        Raises:
            OpeningError: a text is not a network or an address, or an address is outside of the network.
        """
        try:
            network = ipaddress.ip_network(cidr)
            addresses = sorted({ipaddress.ip_address(one) for one in members}, key=int)
        except ValueError as error:
            raise OpeningError(f"fabric_open_firewall: {error}; run the role fabric again.") from error
        outside = [str(one) for one in addresses if one not in network]
        if outside:
            raise OpeningError(f"fabric_open_firewall: {', '.join(outside)} is outside of {cidr}; set fabric_cidr.")
        return cls(str(network), tuple(map(str, addresses)))

    @property
    def is_ipv6(self) -> bool:
        """Whether the network is one of IPv6."""
        return ":" in self.cidr


def firewalld_plan(
    wanted: Wanted, zone: str, sets: Iterable[str], entries: Iterable[str], rich_rules: Iterable[str]
) -> List[List[str]]:
    """Return the commands that bring firewalld's permanent settings to what is wanted; the last one loads them.

    One set of addresses holds the members, and one rich rule of the interface's zone accepts them in the network.

    Args:
        wanted: the network and the members; without a network, what is there of ours is removed.
        zone: of the interface (``--get-zone-of-interface``), or the default zone.
        sets: names of ``--permanent --get-ipsets``.
        entries: of our set (``--ipset=clusterctl --get-entries``).
        rich_rules: of the zone (``--permanent --zone=… --list-rich-rules``).

    Raises:
        OpeningError: the zone's name is malformed.
    """
    if not _ZONE.fullmatch(zone):
        raise OpeningError(f"firewalld names the zone {zone!r}, which is not a name; look at firewall-cmd --get-zones.")
    have, ours = set(entries), [rule for rule in rich_rules if f'ipset="{NAME}"' in rule]
    family = "ipv6" if wanted.is_ipv6 else "ipv4"
    rule = f'rule family="{family}" source ipset="{NAME}" destination address="{wanted.cidr}" accept'
    missing = [one for one in wanted.members if one not in have]
    stale = sorted(have - set(wanted.members))
    plan = [[f"--zone={zone}", f"--remove-rich-rule={one}"] for one in ours if one != rule or not wanted.cidr]
    if not wanted.cidr:
        plan += [[f"--delete-ipset={NAME}"]] if NAME in sets else []
    else:
        if NAME not in sets:
            option = ["--option=family=inet6"] if wanted.is_ipv6 else []
            plan.append([f"--new-ipset={NAME}", "--type=hash:ip", *option])
        plan += [[f"--ipset={NAME}", f"--add-entry={one}"] for one in missing]
        plan += [[f"--ipset={NAME}", f"--remove-entry={one}"] for one in stale]
        plan += [[f"--zone={zone}", f"--add-rich-rule={rule}"]] if rule not in ours else []
    commands = [["firewall-cmd", "--permanent", *words] for words in plan]
    return [*commands, ["firewall-cmd", "--reload"]] if commands else []


def ufw_plan(wanted: Wanted, added: Iterable[str]) -> List[List[str]]:
    """Return the commands that bring ufw's rules to what is wanted; ours bear the comment ``clusterctl``.

    Args:
        wanted: the network and the members; without a network, our rules are removed.
        added: the lines of ``ufw show added``.
    """
    ours = [line.strip() for line in added if line.strip().endswith(f"comment '{NAME}'")]
    rules = {f"ufw allow from {one} to {wanted.cidr} comment '{NAME}'": one for one in wanted.members if wanted.cidr}
    plan = [["ufw", "--force", "delete", *line.split()[1:-2]] for line in ours if line not in rules]
    for line, address in rules.items():
        if line not in ours:
            plan.append(["ufw", "allow", "from", address, "to", wanted.cidr, "comment", NAME])
    return plan


def nft_line(wanted: Wanted, family: str, table: str, chain: str) -> str:
    """Return the line that a ruleset of nftables without a manager needs at the start of the chain that blocks."""
    kind = "ip6" if wanted.is_ipv6 else "ip"
    members = ", ".join(wanted.members)
    return f"nft insert rule {family} {table} {chain} {kind} saddr {{ {members} }} {kind} daddr {wanted.cidr} accept"
