"""Which networks qualify, which one wins, and in what words the others are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules as rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import network as node_network

HOSTS = ("node1", "node2", "node3", "node4")


def interface(name: str, *addresses: str, **more: Any) -> dict[str, Any]:
    """An interface that is up; an address is written with its prefix."""
    entries = []
    for text in addresses:
        address, _, prefix = text.partition("/")
        family = 6 if ":" in address else 4
        scope = "link" if address.startswith("fe80") else "global"
        entries.append({"family": family, "address": address, "prefix": int(prefix), "scope": scope})
    kind = "bridge" if name.startswith(("docker", "virbr", "cni")) else "physical"
    return {"name": name, "kind": kind, "up": True, "carrier": True, "speed_mbps": 1000, "mtu": 1500, "master": ""} | {
        **more,
        "addresses": entries,
    }


def node(*interfaces: dict[str, Any], out: str = "") -> dict[str, Any]:
    loopback = {**interface("lo", "127.0.0.1/8", "::1/128"), "kind": "loopback"}
    routes = [{"family": 4, "destination": "0.0.0.0/0", "gateway": "10.0.0.254", "interface": out, "metric": 0}]
    return {"interfaces": [loopback, *interfaces], "routes": routes if out else []}


def plain_node(number: int, *more: dict[str, Any]) -> dict[str, Any]:
    return node(interface("eth0", f"10.0.0.{number}/24", f"fe80::{number}/64"), *more, out="eth0")


def cluster(*more: Any) -> dict[str, dict[str, Any]]:
    """Four nodes on eth0; each of ``more`` makes one more interface of a node's number, or none."""
    return {
        host: plain_node(number, *(made for make in more if (made := make(number)) is not None))
        for number, host in enumerate(HOSTS, start=1)
    }


def words(found: rules.Candidates) -> dict[str, str]:
    return {one.network: one.reason for one in found.rejected}


def keys(found: rules.Candidates) -> list[str]:
    return [one.key for one in found.networks]


def results(found: rules.Candidates, broken: Mapping[tuple[str, str, str], str]) -> list[rules.PairResult]:
    made = []
    for network in found.networks:
        for source, target in rules.pairs(HOSTS):
            kind = broken.get((network.key, source, target), "ok")
            problem = "" if kind == "ok" else rules.KIND_WORDS[kind]
            made.append(rules.PairResult(network.key, source, target, problem, kind))
    return made


# --- candidates ------------------------------------------------------------------------------------------------------


def test_what_all_nodes_share_is_a_candidate_and_loopback_is_not_worth_a_word() -> None:
    found = rules.candidates(cluster())
    assert keys(found) == ["10.0.0.0/24"]
    assert found.rejected == ()
    assert found.networks[0].addresses["node3"] == "10.0.0.3"


def test_the_same_address_everywhere_is_rejected_in_words() -> None:
    found = rules.candidates(cluster(lambda _: interface("docker0", "172.17.0.1/16", speed_mbps=40000)))
    assert keys(found) == ["10.0.0.0/24"]
    assert words(found) == {"docker0 172.17.0.0/16": "carries the same address 172.17.0.1 on node[1-4]"}


def test_the_node_that_a_network_lacks_is_named() -> None:
    found = rules.candidates(cluster(lambda n: interface("eth1", f"10.1.0.{n}/24") if n != 3 else None))
    assert words(found) == {"eth1 10.1.0.0/24": "node3 has no address in it"}
    assert found.rejected[0].hosts == ("node1", "node2", "node4")


@pytest.mark.parametrize("state", [{"up": False}, {"carrier": False}])
def test_the_node_on_which_an_interface_is_down_is_named(state: dict[str, bool]) -> None:
    found = rules.candidates(cluster(lambda n: interface("eth1", f"10.1.0.{n}/24", **(state if n == 2 else {}))))
    assert words(found) == {"eth1 10.1.0.0/24": "eth1 is down on node2"}


def test_the_fastest_comes_first_and_between_equals_the_larger_mtu() -> None:
    found = rules.candidates(
        cluster(
            lambda n: interface("eth1", f"10.1.0.{n}/24", speed_mbps=25000),
            lambda n: interface("eth2", f"10.2.0.{n}/24", speed_mbps=25000, mtu=9000),
        )
    )
    assert keys(found) == ["10.2.0.0/24", "10.1.0.0/24", "10.0.0.0/24"]


def test_the_slowest_node_counts() -> None:
    speeds = {1: 100000, 2: 100000, 3: 100, 4: 100000}
    found = rules.candidates(cluster(lambda n: interface("eth1", f"10.1.0.{n}/24", speed_mbps=speeds[n])))
    assert keys(found) == ["10.0.0.0/24", "10.1.0.0/24"]
    assert found.networks[1].speed_mbps == 100


def test_names_of_interfaces_may_differ() -> None:
    found = rules.candidates({"a": node(interface("eth0", "10.0.0.1/24")), "b": node(interface("ens3", "10.0.0.2/24"))})
    assert found.networks[0].interfaces == {"a": "eth0", "b": "ens3"}
    assert rules.title(found.networks[0]) == "eth0/ens3 10.0.0.0/24"


def test_subnets_behind_the_default_route_may_be_one_network() -> None:
    nodes = {
        "a": node(interface("eth0", "10.0.1.1/24"), out="eth0"),
        "b": node(interface("ens3", "10.0.2.1/24"), out="ens3"),
    }
    found = rules.candidates(nodes)
    assert found.networks[0].cidrs == ("10.0.1.0/24", "10.0.2.0/24")
    assert found.rejected == ()
    assert rules.openmpi_include(found.networks[0], "b") == "10.0.2.0/24"


def test_addresses_without_a_subnet_are_joined_by_the_default_route() -> None:
    nodes = {host: node(interface("eth0", f"10.128.0.{n}/32"), out="eth0") for n, host in enumerate(HOSTS, 1)}
    found = rules.candidates(nodes)
    assert found.networks[0].addresses["node2"] == "10.128.0.2"
    assert rules.openmpi_include(found.networks[0], "node2") == "10.128.0.2/32"


def test_a_fast_network_that_is_routed_between_racks_is_a_candidate() -> None:
    found = rules.candidates(cluster(lambda n: interface("eth1", f"10.{n // 3}.7.{n}/24", speed_mbps=100000)))
    assert keys(found) == ["10.0.7.0/24,10.1.7.0/24", "10.0.0.0/24"]


def test_an_overlay_with_a_subnet_for_each_node_is_none() -> None:
    found = rules.candidates(cluster(lambda n: interface("cni0", f"10.244.{n}.1/24")))
    assert keys(found) == ["10.0.0.0/24"]
    assert words(found) == {"cni0": "leads to a network of its own on each node"}


def test_a_fast_card_with_the_address_of_another_node_s_is_named_and_not_taken_for_a_cable() -> None:
    found = rules.candidates(
        cluster(lambda number: interface("eth1", f"10.1.0.{max(number, 2)}/24", speed_mbps=100_000))
    )
    assert keys(found) == ["10.0.0.0/24"]
    assert words(found) == {"eth1 10.1.0.0/24": "carries the same address 10.1.0.2 on node[1-2]"}


@pytest.mark.parametrize(
    ("other", "twins"),
    [
        (interface("eth1", "10.0.0.2/24"), {"10.0.0.2": ["eth0", "eth1"]}),
        (interface("eth1", "10.0.0.3/24"), {}),
        (interface("wg0", "10.0.0.2/32"), {}),
        (interface("docker0", "10.0.0.2/24"), {}),
        (interface("eth1", "fe80::2/64"), {}),
    ],
)
def test_two_cards_of_a_node_with_the_same_address(other: dict[str, Any], twins: dict[str, list[str]]) -> None:
    assert rules.own_twins(plain_node(2, other)) == twins


def test_an_interface_without_address_is_told_and_a_slave_is_not() -> None:
    found = rules.candidates(
        cluster(lambda _: interface("ib0", kind="infiniband"), lambda _: interface("p0", master="bond0"))
    )
    assert words(found) == {"ib0": "has no address on node[1-4]"}


def test_ipv6_is_taken_where_there_is_nothing_else() -> None:
    nodes = {host: node(interface("eth0", f"fd00::{n}/64", f"fe80::{n}/64")) for n, host in enumerate(HOSTS, 1)}
    found = rules.candidates(nodes)
    assert keys(found) == ["fd00::/64"]
    assert rules.openmpi_include(found.networks[0], "node1") == "eth0", "Open MPI reads no IPv6 in CIDR form"
    both = cluster(lambda n: interface("eth1", f"fd00::{n}/64"))
    assert keys(rules.candidates(both)) == ["10.0.0.0/24"]
    assert "fabric_cidr can name this one" in words(rules.candidates(both))["eth1 fd00::/64"]


def test_ipv4_of_the_interface_is_switched_off_in_a_network_of_ipv6() -> None:
    nodes = {host: node(interface("eth0", f"10.0.0.{n}/24", f"fd00::{n}/64")) for n, host in enumerate(HOSTS, 1)}
    (chosen,) = rules.candidates(nodes, cidrs=["fd00::/64"]).networks
    assert rules.files(chosen, "node1", {}) == {
        "openmpi": "btl_tcp_if_include = eth0\nbtl_tcp_disable_family = 4\noob_tcp_if_include = eth0\n",
        "prrte": "prte_if_include = eth0\nodls_base_max_threads = 0\n",
        "nccl": "NCCL_SOCKET_FAMILY=AF_INET6\nNCCL_SOCKET_IFNAME==eth0\n",
    }


def test_a_privacy_address_is_never_taken() -> None:
    nodes = {}
    for number, host in enumerate(HOSTS, start=1):
        link = interface("eth0", f"fd00::{number}/64", f"fd00::1:{number}/64")
        link["addresses"][0]["temporary"] = True
        nodes[host] = node(link)
    assert rules.candidates(nodes).networks[0].addresses["node2"] == "fd00::1:2"


@pytest.mark.parametrize(
    ("routes", "wanted"),
    [
        ([("fd00::/64", None), ("::/0", "fe80::1"), ("fd00::/48", "fe80::1")], ["fd00::/64"]),
        ([("fd00::/48", None), ("fd00::/64", None)], ["fd00::/64"]),
        ([("::/0", None)], ["fd00::1/128,fd00::2/128,fd00::3/128,fd00::4/128"]),
    ],
)
def test_the_network_of_an_address_of_dhcpv6_is_that_of_its_route(
    routes: list[tuple[str, str | None]], wanted: list[str]
) -> None:
    nodes = {host: node(interface("eth0", f"fd00::{n}/128")) for n, host in enumerate(HOSTS, 1)}
    for one in nodes.values():
        one["routes"] = [
            {"family": 6, "destination": target, "gateway": gateway, "interface": "eth0", "metric": 256}
            for target, gateway in routes
        ]
    assert keys(rules.candidates(nodes)) == wanted


def test_one_node_takes_its_way_out_and_not_the_bridge_of_containers() -> None:
    found = rules.candidates({"node1": plain_node(1, interface("docker0", "172.17.0.1/16", speed_mbps=10000))})
    assert keys(found)[0] == "10.0.0.0/24"
    assert rules.candidates({"node1": node()}).networks == ()


def test_of_two_addresses_in_a_network_the_one_that_is_nobody_elses_is_taken() -> None:
    nodes = {host: node(interface("eth0", "10.0.0.100/24", f"10.0.0.{n}/24")) for n, host in enumerate(HOSTS, start=1)}
    assert rules.candidates(nodes).networks[0].addresses["node1"] == "10.0.0.1"


def test_networks_of_nodes_that_are_not_visited_come_first() -> None:
    nodes = cluster(lambda n: interface("eth1", f"10.1.0.{n}/24", speed_mbps=25000))
    assert keys(rules.candidates(nodes, others=["10.0.0.9", "node9"]))[0] == "10.0.0.0/24"


# --- pins ------------------------------------------------------------------------------------------------------------


def test_a_pin_is_kept_though_another_is_faster() -> None:
    nodes = cluster(lambda n: interface("eth1", f"10.1.0.{n}/24", speed_mbps=25000))
    for found in (rules.candidates(nodes, cidrs=["10.0.0.0/16"]), rules.candidates(nodes, interfaces=["eth0"])):
        assert found.pinned
        assert found.networks[0].addresses["node1"] == "10.0.0.1"
        assert words(found) == {"eth1 10.1.0.0/24": "another network is pinned"}


def test_of_pinned_interfaces_each_node_takes_its_first() -> None:
    nodes = cluster(lambda n: interface("ib0", f"10.1.0.{n}/24") if n < 3 else None)
    assert rules.candidates(nodes, interfaces=["ib0", "eth0"]).networks[0].interfaces == {
        "node1": "ib0",
        "node2": "ib0",
        "node3": "eth0",
        "node4": "eth0",
    }


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        ({"cidrs": ["10.1.0.0/24"]}, "fabric_cidr 10.1.0.0/24: node3 has no address"),
        ({"interfaces": ["eth1"]}, "fabric_interfaces eth1: node3 has no address"),
        ({"interfaces": ["eth9"]}, r"fabric_interfaces eth9: node\[1-4\] have no address"),
        ({"cidrs": ["172.17.0.0/16"]}, r"172.17.0.1 there is also the address of node\[2-4\]"),
        ({"cidrs": ["10.0.0.0/33"]}, "'10.0.0.0/33', which is not a network"),
        ({"cidrs": ["10.0.0.5/24"]}, "10.0.0.0/24 is probably meant"),
        ({"cidrs": ["eth0"]}, "a network is written like"),
        ({"interfaces": ["a/b"]}, "not the name of an interface"),
    ],
)
def test_a_pin_that_cannot_be_kept_is_refused(pin: dict[str, list[str]], said: str) -> None:
    nodes = cluster(
        lambda n: interface("eth1", f"10.1.0.{n}/24") if n != 3 else None,
        lambda _: interface("docker0", "172.17.0.1/16"),
    )
    with pytest.raises(rules.FabricError, match=said):
        rules.candidates(nodes, **pin)


def test_whoever_lacks_the_pin_is_named_beside_the_sentence() -> None:
    with pytest.raises(rules.FabricError) as refused:
        rules.candidates(
            cluster(lambda n: interface("eth1", f"10.1.0.{n}/24") if n < 3 else None), cidrs=["10.1.0.0/24"]
        )
    assert refused.value.hosts == ("node3", "node4")


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_up_to_32_everybody_calls_everybody() -> None:
    hosts = [f"n{number}" for number in range(32)]
    assert len(rules.pairs(hosts)) == 32 * 31
    assert rules.pairs(["one"]) == ()


@pytest.mark.parametrize("count", [33, 64, 500])
def test_beyond_a_sample_leaves_nobody_out(count: int) -> None:
    hosts = [f"n{number}" for number in range(count)]
    sample = rules.pairs(hosts, seed=3)
    assert sample == rules.pairs(hosts, seed=3)
    assert sample != rules.pairs(hosts, seed=4)
    assert len(sample) <= count * 11
    seen, reached = {hosts[0]}, [hosts[0]]
    while reached:
        here = reached.pop()
        new = {target for source, target in sample if source == here} - seen
        seen |= new
        reached += new
    assert seen == set(hosts)


# --- the decision ----------------------------------------------------------------------------------------------------


def test_the_fastest_that_carries_wins_and_the_failing_pair_is_named() -> None:
    found = rules.candidates(cluster(lambda n: interface("eth1", f"10.1.0.{n}/24", speed_mbps=25000)))
    whole = rules.decide(found, results(found, {}))
    assert whole.network.key == "10.1.0.0/24"
    assert "eth1 10.1.0.0/24: the fastest of those that carry (25000 Mb/s, MTU 1500)" in whole.reason
    paces = "1000 Mb/s, MTU 1500; eth1 10.1.0.0/24 has 25000 Mb/s, MTU 1500"
    assert [(one.network, one.reason) for one in whole.rejected] == [
        ("eth0 10.0.0.0/24", f"carries too, and is slower ({paces})")
    ]
    decision = rules.decide(found, results(found, {("10.1.0.0/24", "node1", "node4"): "timeout"}))
    assert decision.network.key == "10.0.0.0/24"
    assert "the only network that carries" in decision.reason
    assert [(one.source, one.target, one.kind) for one in decision.failures] == [("node1", "node4", "timeout")]
    assert {one.network: one.reason for one in decision.rejected} == {"eth1 10.1.0.0/24": "node1 to node4: timed out"}


def test_a_node_that_nobody_reaches_is_named() -> None:
    found = rules.candidates(cluster())
    broken = {
        ("10.0.0.0/24", source, target): "timeout"
        for source, target in rules.pairs(HOSTS)
        if "node3" in (source, target)
    }
    decision = rules.decide(found, results(found, broken))
    assert decision.network is None
    assert decision.reason == "no network carries connections between all nodes"
    assert "every failing connection has node3 at one end (timed out:" in decision.rejected[0].reason


def test_where_nothing_is_common_the_matrix_shows_who_has_what() -> None:
    nodes = {
        "node1": node(interface("eth0", "10.0.0.1/24"), interface("docker0", "172.17.0.1/16")),
        "node2": node(interface("eth0", "10.0.0.2/24"), interface("docker0", "172.17.0.1/16")),
        "node3": node(interface("wlan0", "192.168.7.3/24")),
    }
    found = rules.candidates(nodes)
    assert rules.decide(found, []).reason == "no network is common to all nodes"
    assert rules.matrix(found) == (
        "eth0 10.0.0.0/24       node[1-2]  node3 has no address in it",
        "docker0 172.17.0.0/16  node[1-2]  carries the same address 172.17.0.1 on node[1-2]",
        "wlan0 192.168.7.0/24   node3      node[1-2] have no address in it",
    )


def test_what_is_on_record_everywhere_need_not_be_proven_again() -> None:
    found = rules.candidates(cluster())
    records: dict[str, Any] = {host: rules.record(found.networks[0], host, proven=HOSTS) for host in HOSTS}
    assert rules.recorded(found, records) == found.networks[0]
    assert rules.recorded(found, {**records, "node2": None}) is None
    assert rules.recorded(found, {**records, "node2": {**records["node2"], "interface": "eth1"}}) is None
    faster = rules.candidates(cluster(lambda n: interface("eth1", f"10.1.0.{n}/24", speed_mbps=25000)))
    assert rules.recorded(faster, records) is None
    assert rules.prefer(faster, records).networks[0].key == "10.0.0.0/24"


def test_a_proof_holds_for_the_nodes_that_it_names() -> None:
    found = rules.candidates(cluster())
    new, old = HOSTS[-1], HOSTS[:-1]
    records: dict[str, Any] = {host: rules.record(found.networks[0], host, proven=old) for host in old}
    alone = rules.record(found.networks[0], new)
    assert alone["proven"] == []
    assert rules.recorded(found, {**records, new: alone}) is None, "the new node was set up by a run of its own"
    assert rules.recorded(found, {**records, new: {**alone, "proven": list(old)}}) is None, "one side is not enough"
    assert rules.recorded(rules.candidates({name: cluster()[name] for name in old}), records) is not None


def test_candidates_survive_the_way_through_results() -> None:
    found = rules.candidates(cluster(lambda _: interface("docker0", "172.17.0.1/16")))
    assert rules.from_plain(rules.plain(found)) == found


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["node1"], "node1"),
        (["node3", "node1", "node2", "node7"], "node[1-3,7]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["a", "a1", "a2", "b"], "a,a[1-2],b"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert rules.fold(names) == folded


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_files_say_it_in_each_readers_words() -> None:
    network = rules.candidates(cluster()).networks[0]
    assert rules.files(network, "node1", {"NCCL_IB_GID_INDEX": "3"}) == {
        "openmpi": "btl_tcp_if_include = 10.0.0.0/24\noob_tcp_if_include = 10.0.0.0/24\n",
        "prrte": "prte_if_include = eth0\nodls_base_max_threads = 0\n",
        "nccl": "NCCL_IB_GID_INDEX=3\nNCCL_SOCKET_IFNAME==eth0\n",
    }
    other = network._replace(interfaces={**network.interfaces, "node4": "ens3"})
    prrte = rules.files(other, "node1", {})["prrte"]
    assert prrte.startswith("prte_if_include = eth0,ens3\n"), "daemons get the launch node's"
    assert rules.files(None, "node1", {}) == {"openmpi": "", "prrte": "", "nccl": ""}
    assert rules.record(network, "node2", [rules.Rejection("docker0", ("node1",), "is a bridge")], ["node1"]) == {
        "proven": ["node1"],
        "schema_version": 1,
        "cidrs": ["10.0.0.0/24"],
        "interface": "eth0",
        "address": "10.0.0.2",
        "rejected": {"docker0": "is a bridge"},
    }


class TestLinesOfFiles:
    """No answer of a node leaves its line in the files of Open MPI, PRRTE and NCCL."""

    EVIL = (
        "eth0\nprte_launch_agent = /tmp/evil.sh",
        "eth0\r",
        "eth0\0",
        "a b",
        'a"b',
        "a,b",
        "e#x",
        "{{ x }}",
        "x" * 16,
    )

    @pytest.mark.parametrize("name", EVIL)
    def test_an_interface_with_such_a_name_is_no_candidate(self, name: str) -> None:
        nodes = {
            host: node(interface(name, f"10.0.0.{at}/24", speed_mbps=100_000), interface("eth1", f"10.1.0.{at}/24"))
            for at, host in enumerate(HOSTS, start=1)
        }
        assert keys(rules.candidates(nodes)) == ["10.1.0.0/24"]

    @pytest.mark.parametrize("name", EVIL)
    def test_the_writer_refuses_it_once_more_and_names_the_node(self, name: str) -> None:
        addresses = {"node1": "10.0.0.1", "node3": "10.0.0.3"}
        network = rules.Network(("10.0.0.0/24",), {"node1": "eth0", "node3": name}, addresses)
        with pytest.raises(rules.FabricError, match="node3") as caught:
            rules.files(network, "node1", {})
        assert caught.value.hosts == ("node3",)
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize("value", ["mlx5_0\nNCCL_NET_PLUGIN=/tmp/evil.so", "x\r", "x\0", "x\x1b[2J"])
    def test_a_setting_of_nccl_stays_in_its_line(self, value: str) -> None:
        network = rules.Network(("10.0.0.0/24",), {"node1": "eth0"}, {"node1": "10.0.0.1"})
        for chosen in (network, None):
            with pytest.raises(rules.FabricError, match=r"NCCL_IB_HCA of node1 in nccl\.conf"):
                rules.files(chosen, "node1", {"NCCL_IB_HCA": value})

    @pytest.mark.parametrize("address", ['fe80::1%x"\ny', "10.0.0.1\n", "node1", ""])
    def test_what_is_no_address_is_no_candidate(self, address: str) -> None:
        wrong = interface("eth0")
        wrong["addresses"] = [{"family": 4, "address": address, "prefix": 24, "scope": "global"}]
        nodes = {host: node(wrong, interface("eth1", f"10.1.0.{at}/24")) for at, host in enumerate(HOSTS, start=1)}
        assert keys(rules.candidates(nodes)) == ["10.1.0.0/24"]

    def test_a_prefix_that_the_address_cannot_have_is_left_out(self) -> None:
        nodes = cluster(lambda number: interface("eth1", f"10.1.0.{number}/77"))
        assert keys(rules.candidates(nodes)) == ["10.0.0.0/24"]


# --- what RDMA ports offer, read from whole trees by the node's own reader, and what NCCL is told of it ---


TREES = Path(__file__).resolve().parents[2] / "data" / "fabric"


def choices(*trees: str) -> tuple[rules.RdmaChoice, ...]:
    devices = [device for tree in trees for device in node_network.read_rdma(str(TREES / tree))]
    return rules.rdma({"rdma": devices})


@pytest.mark.parametrize(
    ("tree", "device", "index", "rate", "reason"),
    [
        ("roce", "mlx5_0", 3, 100, "RoCE v2 of 10.1.0.11 on eth2"),  # among both versions and both families
        ("roce_shifted", "mlx5_0", 9, 100, "RoCE v2 of 10.1.0.12 on eth2"),  # behind a VLAN's
        ("bond", "mlx5_bond_0", 3, 50, ""),
    ],
)
def test_the_index_of_roce_v2_over_ipv4_is_each_nodes_own(
    tree: str, device: str, index: int, rate: int, reason: str
) -> None:
    (choice,) = choices(tree)
    assert (choice.device, choice.gid_index, choice.rate_gbps) == (device, index, rate)
    assert reason in choice.reason


def test_ports_that_are_down_say_how() -> None:
    assert [(one.usable, one.gid_index, one.reason) for one in choices("ports_down")] == [
        (False, None, "the port is DOWN (Disabled)"),
        (False, None, "the port is DOWN (Polling)"),
    ]


def test_infiniband_needs_no_index() -> None:
    active, waiting = choices("infiniband")
    assert (active.usable, active.gid_index, active.rate_gbps) == (True, None, 200)
    assert (waiting.usable, waiting.reason) == (False, "the port is INIT (LinkUp)")


def test_roce_without_ipv4_says_what_is_missing() -> None:
    (choice,) = choices("ipv6_only")
    assert (choice.usable, choice.gid_index) == (False, None)
    assert choice.reason == "its RoCE v2 GIDs are of IPv6 alone; give its interface an IPv4 address"


def test_what_is_pinned_is_each_nodes_own() -> None:
    assert rules.nccl_pins("a", choices("roce"), ["mlx5_0"], gid=True) == {
        "NCCL_IB_HCA": "=mlx5_0",
        "NCCL_IB_GID_INDEX": "3",
    }
    assert rules.nccl_pins("b", choices("roce_shifted"), [], gid=True) == {"NCCL_IB_GID_INDEX": "9"}
    assert rules.nccl_pins("c", choices("infiniband"), ["auto"], gid=True) == {"NCCL_IB_HCA": "=mlx5_0:1"}
    assert rules.nccl_pins("d", choices("none"), ["auto"], gid=True) == {}
    assert rules.nccl_pins("a", choices("roce"), [], gid=False) == {}, "nothing is pinned unless asked"


@pytest.mark.parametrize(
    ("trees", "devices", "gid", "said"),
    [
        (["roce"], ["mlx5_7"], False, "names mlx5_7, which node4 cannot use: it has mlx5_0"),
        (["none"], ["mlx5_7"], False, "names mlx5_7, which node4 cannot use: it has none"),
        (["ports_down"], ["mlx4_0:2"], False, r"mlx4_0:2, which node4 cannot use: the port is DOWN \(Polling\)"),
        (["bond", "roce_shifted"], [], True, "node4 has mlx5_bond_0 at 3, mlx5_0 at 9"),
        (["roce"], ["mlx5 0"], False, "not a device"),
    ],
)
def test_a_pinned_device_that_cannot_be_kept_is_refused(
    trees: list[str], devices: list[str], gid: bool, said: str
) -> None:
    with pytest.raises(rules.FabricError, match=said):
        rules.nccl_pins("node4", choices(*trees), devices, gid=gid)


# --- rails and cables ------------------------------------------------------------------------------------------------

RING = {"a": {"b": 12, "c": 13}, "b": {"a": 12, "c": 23}, "c": {"a": 13, "b": 23}}


def joined(cables: Mapping[str, Mapping[str, int]], *, mtu: int = 9000, speed_mbps: int = 200_000) -> dict[str, Any]:
    """Nodes on a LAN, and by node to which others it has a cable, each with the number of its subnet."""
    nodes = {}
    for place, (host, others) in enumerate(sorted(cables.items()), start=1):
        more = [
            interface(f"cx{port}", f"10.9.{subnet}.{1 if host < other else 2}/30", mtu=mtu, speed_mbps=speed_mbps)
            for port, (other, subnet) in enumerate(others.items())
        ]
        nodes[host] = node(interface("eth0", f"10.0.0.{place}/24"), *more, out="eth0")
    return nodes


def proven(found: rules.Candidates, broken: tuple[str, str, str] = ("", "", "")) -> list[rules.PairResult]:
    return [
        rules.PairResult(network.key, one, other, "", "timeout" if (network.key, one, other) == broken else "ok")
        for network in found.probed
        for one in network.addresses
        for other in network.addresses
        if one != other
    ]


def test_cables_between_all_pairs_carry_messages_and_the_lan_carries_the_rest() -> None:
    nodes = joined(RING)
    found = rules.candidates(nodes)
    assert keys(found) == ["10.0.0.0/24"]
    assert [one.key for one in found.cables] == ["10.9.12.0/30", "10.9.13.0/30", "10.9.23.0/30"]
    assert rules.from_plain(rules.plain(found)) == found
    decision = rules.decide(found, proven(found), nodes)
    assert decision.carriers == found.cables
    assert "messages go over cx0 10.9.12.0/30 (a,b)" in decision.reason
    texts = rules.files(decision.network, "b", {}, decision.carriers)
    assert texts["openmpi"] == "btl_tcp_if_include = 10.9.12.0/30,10.9.23.0/30\noob_tcp_if_include = 10.0.0.0/24\n"
    assert "prte_if_include = eth0\n" in texts["prrte"]
    assert texts["nccl"] == "NCCL_SOCKET_IFNAME==eth0\n"
    record = rules.record(decision.network, "b", proven="abc", carriers=decision.carriers)
    assert record["carriers"][1] == {"cidr": "10.9.23.0/30", "interface": "cx1", "address": "10.9.23.1"}
    assert rules.over_cables(record)
    records = {host: rules.record(decision.network, host, proven="abc", carriers=decision.carriers) for host in nodes}
    assert rules.recorded(found, records, nodes) == decision.network
    assert rules.recorded(found, {**records, "a": {**records["a"], "carriers": []}}, nodes) is None
    assert rules.written(records) == [one._replace(speed_mbps=None, mtu=None) for one in found.cables]


def test_a_cable_that_fails_leaves_the_messages_on_the_lan_and_is_named() -> None:
    nodes = joined(RING)
    found = rules.candidates(nodes)
    decision = rules.decide(found, proven(found, ("10.9.23.0/30", "b", "c")), nodes)
    assert decision.carriers == (decision.network,)
    told = {one.network: one.reason for one in decision.rejected}
    assert told["cx1 10.9.23.0/30"] == "b to c: timed out"


def test_an_open_mpi_that_cannot_tell_cables_apart_is_not_given_any() -> None:
    nodes = joined(RING)
    found = rules.candidates(nodes)
    decision = rules.decide(found, proven(found), nodes, ["a", "b", "c"])
    assert decision.carriers == (decision.network,)
    assert {one.reason for one in decision.rejected} == {
        "Open MPI of a,b,c cannot tell which of them leads to which node"
    }


def test_who_has_no_cable_between_them_is_said() -> None:
    four = {
        "a": {"b": 12, "d": 14},
        "b": {"a": 12, "c": 23},
        "c": {"b": 23, "d": 34},
        "d": {"c": 34, "a": 14},
    }
    found = rules.candidates(joined(four))
    assert found.cables == ()
    assert words(found)["cx1 10.9.14.0/30"] == "joins a,d alone, and a and c, b and d have no such link"


def test_a_cable_that_is_no_faster_than_the_lan_is_no_carrier() -> None:
    assert rules.candidates(joined(RING, mtu=1500, speed_mbps=1000)).cables == ()


def test_nccl_takes_the_rdma_ports_of_the_cables() -> None:
    gids = [{"index": 3, "type": "RoCE v2", "gid": "::ffff:10.9.12.1", "netdev": "cx0"}]
    port = {"number": 1, "state": "ACTIVE", "link_layer": "Ethernet", "rate_gbps": 200.0, "gids": gids}
    device = {"name": "rocep1s0f0", "ports": [{**port, "netdev": "cx0"}]}
    assert rules.cable_pins({"rdma": [device]}, ["cx0"]) == {
        "NCCL_IB_HCA": "=rocep1s0f0:1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    }
    assert rules.cable_pins({"rdma": [device]}, ["cx0", "cx1"]) == {}
    assert rules.cable_pins({}, []) == {}


def rail(name: str, net: int, **more: Any) -> Any:
    return lambda number: interface(name, f"10.{net}.0.{number}/24", **{"speed_mbps": 100_000, **more})


def test_equal_fast_networks_share_the_messages() -> None:
    nodes = cluster(rail("eth1", 1), rail("eth2", 2))
    found = rules.candidates(nodes)
    decision = rules.decide(found, results(found, {}), nodes)
    assert [one.key for one in decision.carriers] == ["10.1.0.0/24", "10.2.0.0/24"]
    texts = rules.files(decision.network, "node2", {}, decision.carriers)
    assert texts["openmpi"].startswith("btl_tcp_if_include = 10.1.0.0/24,10.2.0.0/24\noob_tcp_if_include = 10.1.0.0/24")
    assert texts["nccl"] == "NCCL_SOCKET_IFNAME==eth1,eth2\n"
    record = rules.record(decision.network, "node2", carriers=decision.carriers)
    assert [one["interface"] for one in record["carriers"]] == ["eth1", "eth2"]
    assert not rules.over_cables(record)
    assert [one.key for one in rules.written({"a": record, "b": record})] == ["10.2.0.0/24"]


@pytest.mark.parametrize(
    "more", [{"kind": "vlan"}, {"is_function": True}, {"speed_mbps": 25_000}, {"speed_mbps": 200_000}]
)
def test_what_shares_a_wire_or_has_another_speed_is_no_rail(more: dict[str, Any]) -> None:
    nodes = cluster(rail("eth1", 1), rail("eth2", 2, **more))
    found = rules.candidates(nodes)
    decision = rules.decide(found, results(found, {}), nodes)
    assert decision.carriers == (decision.network,)


def test_a_rail_that_fails_between_two_nodes_is_left_out_and_named() -> None:
    nodes = cluster(rail("eth1", 1), rail("eth2", 2))
    found = rules.candidates(nodes)
    decision = rules.decide(found, results(found, {("10.2.0.0/24", "node1", "node3"): "timeout"}), nodes)
    assert decision.carriers == (decision.network,)
    assert {one.network: one.reason for one in decision.rejected}["eth2 10.2.0.0/24"] == "node1 to node3: timed out"


# --- link-local ------------------------------------------------------------------------------------------------------


def on_link(number: int, **more: Any) -> dict[str, Any]:
    made = interface("eth1", f"169.254.7.{number}/16", **more)
    made["addresses"][0]["scope"] = "link"
    return made


def test_a_fast_link_local_network_of_all_nodes_is_taken() -> None:
    found = rules.candidates(cluster(lambda number: on_link(number, speed_mbps=200_000)))
    assert keys(found) == ["169.254.0.0/16", "10.0.0.0/24"]


def test_a_link_local_network_that_is_no_faster_is_left_out_in_words() -> None:
    found = rules.candidates(cluster(on_link))
    assert keys(found) == ["10.0.0.0/24"]
    assert words(found)["eth1 169.254.0.0/16"] == "has link-local addresses, and another network is as fast"


def test_the_node_without_a_link_local_address_is_named() -> None:
    found = rules.candidates(cluster(lambda number: on_link(number) if number != 3 else None))
    assert words(found)["eth1 169.254.0.0/16"] == "node3 has no address in it"


def test_link_local_addresses_of_ipv6_alone_are_left_out_in_words() -> None:
    found = rules.candidates(cluster(lambda number: interface("eth1", f"fe80::{number}/64", speed_mbps=200_000)))
    assert keys(found) == ["10.0.0.0/24"]
    assert words(found)["eth1"] == (
        "has link-local addresses of IPv6 alone on node[1-4], over which Open MPI sends nothing; give it addresses of "
        "IPv4"
    )


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, ("node1", "node2")),  # nodes that are containers
        ({"has_both_ends": True}, ()),
        ({"master": "cni0"}, ()),
    ],
)
def test_a_veth_counts_where_it_leads_to_another_machine(more: dict[str, Any], told: tuple[str, ...]) -> None:
    def joined(number: int) -> dict[str, Any] | None:
        return interface("cx1", f"fe80::{number}/64", kind="veth", **more) if number < 3 else None

    def alone(number: int) -> dict[str, Any]:
        return interface(f"veth{number}", f"fe80::7:{number}/64", kind="veth")  # of a container on the node

    found = rules.candidates(cluster(joined, alone))
    assert [(one.network, one.hosts, one.on_link) for one in found.rejected] == [("cx1", told, True)] * bool(told)
    assert rules.from_plain(rules.plain(found)) == found


def test_a_veth_without_an_address_is_not_among_the_rejected() -> None:
    """Pods come and go, and their names would be another record of the network at each run."""

    def of_pod(number: int) -> dict[str, Any]:
        return interface(f"veth{number}", kind="veth")

    def bare(_number: int) -> dict[str, Any]:
        return interface("eth9")

    found = rules.candidates(cluster(of_pod, bare)).rejected
    assert [(one.network, one.hosts) for one in found] == [("eth9", ("node1", "node2", "node3", "node4"))]
