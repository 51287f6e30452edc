"""What opens the cluster's network in ufw and firewalld, and what closes it again: rules in, commands out."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.firewall_rules import opening as fw

MEMBERS = ("10.1.0.2", "10.1.0.10")
GIVEN: dict[str, Any] = {"cidr": "10.1.0.0/24", "interface": "eth0", "members": list(reversed(MEMBERS))}
WANTED = fw.Opening.of(GIVEN)
RULES = [f'rule family="ipv4" source address="{one}" destination address="10.1.0.0/24" accept' for one in MEMBERS]
ADDED = [f"ufw allow from {one} to 10.1.0.0/24 comment 'clusterctl'" for one in MEMBERS]
ADMIN = ["Added user rules (see 'ufw status' for running firewall):", "ufw allow 22/tcp", "ufw deny from 10.1.0.9"]


def test_what_is_wanted_is_checked_and_sorted() -> None:
    assert WANTED == ("10.1.0.0/24", "eth0", MEMBERS)
    for changes in ({"cidr": "$(id)"}, {"cidr": "10.1.0.1/24"}, {"members": ["x"]}, {"interface": "a b"}):
        with pytest.raises(fw.OpeningError, match="fabric_open_firewall"):
            fw.Opening.of({**GIVEN, **changes})


def test_ufw_gets_one_rule_for_each_member_and_a_second_run_nothing() -> None:
    plan = fw.ufw_plan([WANTED], ADMIN, exact=True)
    assert plan == [["ufw", "allow", "from", one, "to", "10.1.0.0/24", "comment", "clusterctl"] for one in MEMBERS]
    assert fw.ufw_plan([WANTED], [*ADMIN, *ADDED], exact=True) == []


def test_ufw_loses_the_rule_of_a_member_that_left_and_none_of_the_administrator() -> None:
    left = fw.Opening.of({**GIVEN, "members": MEMBERS[:1]})
    gone = [["ufw", "--force", "delete", "allow", "from", "10.1.0.10", "to", "10.1.0.0/24"]]
    assert fw.ufw_plan([left], [*ADMIN, *ADDED], exact=True) == gone
    assert fw.ufw_plan([left], [*ADMIN, *ADDED], exact=False) == []
    assert len(fw.ufw_plan([], [*ADMIN, *ADDED], exact=True)) == len(MEMBERS)


def test_a_rule_that_the_administrator_has_made_stays_theirs() -> None:
    for theirs in ("ufw allow from 10.1.0.2 to 10.1.0.0/24", "ufw allow from 10.1.0.2 to 10.1.0.0/24 comment 'mine'"):
        assert [words[3] for words in fw.ufw_plan([WANTED], [theirs], exact=True)] == ["10.1.0.10"]
        assert fw.ufw_plan([], [theirs], exact=True) == []
    assert fw.firewalld_plan({"public": RULES}, {"public": RULES[:1]}, {}, exact=True) == {"public": (RULES[1:], [])}
    assert fw.firewalld_plan({}, {"public": RULES[:1]}, {}, exact=True) == {}


def test_firewalld_gets_rules_of_its_zone_and_a_second_run_nothing() -> None:
    assert fw.rich_rules(WANTED) == RULES
    assert fw.firewalld_plan({"public": RULES}, {"public": []}, {}, exact=True) == {"public": (RULES, [])}
    assert fw.firewalld_plan({"public": RULES}, {"public": RULES}, {"public": RULES}, exact=True) == {}
    six = fw.Opening.of({"cidr": "fd00::/64", "interface": "eth0", "members": ["fd00::2"]})
    assert fw.rich_rules(six) == [
        'rule family="ipv6" source address="fd00::2" destination address="fd00::/64" accept',
    ]


def test_firewalld_loses_what_is_ours_also_in_a_zone_that_the_interface_left() -> None:
    there = {"public": ["rule other", *RULES], "internal": []}
    plan = fw.firewalld_plan({"internal": RULES}, there, {"public": RULES}, exact=True)
    assert plan == {"internal": (RULES, []), "public": ([], RULES)}
    assert fw.firewalld_plan({}, there, {"public": RULES}, exact=False) == {}


def test_firewalld_is_told_for_good_and_for_now_and_loads_nothing_anew() -> None:
    commands = fw.firewalld_commands("public", RULES[:1], RULES[1:])
    assert commands == [
        ["firewall-cmd", "--permanent", "--zone=public", f"--remove-rich-rule={RULES[1]}"],
        ["firewall-cmd", "--permanent", "--zone=public", f"--add-rich-rule={RULES[0]}"],
        ["firewall-cmd", "--zone=public", f"--remove-rich-rule={RULES[1]}"],
        ["firewall-cmd", "--zone=public", f"--add-rich-rule={RULES[0]}"],
    ]
    with pytest.raises(fw.OpeningError, match="is not a name"):
        fw.firewalld_commands("--x y", RULES, [])


def test_a_node_lets_in_the_others_and_those_that_the_run_leaves_out() -> None:
    network = fabric_rules.Network(
        ("10.1.0.0/24", "10.2.0.0/24"), {"a": "eth0", "b": "ens3"}, {"a": "10.1.0.2", "b": "10.2.0.2"}
    )
    members = [
        {"name": "b", "address": "192.0.2.2", "addresses": ["192.0.2.2", "10.2.0.2"]},
        {"name": "c", "address": "192.0.2.3", "addresses": ["192.0.2.3", "10.1.0.3", "x"]},
        {"name": "d", "address": ""},
    ]
    assert fabric_rules.openings([network], "a", members) == [
        {"cidr": "10.1.0.0/24", "interface": "eth0", "members": ["10.1.0.3", "10.2.0.2"]}
    ]
