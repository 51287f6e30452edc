"""What RDMA ports offer, read from whole trees by the node's own reader, and what NCCL is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules as rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import network

TREES = Path(__file__).resolve().parents[2] / "data" / "fabric"


def choices(*trees: str) -> tuple[rules.RdmaChoice, ...]:
    devices = [device for tree in trees for device in network.read_rdma(str(TREES / tree))]
    return rules.rdma({"rdma": devices})


def test_roce_v2_over_ipv4_is_found_among_both_versions_and_both_families() -> None:
    (choice,) = choices("roce")
    assert (choice.device, choice.port, choice.link_layer, choice.state) == ("mlx5_0", 1, "Ethernet", "ACTIVE")
    assert (choice.gid_index, choice.gid) == (3, "0000:0000:0000:0000:0000:ffff:0a01:000b")
    assert choice.reason == "RoCE v2 of 10.1.0.11 on eth2"
    assert choice.rate_gbps == 100


def test_the_index_is_each_nodes_own_and_a_vlan_before_it_is_passed_over() -> None:
    (choice,) = choices("roce_shifted")
    assert choice.gid_index == 9
    assert choice.reason == "RoCE v2 of 10.1.0.12 on eth2"


def test_a_bond_is_one_device() -> None:
    (choice,) = choices("bond")
    assert (choice.device, choice.gid_index, choice.rate_gbps) == ("mlx5_bond_0", 3, 50)


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


def test_no_device_is_no_choice() -> None:
    assert choices("none") == ()


def test_nothing_is_pinned_unless_asked() -> None:
    assert rules.nccl_pins("a", choices("roce"), [], gid=False) == {}


def test_what_is_pinned_is_each_nodes_own() -> None:
    assert rules.nccl_pins("a", choices("roce"), ["mlx5_0"], gid=True) == {
        "NCCL_IB_HCA": "=mlx5_0",
        "NCCL_IB_GID_INDEX": "3",
    }
    assert rules.nccl_pins("b", choices("roce_shifted"), [], gid=True) == {"NCCL_IB_GID_INDEX": "9"}
    assert rules.nccl_pins("c", choices("infiniband"), ["auto"], gid=True) == {"NCCL_IB_HCA": "=mlx5_0:1"}
    assert rules.nccl_pins("d", choices("none"), ["auto"], gid=True) == {}


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
def test_a_pin_that_cannot_be_kept_is_refused(trees: list[str], devices: list[str], gid: bool, said: str) -> None:
    with pytest.raises(rules.FabricError, match=said):
        rules.nccl_pins("node4", choices(*trees), devices, gid=gid)
