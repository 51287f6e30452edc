# SPDX-License-Identifier: Apache-2.0
"""Open and close the cluster's network in the firewall of this node: ufw and firewalld, where they are active."""

from __future__ import annotations

import re
import shutil
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import command, origins

from . import ip_address

# Open the cluster's network to its members, and to them alone: the commands for ufw and firewalld.
#
# A plan holds what is missing. Where ``exact`` is set, it also holds what is ours and no longer wanted. A second run
# has an empty plan.

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


_TIMEOUT_S = 120
_ENVIRONMENT = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C"}
_NO_ZONE = 2  # what firewall-cmd ends with where an interface is in no zone


def change(wanted: Sequence[Opening], *, exact: bool, really: bool) -> List[str]:
    """Bring the node's firewalls to what is wanted, and return a phrase for each change.

    Args:
        wanted: the networks; nothing closes what was opened, where ``exact`` is set.
        exact: whether our other rules go.
        really: whether to do it.

    Raises:
        OpeningError: a program failed.
        OSError: the record of origins cannot be written, so nothing was changed.
    """
    record = origins.load().get("firewall") or {}
    return _ufw(wanted, record, exact=exact, really=really) + _firewalld(wanted, record, exact=exact, really=really)


def _run(argv: Sequence[str], *also: int) -> str:
    done = command.run(argv, _TIMEOUT_S, _ENVIRONMENT)
    if done.status not in {0, *also}:
        raise OpeningError(f"{' '.join(argv)} failed: {done.said or done.status}.")
    return done.output if done.ok else ""


def _program(name: str) -> bool:
    return shutil.which(name, path=command.SYSTEM_PATH) is not None


# --- ufw -------------------------------------------------------------------------------------------------------------


def _ufw(wanted: Sequence[Opening], record: Mapping[str, Any], *, exact: bool, really: bool) -> List[str]:
    if not _program("ufw"):
        return []
    is_active = _run(["ufw", "status"]).startswith("Status: active")
    if not is_active and not (exact and record.get("ufw")):
        return []
    here = wanted if is_active else ()
    plan = ufw_plan(here, _run(["ufw", "show", "added"]).splitlines(), exact=exact)
    if not plan:
        return []
    if really:
        if not record.get("ufw"):
            _note(ufw=True)
        for argv in plan:
            _run(argv)
    return _phrases("ufw", sum("delete" not in argv for argv in plan), sum("delete" in argv for argv in plan))


# --- firewalld -------------------------------------------------------------------------------------------------------


def _firewalld(wanted: Sequence[Opening], record: Mapping[str, Any], *, exact: bool, really: bool) -> List[str]:
    if not _program("firewall-cmd"):
        return []
    ours: Dict[str, List[str]] = {str(zone): list(its) for zone, its in (record.get("firewalld") or {}).items()}
    if not command.run(["firewall-cmd", "--state"], _TIMEOUT_S, _ENVIRONMENT).ok:
        return _offline(ours, really=really) if exact and ours else []
    by_zone: Dict[str, List[str]] = {}
    for one in wanted:
        by_zone.setdefault(_zone(one.interface), []).extend(rich_rules(one))
    zones = dict.fromkeys((*by_zone, *ours))
    present = {zone: _rules(["firewall-cmd", "--permanent", f"--zone={zone}", "--list-rich-rules"]) for zone in zones}
    plan = firewalld_plan(by_zone, present, ours, exact=exact)
    if not plan:
        return []
    if really:
        _note(firewalld=_merged(ours, {zone: add for zone, (add, _unused) in plan.items()}))
        for zone, (add, remove) in plan.items():
            for argv in firewalld_commands(zone, add, remove):
                _run(argv)
        if exact:
            kept = {zone: [one for one in by_zone.get(zone, ()) if one in its] for zone, its in _own().items()}
            _note(firewalld={zone: its for zone, its in kept.items() if its})
    added = sum(len(add) for add, _unused in plan.values())
    return _phrases("firewalld", added, sum(len(remove) for _unused, remove in plan.values()))


def _offline(ours: Mapping[str, Sequence[str]], *, really: bool) -> List[str]:
    """Remove our rules from the settings of a firewalld that does not run."""
    count = 0
    for zone, its in ours.items():
        head = ["firewall-offline-cmd", f"--zone={zone}"]
        there = set(_rules([*head, "--list-rich-rules"]))
        gone = [rule for rule in its if rule in there]
        count += len(gone)
        if gone and really:
            _run([*head, *(f"--remove-rich-rule={rule}" for rule in gone)])
    if really:
        _note(firewalld={})
    return _phrases("firewalld", 0, count)


def _zone(interface: str) -> str:
    zone = _run(["firewall-cmd", f"--get-zone-of-interface={interface}"], _NO_ZONE).strip()
    return zone or _run(["firewall-cmd", "--get-default-zone"]).strip()


def _rules(argv: Sequence[str]) -> List[str]:
    return [line.strip() for line in _run(argv).splitlines() if line.strip()]


def _merged(first: Mapping[str, Iterable[str]], second: Mapping[str, Iterable[str]]) -> Dict[str, List[str]]:
    zones = dict.fromkeys((*first, *second))
    return {zone: list(dict.fromkeys((*first.get(zone, ()), *second.get(zone, ())))) for zone in zones}


# --- the record ------------------------------------------------------------------------------------------------------


def _own() -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = (origins.load().get("firewall") or {}).get("firewalld") or {}
    return found


def _note(**firewalls: Any) -> None:
    """Keep which rules are ours, before they are made."""
    record = origins.load()
    origins.save({**record, "firewall": {**(record.get("firewall") or {}), **firewalls}})


def _phrases(manager: str, added: int, removed: int) -> List[str]:
    words = [f"added {_rules_of(added, manager)}"] if added else []
    return words + ([f"removed {_rules_of(removed, manager)}"] if removed else [])


def _rules_of(count: int, manager: str) -> str:
    return f"{count} rule{'' if count == 1 else 's'} of {manager} for the cluster's network"
