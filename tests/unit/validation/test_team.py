"""The nodes that run a check together, and which of them launches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.diagnosis import training_stack
from clusterctl.model.facts import CpuQuota, NodeFacts
from clusterctl.validation import team
from clusterctl.validation.team import ReadyNode, Team


def ready(name: str, number: int = 1, slots: int = 2) -> ReadyNode:
    facts = factory.provisioned(name, number)
    (host,) = factory.hosts([name], slots)
    return ReadyNode(host, facts, training_stack.of(facts), slots, "mpi" if name == "node2" else None)


NODES = {name: ready(name, number) for number, name in enumerate(("node1", "node2", "node3"), 1)}


def test_the_chosen_node_launches_and_comes_first_in_the_hostfile() -> None:
    team = Team(NODES, "node2")
    assert (team.launch_node, list(team.slots)) == ("node2", ["node2", "node1", "node3"])
    assert (team.version, team.members["node2"].job_user) == ("5.0.7", "mpi")
    assert team.site.fabric["node3"].interfaces == ("eth0",)
    assert NODES["node3"].fabric == "eth0 10.0.0.0/24"


def test_cores_are_those_that_a_quota_leaves_and_containers_share_a_machine() -> None:
    limited = NODES["node2"].facts.model_copy(update={"boot_id": "one", "cpu_quota": CpuQuota(cores=1.5)})
    tight = NODES["node3"].facts.model_copy(update={"boot_id": "one", "cpu_quota": CpuQuota(cores=0.2)})
    nodes = {**NODES, "node2": replace(NODES["node2"], facts=limited), "node3": replace(NODES["node3"], facts=tight)}
    site = Team(nodes, "node1").site
    assert site.cores == {"node1": 4, "node2": 1, "node3": 1}
    assert site.machines == {"node2": "one", "node3": "one"}


def test_a_group_without_the_chosen_node_is_launched_by_its_first_node() -> None:
    group = Team(NODES, "node2").only(["node3", "node1"])
    assert (group.launch_node, list(group.slots)) == ("node3", ["node3", "node1"])
    assert (group.chosen, group.members["node3"].job_user) == ("node2", "user1")


def test_jobs_share_the_connection_to_the_chosen_node_alone() -> None:
    control = Path("/control")
    logins = Team(NODES, "node2").logins(control)
    assert {name: login.control_dir for name, login in logins.items()} == {
        "node1": None,
        "node2": control,
        "node3": None,
    }


def test_when_the_chosen_node_drops_out_another_one_is_chosen_for_good() -> None:
    left = Team(NODES, "node1").without(["node1"])
    assert (left.chosen, left.launch_node, list(left.nodes)) == ("node2", "node2", ["node2", "node3"])
    none = left.without(["node2", "node3"])
    assert (dict(none.nodes), none.launch_node) == ({}, "node2")


def test_a_node_launches_others_without_ranks_of_its_own() -> None:
    group = Team(NODES, "node1").launched_by("node2", ["node3", "node1"])
    assert (group.launch_node, list(group.slots), list(group.members)) == (
        "node2",
        ["node3", "node1"],
        ["node3", "node1"],
    )
    assert group.site.names["node2"] == "node2"  # its messages name it
    assert list(group.logins(Path("/control"))) == ["node3", "node1", "node2"]
    own = Team(NODES, "node1").launched_by("node3", ["node1", "node3"])
    assert (own.launch_node, list(own.slots), own.outside) == ("node3", ["node3", "node1"], None)


# --- the switches that links for jobs hang on, chosen among all that the facts of a node name ---


def port(interface: str, switch: str, source: str = "lldpd", *above: str, chassis: str = "") -> dict[str, Any]:
    own = chassis or f"id of {switch}"
    return {"interface": interface, "above": above, "switch": switch, "id": own, "port": "1", "source": source}


def device(name: str, layer: str, netdev: str = "") -> dict[str, Any]:
    return {"name": name, "ports": [{"number": 1, "link_layer": layer, "netdev": netdev}]}


def wired(name: str, *ports: dict[str, Any], interface: str = "eth0", **changed: Any) -> NodeFacts:
    fabric = {"cidrs": ["10.0.0.0/24"], "interface": interface, "address": "10.0.0.1"}
    return factory.node(name, fabric=fabric, switch_ports=ports, **changed)


def of(node: NodeFacts, *rdma: str) -> tuple[str, ...]:
    return team.of_nodes({"node1": node}, {"node1": rdma}).get("node1", ())


def test_the_switch_of_the_fabric_is_told_and_that_of_the_management_is_not() -> None:
    assert of(wired("node1", port("eth0", "leaf1"), port("eth9", "office"))) == ("leaf1",)
    assert of(factory.node("node1", switch_ports=[port("eth0", "leaf1")])) == ()


def test_a_bond_has_the_switches_of_all_its_members() -> None:
    members = [port(name, switch, "lldpd", "bond0") for name, switch in (("eth1", "leaf2"), ("eth0", "leaf1"))]
    assert of(wired("node1", *members, interface="bond0")) == ("leaf1", "leaf2")


def test_ports_of_infiniband_stand_before_ethernet_where_jobs_can_use_them() -> None:
    node = wired(
        "node1",
        port("eth0", "leaf1"),
        port("mlx5_0:1", "ib1", "subnet"),
        port("mlx5_1:1", "storage", "subnet"),
        rdma=[device("mlx5_0", "InfiniBand"), device("mlx5_1", "InfiniBand")],
    )
    assert of(node, "mlx5_0:1") == ("ib1",)
    assert of(node) == ("leaf1",)


def test_ethernet_says_nothing_of_an_infiniband_that_told_nothing() -> None:
    assert of(wired("node1", port("eth0", "leaf1"), rdma=[device("mlx5_0", "InfiniBand")]), "mlx5_0:1") == ()


def test_roce_has_the_switch_of_its_interface() -> None:
    node = wired("node1", port("eth5", "leaf5"), rdma=[device("mlx5_0", "Ethernet", "eth5")])
    assert of(node, "mlx5_0:1") == ("leaf5",)


def test_another_node_at_the_other_end_of_a_cable_is_not_a_switch() -> None:
    nodes = {"node1": wired("node1", port("eth0", "node2")), "node2": wired("node2", port("eth0", "Node1"))}
    assert team.of_nodes(nodes, {}) == {}


def test_switches_of_one_name_are_told_apart_by_their_ids() -> None:
    nodes = {
        "node1": wired("node1", port("eth0", "localhost", chassis="aa")),
        "node2": wired("node2", port("eth0", "localhost", chassis="bb")),
        "node3": wired("node3", port("eth0", "leaf3")),
    }
    expected = {"node1": ("localhost (aa)",), "node2": ("localhost (bb)",), "node3": ("leaf3",)}
    assert team.of_nodes(nodes, {}) == expected


def test_the_team_tells_its_checks() -> None:
    facts = factory.provisioned("node1", 1)
    known = facts.model_copy(update={"switch_ports": wired("node1", port("eth0", "leaf1")).switch_ports})
    (host,) = factory.hosts(["node1"], 2)
    team = Team({"node1": ReadyNode(host, known, training_stack.of(known), 2, None)}, "node1")
    assert team.site.switches == {"node1": ("leaf1",)}


@pytest.mark.parametrize("rdma", [{}, {"node1": ("mlx5_7:1",)}])
def test_facts_of_an_older_record_name_no_switch(rdma: dict[str, tuple[str, ...]]) -> None:
    assert team.of_nodes({"node1": factory.node("node1")}, rdma) == {}
