"""Which hosts only have to meet another node, and what their snapshots hold after that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusterctl.model.run_record import HostResult
from clusterctl.model.snapshot import NodeState, Snapshot
from clusterctl.provisioning import partial, plan
from clusterctl.provisioning.plan import Inputs

TREE = "openmpi-5.0.7-aa"
WATCH = (
    {"path": "/etc/hosts", "kind": "block", "marker": "hosts", "sha256": "old"},
    {"path": f"/usr/local/{TREE}", "kind": "artifact", "digest": "d"},
)
OLD = ("node1", "node2", "node3")
ALL = (*OLD, "node4")
INPUTS = Inputs(inventory="three", content="c", version="1")


def state(key: str, **changed: object) -> NodeState:
    return replace(NodeState("debian-12", (f"ssh-ed25519 {key}",), "me", WATCH, offers="debian-12"), **changed)  # type: ignore[arg-type]


STATES = {name: state(name) for name in ALL}
SNAPSHOTS = plan.snapshots_after(
    "r1", OLD, STATES, dict.fromkeys(OLD, WATCH), INPUTS, plan.cluster_of({name: STATES[name] for name in OLD}, {}, ALL)
)


def decided(states: dict[str, NodeState], smaller: str = "", **inputs: str) -> plan.ProvisionPlan:
    return plan.decide(ALL, states, SNAPSHOTS, replace(INPUTS, **inputs), plan.cluster_of(states, {}, ALL, smaller))


def test_hosts_that_are_as_they_should_be_only_meet_an_added_one() -> None:
    found = decided(STATES, smaller="three", inventory="four")
    assert dict(found.reasons) == {**dict.fromkeys(OLD, plan.ANOTHER_NODE), "node4": plan.NOT_PROVISIONED}
    assert found.as_left == set(OLD)


def test_hosts_play_all_roles_where_the_inventory_changed_otherwise() -> None:
    found = decided(STATES, smaller="three, with another variable", inventory="four")
    assert found.reasons["node1"] == "the inventory changed"
    assert not found.as_left


@pytest.mark.parametrize(
    "change",
    [
        {"offers": "debian-12, UCX"},
        {"offers": "debian-12, GPUs 8 with driver 580.65", "gpus": "8 with driver 580.65"},
        {"platform": "debian-13", "offers": "debian-13"},
    ],
)
def test_hosts_play_all_roles_where_an_added_one_may_change_what_is_built(change: dict[str, object]) -> None:
    found = decided({**STATES, "node4": state("node4", **change)}, smaller="three", inventory="four")
    assert dict(found.reasons) == {**dict.fromkeys(OLD, plan.OTHER_OFFERS), "node4": plan.NOT_PROVISIONED}
    assert not found.as_left


def test_a_drifted_host_plays_all_roles_and_the_others_meet_it() -> None:
    states = {**STATES, "node2": state("node2", watch=({**WATCH[0], "sha256": "new"}, WATCH[1]))}
    found = plan.decide(OLD, states, SNAPSHOTS, INPUTS, plan.cluster_of({n: states[n] for n in OLD}, {}, ALL))
    assert set(found.reasons) == {"node2"}
    assert found.as_left == {"node1", "node3"}


def test_snapshots_of_earlier_releases_tell_too_little_to_leave_out_roles() -> None:
    snapshots = {name: host.model_copy(update={"offers": "", "all_offers": ""}) for name, host in SNAPSHOTS.items()}
    found = plan.decide(ALL, STATES, snapshots, INPUTS, plan.cluster_of(STATES, {}, ALL))
    assert found.reasons["node1"] == plan.ANOTHER_NODE
    assert not found.as_left


def test_what_is_not_in_the_cache_is_built_where_it_was_built_before() -> None:
    assert partial.join_only(OLD, SNAPSHOTS, {TREE, "mpi4py-4-bb"}) == set(OLD)
    assert partial.join_only(OLD, SNAPSHOTS, {"mpi4py-4-bb"}) == frozenset()


def said(host: str, stage: str, *watch: dict[str, object]) -> HostResult:
    return HostResult(at=1, host=host, stage=stage, task="t", outcome="ok", watch=watch)


def test_the_software_of_a_host_that_only_met_others_is_watched_as_before() -> None:
    results = [said("node1", "hosts", {**WATCH[0], "sha256": "new"}), said("node4", "hosts", WATCH[0])]
    found = partial.joined_watch(results, ["node1"], SNAPSHOTS)
    assert found == {"node1": ({**WATCH[0], "sha256": "new"}, WATCH[1]), "node4": (WATCH[0],)}


def test_a_host_that_only_meets_others_has_finished_with_the_last_role_of_these() -> None:
    results = [said("node1", "fabric"), said("node2", "hosts"), said("node3", "fabric"), said("node4", "validation")]
    assert partial.finished(ALL, results, {"node3"}, OLD) == ("node1", "node4")


def test_a_play_gets_patterns_of_hosts_and_the_hosts_whose_files_are_right() -> None:
    before = Snapshot(members=({"name": "node1"},), hosts=SNAPSHOTS)
    given = partial.join_variables(ALL, ["node1", "node2", "node3"], before)
    assert (given["provision_whole"], given["provision_settled"]) == ("node4", "node1,node2,node3")
    assert given["preflight_settled"] == ["node1", "node2", "node3"]
    assert given["preflight_known_members"] == before.members
    nobody = partial.join_variables(OLD, OLD, Snapshot())
    assert (nobody["provision_whole"], nobody["preflight_settled"]) == ("!all", [])
