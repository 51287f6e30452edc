# SPDX-License-Identifier: Apache-2.0
"""Open the cluster's network to its members, and to them alone: the commands for ufw and firewalld.

A plan holds what is missing. Where ``exact`` is set, it also holds what is ours and no longer wanted. A second run has
an empty plan.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from .. import ip_address

NAME = "clusterctl"
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_UFW_RULE = re.compile(r"ufw (?P<rule>.*?)(?: comment '(?P<comment>[^']*)')?")


class OpeningError(Exception):
    """What is wanted is malformed, or a program failed; the message says what to do."""


class Opening(NamedTuple):
    """A network as a node sees it: its interface there, and the addresses of the other members in it."""

    cidr: str
    interface: str
    members: Tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Opening:
        """Return the checked form.

        Raises:
            OpeningError: a text is not a network, an address or the name of an interface.
        """
        interface = str(given.get("interface") or "")
        try:
            network = ip_address.network(given.get("cidr"))
            addresses = {ip_address.parsed(one) for one in given.get("members") or ()}
        except ValueError as error:
            raise OpeningError(f"fabric_open_firewall: {error}; run the role fabric again.") from error
        if not ip_address.is_interface(interface):
            raise OpeningError(f"fabric_open_firewall: {interface!r} is not an interface; run the role fabric again.")
        same = sorted((one for one in addresses if one.version == network.version), key=int)
        return cls(str(network), interface, tuple(map(str, same)))


# --- ufw -------------------------------------------------------------------------------------------------------------


def ufw_plan(wanted: Sequence[Opening], added: Iterable[str], *, exact: bool) -> List[List[str]]:
    """Return the commands that bring ufw's rules to what is wanted; ours bear the comment ``clusterctl``.

    Args:
        wanted: the networks.
        added: the lines of ``ufw show added``.
        exact: whether our other rules go.
    """
    found = [match for match in (_UFW_RULE.fullmatch(line.strip()) for line in added) if match]
    present = {match["rule"]: match["comment"] or "" for match in found}
    rules = {f"allow from {address} to {one.cidr}": None for one in wanted for address in one.members}
    plan = [["ufw", *rule.split(), "comment", NAME] for rule in rules if rule not in present]
    if exact:
        gone = [rule for rule, comment in present.items() if comment == NAME and rule not in rules]
        plan += [["ufw", "--force", "delete", *rule.split()] for rule in gone]
    return plan


# --- firewalld -------------------------------------------------------------------------------------------------------


def rich_rules(opening: Opening) -> List[str]:
    """Return firewalld's rules for a network, one for each member, in the words that it lists them in."""
    family = "ipv6" if ":" in opening.cidr else "ipv4"
    return [
        f'rule family="{family}" source address="{address}" destination address="{opening.cidr}" accept'
        for address in opening.members
    ]


def firewalld_plan(
    wanted: Mapping[str, Iterable[str]],
    present: Mapping[str, Iterable[str]],
    ours: Mapping[str, Iterable[str]],
    *,
    exact: bool,
) -> Dict[str, Tuple[List[str], List[str]]]:
    """Return by zone the rules to add and the rules to remove.

    Args:
        wanted: by zone the rules that should be there.
        present: by zone the rules of its permanent settings.
        ours: by zone the rules that the node's record has of an earlier run.
        exact: whether our other rules go.
    """
    plan = {}
    for zone in dict.fromkeys((*wanted, *ours)):
        its, there = list(dict.fromkeys(wanted.get(zone, ()))), set(present.get(zone, ()))
        add = [rule for rule in its if rule not in there]
        remove = [rule for rule in ours.get(zone, ()) if exact and rule not in its and rule in there]
        if add or remove:
            plan[zone] = (add, remove)
    return plan


def firewalld_commands(zone: str, add: Sequence[str], remove: Sequence[str]) -> List[List[str]]:
    """Return the commands for a zone: the settings that stay, then those that hold now; nothing is loaded anew.

    Raises:
        OpeningError: the zone's name is malformed.
    """
    if not _ZONE.fullmatch(zone):
        raise OpeningError(f"firewalld names the zone {zone!r}, which is not a name; look at firewall-cmd --get-zones.")
    commands = []
    for options in (["--permanent"], []):
        head = ["firewall-cmd", *options, f"--zone={zone}"]
        commands += [[*head, *(f"--remove-rich-rule={rule}" for rule in remove)]] if remove else []
        commands += [[*head, *(f"--add-rich-rule={rule}" for rule in add)]] if add else []
    return commands
