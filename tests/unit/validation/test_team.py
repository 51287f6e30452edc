"""The nodes that run a check together, and which of them launches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import factory
from clusterctl.diagnosis import training_stack
from clusterctl.model.facts import CpuQuota
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
