from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.diagnosis.rules import registry
from clusterctl.model import fabric
from doctor_view import NODES, failing, rdma_port, seen, told

if TYPE_CHECKING:
    from clusterctl.diagnosis.rules.evidence import View
    from doctor_view import Change, Record


@pytest.mark.parametrize(
    ("change", "check", "severity", "words"),
    [
        (
            lambda record: record["interfaces"][0].update(mtu=9000),
            "network",
            "warning",
            "the MTU of the interface in 10",
        ),
        (
            lambda record: record["interfaces"][0].update(speed_mbps=1000),
            "network",
            "warning",
            "the speed of the interface in 10.0.0.0/24 is 1000 Mb/s, and 10000 Mb/s on most nodes",
        ),
    ],
)
def test_a_node_is_named_with_what_is_wrong(change: Change, check: str, severity: str, words: str) -> None:
    (found,) = registry.diagnose(seen(node3=change))
    assert (found.check, found.severity, found.hosts) == (check, severity, ("node3",))
    assert found.cause.startswith(words)
    assert found.cure


def test_rdma_ports_are_compared() -> None:
    alike = dict.fromkeys(NODES, rdma_port())
    assert told(seen(**alike)) == []
    assert told(seen(**dict.fromkeys(NODES, rdma_port(state="DOWN")))) == []  # one that nobody uses
    assert told(seen(**alike | {"node3": rdma_port(state="DOWN")})) == [("rdma", "error", ("node3",))]
    assert told(seen(**alike | {"node3": rdma_port(rate_gbps=100.0)})) == [("rdma", "warning", ("node3",))]


def test_a_roce_port_without_an_ipv4_gid_of_version_2_is_named() -> None:
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    right = rdma_port(link_layer="Ethernet", gids=[{"index": 3, "gid": mapped, "type": "RoCE v2"}])
    wrong = rdma_port(link_layer="Ethernet", gids=[{"index": 2, "gid": mapped, "type": "IB/RoCE v1"}])
    assert told(seen(**dict.fromkeys(NODES, right))) == []
    assert told(seen(**dict.fromkeys(NODES, right) | {"node2": wrong})) == [("rdma", "error", ("node2",))]


def test_an_address_that_several_have_is_named_until_jobs_are_told_another() -> None:
    entry = {"family": 4, "address": "172.17.0.1", "prefix": 16, "scope": "global"}
    docker = {"name": "docker0", "kind": "bridge", "up": True, "carrier": True, "mtu": 1500, "addresses": [entry]}

    def change(record: Record) -> None:
        record["interfaces"].append(docker)

    def told_to(record: Record) -> None:
        change(record)
        record["fabric"] = {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": "10.0.0.1"}

    (found,) = registry.diagnose(seen(**dict.fromkeys(NODES, change)))
    assert (found.severity, found.hosts) == ("error", NODES)
    assert found.cause.startswith("docker0 has the address 172.17.0.1 on each of them")
    fine = seen(**dict.fromkeys(NODES, told_to))
    assert registry.diagnose(fine) == ()
    assert "172.17.0.1 on each of node[1-4]; Open MPI and NCCL are told to use 10.0.0.0/24" in registry.notes(fine)[0]


def test_a_network_that_one_lacks_is_told() -> None:
    def joined(number: int) -> Change:
        entry = {"family": 4, "address": f"10.1.0.{number}", "prefix": 24, "scope": "global"}
        link = {"name": "ib0", "kind": "infiniband", "up": True, "carrier": True, "mtu": 4092, "addresses": [entry]}
        return lambda record: record["interfaces"].append(link)

    three = {name: joined(number) for number, name in enumerate(NODES[:3], start=1)}
    (found,) = registry.diagnose(seen(**three))
    assert (found.check, found.severity, found.hosts) == ("network", "warning", ("node4",))
    assert found.cause == "it has no address in 10.1.0.0/24 (ib0), in which node[1-3] have one"
    assert told(seen(node1=joined(1), node2=joined(2))) == []  # half of them may be meant


def test_a_node_in_another_rack_lacks_nothing() -> None:
    def moved(record: Record) -> None:
        record["interfaces"][0]["addresses"][0]["address"] = "10.0.9.4"
        record["routes"] += [
            {"family": 4, "destination": "10.0.0.0/16", "gateway": "10.0.9.254", "interface": "eth0", "metric": 0}
        ]

    assert not [one for one in registry.diagnose(seen(node4=moved)) if one.severity == "warning"]


def connected(view: View, *failures: tuple[str, str, fabric.PairKind]) -> View:
    pairs = {(source, target): "ok" for source in NODES for target in NODES if source != target}
    kinds: dict[tuple[str, str], Any] = pairs | {(source, target): kind for source, target, kind in failures}
    results = tuple(
        fabric.PairResult("10.0.0.0/24", source, target, "" if kind == "ok" else "seen", kind)
        for (source, target), kind in kinds.items()
    )
    return dataclasses.replace(view, pairs=results)


def test_a_firewall_between_two_gets_one_line_for_both_ways() -> None:
    (found,) = registry.diagnose(connected(seen(), ("node1", "node3", "timeout"), ("node3", "node1", "timeout")))
    assert (found.check, found.hosts) == ("ports", ("node1", "node3"))
    assert found.cause == "connections between node1 and node3 in 10.0.0.0/24 time out"


def test_many_pairs_are_one_line() -> None:
    pairs = [("node1", "node2"), ("node2", "node3"), ("node3", "node4"), ("node4", "node1")]
    (found,) = registry.diagnose(connected(seen(), *((*pair, "timeout") for pair in pairs)))
    assert found.hosts == NODES
    assert found.cause.startswith("connections in 10.0.0.0/24 time out: from node1 to node2, from node2 to node3, ")


def test_what_fails_everywhere_is_one_line() -> None:
    pairs = [(source, target) for source in NODES for target in NODES if source != target]
    (found,) = registry.diagnose(connected(seen(), *((*pair, "refused") for pair in pairs)))
    assert (found.hosts, found.cause) == (NODES, "connections between them in 10.0.0.0/24 are refused")
    view = failing(seen(), *((*pair, "refused") for pair in pairs))
    reports = {name: dataclasses.replace(report, passed=0) for name, report in view.logins.items()}
    (found,) = registry.diagnose(dataclasses.replace(view, logins=reports))
    assert (found.check, found.hosts, found.cause) == ("ssh", NODES, "logins between them fail: ssh: it failed")


def test_a_firewall_on_one_node_is_that_node_s() -> None:
    failures = [(source, "node4", "refused") for source in NODES[:3]]
    (found,) = registry.diagnose(connected(seen(), *failures))  # type: ignore[arg-type]
    assert (found.check, found.hosts) == ("ports", ("node4",))
    assert found.cause == "connections from node[1-3] to it in 10.0.0.0/24 are refused"


def test_nodes_without_a_common_network_are_told_why() -> None:
    def change(record: Record) -> None:
        record["interfaces"][0].update(up=False, carrier=False)

    view = dataclasses.replace(seen(node4=change), pairs=())
    found = [one for one in registry.diagnose(view) if (one.check, one.severity) == ("network", "error")]
    assert [one.hosts for one in found] == [NODES]
    assert found[0].cause.startswith("no network is common to them (")


def test_the_rule_of_a_firewall_stands_beside_the_connections_that_it_stops() -> None:
    others = [name for name in NODES if name != "node2"]
    rule = "firewalld stops them there: zone public, reject"
    view = connected(seen(), *((other, "node2", "refused") for other in others))
    view = dataclasses.replace(view, firewalls={(other, "node2"): rule for other in others})
    (found,) = registry.diagnose(view)
    assert found.hosts == ("node2",)
    assert found.cause.endswith(f"are refused; on node2 {rule}")
    pairs = [(one, other) for one in NODES for other in NODES if one != other]
    view = connected(seen(), *((*pair, "timeout") for pair in pairs))
    view = dataclasses.replace(view, firewalls=dict.fromkeys(pairs, rule))
    (found,) = registry.diagnose(view)
    assert found.cause.endswith(f"time out; on node[1-4] {rule}")


def test_a_rule_that_says_prohibited_is_a_firewall_and_no_missing_route() -> None:
    view = connected(seen(), *((other, "node2", "error") for other in NODES if other != "node2"))
    assert {(one.check, one.severity) for one in registry.diagnose(view)} == {("network", "warning")}
    rule = "firewalld stops them there: zone public, reject"
    view = dataclasses.replace(view, firewalls={(other, "node2"): rule for other in NODES if other != "node2"})
    (found,) = registry.diagnose(view)
    assert (found.check, found.severity, found.hosts) == ("ports", "error", ("node2",))
    assert found.cause.endswith(f"are refused; on node2 {rule}")
    assert "fabric_open_firewall" in found.cure


def test_two_rules_are_told_and_more_are_counted() -> None:
    pairs = [("node1", "node3"), ("node3", "node1")]
    view = connected(seen(), *((*pair, "timeout") for pair in pairs))
    view = dataclasses.replace(view, firewalls={pairs[0]: "a", pairs[1]: "b"})
    (found,) = registry.diagnose(view)
    assert found.cause.endswith("; on node3 a; on node1 b")
