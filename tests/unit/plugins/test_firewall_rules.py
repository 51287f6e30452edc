"""The rule that drops a connection is named, and the cluster's network is opened to its members alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules
from ansible_collections.clusterctl.hpc.plugins.module_utils import firewall_rules as fw
from ansible_collections.clusterctl.hpc.plugins.module_utils.firewall_rules import opening

DATA = Path(__file__).parents[2] / "data" / "firewall"
PACKET = fw.Packet("eth0", "10.1.0.2", "10.1.0.1")


def chain(name: str, table: str = "filter", family: str = "inet", **base: Any) -> dict[str, Any]:
    return {"chain": {"family": family, "table": table, "name": name, **base}}


def base(name: str = "input", policy: str = "accept", prio: int = 0, **more: str) -> dict[str, Any]:
    return chain(name, hook="input", policy=policy, prio=prio, type="filter", **more)


def rule(*expressions: Any, to: str = "input", table: str = "filter", family: str = "inet") -> dict[str, Any]:
    return {"rule": {"family": family, "table": table, "chain": to, "expr": list(expressions)}}


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def meta(key: str) -> dict[str, Any]:
    return {"meta": {"key": key}}


def payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


STATE = match({"ct": {"key": "state"}}, ["established", "related"], "in")
SSH = match(payload("tcp", "dport"), 22)
DROP, ACCEPT, REJECT = {"drop": None}, {"accept": None}, {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}
FROM = payload("ip", "saddr")
PORT = payload("tcp", "dport")
JUMP = {"jump": {"target": "own"}}


def look(*entries: dict[str, Any], packet: fw.Packet = PACKET) -> fw.Blocking | None:
    return fw.blocking({"nftables": [{"metainfo": {"json_schema_version": 1}}, *entries]}, packet)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], None),
        ([base()], None),
        ([base(policy="drop")], "policy drop"),
        ([base(policy="drop"), rule(STATE, ACCEPT), rule(SSH, ACCEPT)], "policy drop"),
        ([base(policy="drop"), rule(match(meta("iifname"), "eth*"), ACCEPT)], None),
        ([base(policy="drop"), rule(match(FROM, {"prefix": {"addr": "10.1.0.0", "len": 24}}), ACCEPT)], None),
        ([base(policy="drop"), rule(match(FROM, {"set": ["10.9.0.1", "10.1.0.2"]}), ACCEPT)], None),
        ([base(), rule(match(FROM, "10.1.0.2"), {"counter": {"packets": 1}}, DROP)], "ip saddr 10.1.0.2 drop"),
        ([base(), rule(match(FROM, "10.1.0.2", "!="), DROP)], None),
        (
            [base(), rule(match(payload("tcp", "dport"), {"range": [1024, 65535]}), REJECT)],
            "tcp dport 1024-65535 reject",
        ),
        ([base(), rule(match(payload("tcp", "sport"), 22, "!="), DROP)], "tcp sport != 22 drop"),
        ([base(), rule(match(payload("udp", "dport"), 53, "!="), match(meta("l4proto"), "udp"), DROP)], None),
        ([base(), rule(match(payload("ip6", "saddr"), "fd00::1"), DROP)], None),
        (
            [base(), rule(match(meta("iif"), "lo", "!="), match(meta("nfproto"), "ipv4"), DROP)],
            "iif != lo nfproto ipv4 drop",
        ),
        # a later base chain drops what an earlier one has accepted
        ([base(), rule(ACCEPT), base("late", prio=10), rule(DROP, to="late")], "drop"),
        ([base("out", policy="drop") | {"chain": {**base("out", policy="drop")["chain"], "hook": "output"}}], None),
        ([base(policy="drop", family="ip6")], None),
        ([base(), chain("own"), rule({"jump": {"target": "own"}}), rule(DROP, to="own")], "drop"),
        (
            [base(), chain("own"), rule({"jump": {"target": "own"}}), rule({"return": None}, to="own"), rule(DROP)],
            "drop",
        ),
        ([base(), chain("own"), rule({"goto": {"target": "own"}}), rule(DROP)], None),
        ([base(), chain("own"), rule({"jump": {"target": "own"}}), rule({"jump": {"target": "own"}}, to="own")], None),
    ],
)
def test_one_connection_is_followed_through_the_rules(entries: list[dict[str, Any]], expected: str | None) -> None:
    found = look(*entries)
    assert (found.rule if found else None) == expected
    assert found is None or found.is_certain


def test_a_match_that_is_not_known_makes_the_answer_uncertain_and_no_rule_of_its_own() -> None:
    unknown = rule({"xt": {"type": "match", "name": "addrtype"}}, ACCEPT)
    found = look(base(policy="drop"), unknown)
    assert (found.rule, found.is_certain) == ("policy drop", False)
    assert look(base(), rule({"xt": {}}, DROP)) is None
    assert look(base(), rule(match(FROM, "@members"), DROP)) is None


def test_a_map_of_verdicts_is_followed() -> None:
    states = {"set": [["established", ACCEPT], ["new", {"jump": {"target": "news"}}]]}
    vmap = {"vmap": {"key": {"ct": {"key": "state"}}, "data": states}}
    found = look(base(), chain("news"), rule(vmap), rule(REJECT, to="news"))
    assert (found.manager, found.place, found.rule) == ("nftables", "chain inet filter news", "reject")


def test_firewalld_is_named_with_its_zone() -> None:
    own = {"table": "firewalld"}
    found = look(
        base("filter_INPUT", prio=10, **own),
        chain("filter_INPUT_ZONES", **own),
        chain("filter_IN_public", **own),
        chain("filter_IN_public_allow", **own),
        rule(STATE, ACCEPT, to="filter_INPUT", **own),
        rule({"jump": {"target": "filter_INPUT_ZONES"}}, to="filter_INPUT", **own),
        rule(match(meta("iifname"), "eth0"), {"goto": {"target": "filter_IN_public"}}, to="filter_INPUT_ZONES", **own),
        rule({"jump": {"target": "filter_IN_public_allow"}}, to="filter_IN_public", **own),
        rule(SSH, ACCEPT, to="filter_IN_public_allow", **own),
        rule(REJECT, to="filter_IN_public", **own),
    )
    assert found == fw.Blocking("firewalld", "zone public", "reject", is_certain=True)


def test_ufw_is_named_by_its_chains() -> None:
    own = {"family": "ip"}
    found = look(
        base("INPUT", policy="drop", **own),
        chain("ufw-before-input", **own),
        rule({"jump": {"target": "ufw-before-input"}}, to="INPUT", **own),
        rule(STATE, ACCEPT, to="ufw-before-input", **own),
    )
    assert found == fw.Blocking("ufw", "chain ip filter INPUT", "policy drop", is_certain=True)


def captured(name: str, packet: fw.Packet) -> fw.Blocking | None:
    return fw.blocking(json.loads((DATA / name).read_bytes()), packet)


def test_a_real_ruleset_of_nftables() -> None:
    assert captured("nftables.json", PACKET) == fw.Blocking(
        "nftables", "chain inet filter own", "tcp dport 32768-60999 reject", is_certain=True
    )
    assert captured("nftables.json", PACKET._replace(source="10.1.0.7")) is None, "a member of the named set"
    assert captured("nftables.json", PACKET._replace(port=22)) is None
    assert captured("nftables.json", PACKET._replace(port=1024)) == fw.Blocking(
        "nftables", "chain inet filter input", "policy drop", is_certain=True
    )
    assert captured("nftables.json", PACKET._replace(source="10.2.0.1")) == fw.Blocking(
        "nftables", "chain inet filter input", "policy drop", is_certain=True
    )


def test_a_real_ruleset_of_iptables_with_the_chains_of_ufw() -> None:
    assert captured("iptables_ufw.json", PACKET) == fw.Blocking(
        "ufw", "chain ip filter INPUT", "policy drop", is_certain=False
    )
    assert captured("iptables_ufw.json", PACKET._replace(port=22)) is None


def test_a_real_ruleset_of_ufw_as_its_package_makes_it() -> None:
    packet = fw.Packet("eth0", "10.90.4.12", "10.90.4.11")
    blocked = fw.Blocking("ufw", "chain ip filter INPUT", "policy drop", is_certain=True)
    assert captured("ufw.json", packet) == blocked
    assert captured("ufw.json", packet._replace(port=22)) is None


def test_a_real_ruleset_of_firewalld_as_its_package_makes_it() -> None:
    packet = fw.Packet("eth0", "10.90.4.11", "10.90.4.12")
    blocked = fw.Blocking("firewalld", "zone public", "reject", is_certain=True)
    assert captured("firewalld.json", packet) == blocked
    assert captured("firewalld.json", packet._replace(port=22)) is None


def test_a_rule_that_decides_nothing_leaves_the_answer_certain() -> None:
    log = rule({"limit": {"rate": 3, "per": "minute"}}, {"log": {"prefix": "x"}})
    found = look(base(policy="drop"), log)
    assert found == fw.Blocking("nftables", "chain inet filter input", "policy drop", is_certain=True)
    elsewhere = rule({"xt": {}}, match(FROM, "10.9.9.9"), ACCEPT)
    found = look(base(policy="drop"), elsewhere)
    assert found.is_certain


def test_a_type_of_address_is_known_for_the_node_itself() -> None:
    kind = {"fib": {"result": "type", "flags": ["daddr"]}}
    assert look(base(policy="drop"), rule(match(kind, "local"), ACCEPT)) is None
    assert look(base(), rule(match(kind, "broadcast"), DROP)) is None


# --- what opens the cluster's network in ufw and firewalld, and what closes it again: rules in, commands out ---


MEMBERS = ("10.1.0.2", "10.1.0.10")
GIVEN: dict[str, Any] = {"cidr": "10.1.0.0/24", "interface": "eth0", "members": list(reversed(MEMBERS))}
WANTED = opening.Opening.of(GIVEN)
RULES = [f'rule family="ipv4" source address="{one}" destination address="10.1.0.0/24" accept' for one in MEMBERS]
ADDED = [f"ufw allow from {one} to 10.1.0.0/24 comment 'clusterctl'" for one in MEMBERS]
ADMIN = ["Added user rules (see 'ufw status' for running firewall):", "ufw allow 22/tcp", "ufw deny from 10.1.0.9"]


def test_what_is_wanted_is_checked_and_sorted() -> None:
    assert WANTED == ("10.1.0.0/24", "eth0", MEMBERS)
    for changes in ({"cidr": "$(id)"}, {"cidr": "10.1.0.1/24"}, {"members": ["x"]}, {"interface": "a b"}):
        with pytest.raises(opening.OpeningError, match="fabric_open_firewall"):
            opening.Opening.of({**GIVEN, **changes})


def test_ufw_gets_one_rule_for_each_member_and_a_second_run_nothing() -> None:
    plan = opening.ufw_plan([WANTED], ADMIN, exact=True)
    assert plan == [["ufw", "allow", "from", one, "to", "10.1.0.0/24", "comment", "clusterctl"] for one in MEMBERS]
    assert opening.ufw_plan([WANTED], [*ADMIN, *ADDED], exact=True) == []


def test_ufw_loses_the_rule_of_a_member_that_left_and_none_of_the_administrator() -> None:
    left = opening.Opening.of({**GIVEN, "members": MEMBERS[:1]})
    gone = [["ufw", "--force", "delete", "allow", "from", "10.1.0.10", "to", "10.1.0.0/24"]]
    assert opening.ufw_plan([left], [*ADMIN, *ADDED], exact=True) == gone
    assert opening.ufw_plan([left], [*ADMIN, *ADDED], exact=False) == []
    assert len(opening.ufw_plan([], [*ADMIN, *ADDED], exact=True)) == len(MEMBERS)


def test_a_rule_that_the_administrator_has_made_stays_theirs() -> None:
    for theirs in ("ufw allow from 10.1.0.2 to 10.1.0.0/24", "ufw allow from 10.1.0.2 to 10.1.0.0/24 comment 'mine'"):
        assert [words[3] for words in opening.ufw_plan([WANTED], [theirs], exact=True)] == ["10.1.0.10"]
        assert opening.ufw_plan([], [theirs], exact=True) == []
    assert opening.firewalld_plan({"public": RULES}, {"public": RULES[:1]}, {}, exact=True) == {
        "public": (RULES[1:], [])
    }
    assert opening.firewalld_plan({}, {"public": RULES[:1]}, {}, exact=True) == {}


def test_firewalld_gets_rules_of_its_zone_and_a_second_run_nothing() -> None:
    assert opening.rich_rules(WANTED) == RULES
    assert opening.firewalld_plan({"public": RULES}, {"public": []}, {}, exact=True) == {"public": (RULES, [])}
    assert opening.firewalld_plan({"public": RULES}, {"public": RULES}, {"public": RULES}, exact=True) == {}
    six = opening.Opening.of({"cidr": "fd00::/64", "interface": "eth0", "members": ["fd00::2"]})
    assert opening.rich_rules(six) == [
        'rule family="ipv6" source address="fd00::2" destination address="fd00::/64" accept',
    ]


def test_firewalld_loses_what_is_ours_also_in_a_zone_that_the_interface_left() -> None:
    there = {"public": ["rule other", *RULES], "internal": []}
    plan = opening.firewalld_plan({"internal": RULES}, there, {"public": RULES}, exact=True)
    assert plan == {"internal": (RULES, []), "public": ([], RULES)}
    assert opening.firewalld_plan({}, there, {"public": RULES}, exact=False) == {}


def test_firewalld_is_told_for_good_and_for_now_and_loads_nothing_anew() -> None:
    commands = opening.firewalld_commands("public", RULES[:1], RULES[1:])
    assert commands == [
        ["firewall-cmd", "--permanent", "--zone=public", f"--remove-rich-rule={RULES[1]}"],
        ["firewall-cmd", "--permanent", "--zone=public", f"--add-rich-rule={RULES[0]}"],
        ["firewall-cmd", "--zone=public", f"--remove-rich-rule={RULES[1]}"],
        ["firewall-cmd", "--zone=public", f"--add-rich-rule={RULES[0]}"],
    ]
    with pytest.raises(opening.OpeningError, match="is not a name"):
        opening.firewalld_commands("--x y", RULES, [])


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
