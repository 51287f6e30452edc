"""How many hosts may be lost, which ones finished, and the batches of a rolling run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from clusterctl.model.hosts import Host
from clusterctl.model.run_record import HostResult, Problem
from clusterctl.model.snapshot import NodeState, Snapshot
from clusterctl.provisioning import batches_and_losses, plan
from clusterctl.provisioning.batches_and_losses import Rolled, Steps, roll
from clusterctl.provisioning.plan import Inputs
from clusterctl.provisioning.playbook import End

WELL = End("successful", 0)


@pytest.mark.parametrize(
    ("text", "hosts", "number"), [("0", 9, 0), ("5", 3, 5), ("10%", 500, 50), ("10%", 5, 0), ("100%", 7, 7)]
)
def test_a_number_of_hosts_or_a_share_of_them(text: str, hosts: int, number: int) -> None:
    assert batches_and_losses.amount(text, 0).of(hosts) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", "150%", "some", "5 %", "%", "٣"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        batches_and_losses.amount(text, 0)


def test_a_batch_of_no_host_is_refused() -> None:
    with pytest.raises(ValueError, match="the least is 1"):
        batches_and_losses.amount("0%", 1)


def test_only_hosts_that_cannot_be_reached_are_left_out_and_never_all() -> None:
    away = Problem(host="node1", subject="timeout", problem="does not answer", kind="unreachable")
    full = Problem(host="node2", subject="disk", problem="is full")
    assert batches_and_losses.can_be_left_out([away], ["node1", "node2"])
    assert not batches_and_losses.can_be_left_out([away, full], ["node1", "node2", "node3"])
    assert not batches_and_losses.can_be_left_out([away], ["node1"])
    assert not batches_and_losses.can_be_left_out([], ["node1"])


def test_more_lost_hosts_than_allowed_stop_the_run() -> None:
    assert batches_and_losses.too_many(100, None) == ""
    assert batches_and_losses.too_many(2, 2) == ""
    assert (
        batches_and_losses.too_many(1, 0) == "Stopped: 1 host failed or could not be reached, and --max-fail allows 0."
    )


def result(host: str, stage: str, outcome: str = "ok") -> HostResult:
    return HostResult(at=0.0, host=host, stage=stage, task="t", outcome=outcome)  # type: ignore[arg-type]


def test_a_host_has_finished_when_the_last_role_has_run_on_it() -> None:
    results = [result("node1", "validation", "changed"), result("node2", "hosts"), result("node3", "validation")]
    assert batches_and_losses.finished(["node1", "node2", "node3"], results, {"node3"}) == ("node1",)


def test_the_last_role_and_the_roles_of_the_mesh_are_those_of_the_playbook() -> None:
    plays = yaml.safe_load((Path(__file__).parents[3] / "playbooks" / "provision.yml").read_text(encoding="utf-8"))
    tasks = [task for play in plays[2:] for task in play["tasks"]]
    brought = [task["ansible.builtin.import_role"] for task in tasks if "ansible.builtin.import_role" in task]
    parts = {None, "mesh", "unfinished", "build", "stage", "check", "install", "lost"}
    roles = [role["name"] for role in brought if role.get("tasks_from") in parts]
    assert roles[-1] == f"clusterctl.hpc.{batches_and_losses.LAST_STAGE}"
    assert {f"clusterctl.hpc.{tag}" for tag in batches_and_losses.JOINT_TAGS} <= set(roles)
    words = ("provision_max_failed", "too_many")
    guards = [task for task in tasks if any(word in str(task.get("when")) for word in words)]
    assert len(guards) == len(roles), "every role after the first one, and the switch, is behind a look at --max-fail"


def test_the_builders_come_in_the_first_batch() -> None:
    hosts = [Host(f"node{number}", f"10.0.0.{number}") for number in range(1, 7)]
    hosts[0].variables["openmpi_builder"] = "node5"
    platforms = {"node1": "a", "node2": "a", "node3": "b", "node4": "b", "node6": "a"}
    first = batches_and_losses.builders(hosts, platforms)
    assert first == ("node1", "node3", "node5")
    names = [host.name for host in hosts]
    assert batches_and_losses.batches(names, 2, first) == (("node1", "node3", "node5"), ("node2", "node4"), ("node6",))
    assert batches_and_losses.batches(names, 4, first) == (("node1", "node3", "node5", "node2"), ("node4", "node6"))
    assert batches_and_losses.batches(names, 100, first) == (("node1", "node3", "node5", "node2", "node4", "node6"),)


class Cluster:
    """Plays and joins as told, and remembers what was asked of it."""

    def __init__(self, plays: dict[str, End] | None = None, joins: dict[str, End] | None = None) -> None:
        self.ends = {"play": plays or {}, "join": joins or {}}
        self.asked: list[str] = []

    def run(self, batches: list[list[str]], allowed: int = 0) -> Rolled:
        def end(kind: str, names: list[str]) -> End:
            self.asked.append(f"{kind} {' '.join(names)}")
            return self.ends[kind].get(" ".join(names), WELL)

        steps = Steps(
            begin=lambda number, _names: self.asked.append(str(number)),
            play=lambda names: end("play", list(names)),
            join=lambda names: end("join", list(names)),
            reached=lambda names: names,
        )
        return roll(batches, steps, allowed)


BATCHES = [["a", "b"], ["c", "d"], ["e"]]


def test_each_batch_meets_those_before_it() -> None:
    cluster = Cluster()
    rolled = cluster.run(BATCHES)
    assert cluster.asked == ["1", "play a b", "2", "play c d", "join a b c d", "3", "play e", "join a b c d e"]
    assert (rolled.end.status, rolled.done, rolled.stopped) == ("successful", ["a", "b", "c", "d", "e"], None)


def test_the_first_batch_that_fails_ends_the_run() -> None:
    cluster = Cluster(plays={"c d": End("failed", 2, failed=frozenset("c"))})
    rolled = cluster.run(BATCHES)
    assert cluster.asked[-1] == "play c d"
    assert rolled.stopped is not None
    assert rolled.stopped.words("failed") == (
        "Batch 2 of 3 failed (done: a,b; failed: c; in this batch: d; not touched: e)."
    )


def test_a_batch_that_earlier_nodes_cannot_log_in_to_fails() -> None:
    cluster = Cluster(joins={"a b c d": End("failed", 2, failed=frozenset("a"))})
    rolled = cluster.run(BATCHES)
    assert rolled.stopped is not None
    assert (rolled.stopped.done, rolled.stopped.lost, rolled.stopped.beside) == (("b",), ("a",), ("c", "d"))


def test_allowed_losses_are_left_out_of_what_follows() -> None:
    cluster = Cluster(plays={"a b": End("failed", 4, unreachable=frozenset("b"))})
    rolled = cluster.run(BATCHES, allowed=1)
    assert "join a c d" in cluster.asked
    assert rolled.stopped is None
    assert rolled.done == ["a", "c", "d", "e"]
    assert rolled.end == End("failed", 4, unreachable=frozenset("b"))


@pytest.mark.parametrize("end", [End("canceled", 254), End("failed", 1, ("a template has no value",))])
def test_a_play_that_ends_for_another_reason_than_a_host_ends_the_run(end: End) -> None:
    cluster = Cluster(plays={"a b": end})
    rolled = cluster.run(BATCHES, allowed=5)
    assert cluster.asked == ["1", "play a b"]
    assert rolled.stopped is not None
    assert (rolled.end.status, rolled.end.complaints) == (end.status, end.complaints)


# --- which hosts only have to meet another node, and what their snapshots hold after that ---


TREE = "openmpi-5.0.7-aa"
WATCH = (
    {"path": "/etc/hosts", "kind": "block", "marker": "hosts", "sha256": "old"},
    {"path": f"/usr/local/{TREE}", "kind": "artifact", "digest": "d"},
)
OLD = ("node1", "node2", "node3")
ALL = (*OLD, "node4")
JOIN_INPUTS = Inputs(inventory="three", content="c", version="1")


def state(key: str, **changed: object) -> NodeState:
    return replace(NodeState("debian-12", (f"ssh-ed25519 {key}",), "me", WATCH, offers="debian-12"), **changed)  # type: ignore[arg-type]


STATES = {name: state(name) for name in ALL}
SNAPSHOTS = plan.snapshots_after(
    "r1",
    OLD,
    STATES,
    dict.fromkeys(OLD, WATCH),
    JOIN_INPUTS,
    plan.cluster_of({name: STATES[name] for name in OLD}, {}, ALL),
)


def decided(states: dict[str, NodeState], smaller: str = "", **inputs: str) -> plan.ProvisionPlan:
    return plan.decide(
        ALL, states, SNAPSHOTS, replace(JOIN_INPUTS, **inputs), plan.cluster_of(states, {}, ALL, smaller)
    )


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
        {"offers": "debian-12, RDMA"},
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
    found = plan.decide(OLD, states, SNAPSHOTS, JOIN_INPUTS, plan.cluster_of({n: states[n] for n in OLD}, {}, ALL))
    assert set(found.reasons) == {"node2"}
    assert found.as_left == {"node1", "node3"}


def test_snapshots_of_earlier_releases_tell_too_little_to_leave_out_roles() -> None:
    snapshots = {name: host.model_copy(update={"offers": "", "all_offers": ""}) for name, host in SNAPSHOTS.items()}
    found = plan.decide(ALL, STATES, snapshots, JOIN_INPUTS, plan.cluster_of(STATES, {}, ALL))
    assert found.reasons["node1"] == plan.ANOTHER_NODE
    assert not found.as_left


def test_what_is_not_in_the_cache_is_built_where_it_was_built_before() -> None:
    assert batches_and_losses.join_only(OLD, SNAPSHOTS, {TREE, "mpi4py-4-bb"}) == set(OLD)
    assert batches_and_losses.join_only(OLD, SNAPSHOTS, {"mpi4py-4-bb"}) == frozenset()


def said(host: str, stage: str, *watch: dict[str, object]) -> HostResult:
    return HostResult(at=1, host=host, stage=stage, task="t", outcome="ok", watch=watch)


def test_the_software_of_a_host_that_only_met_others_is_watched_as_before() -> None:
    results = [said("node1", "hosts", {**WATCH[0], "sha256": "new"}), said("node4", "hosts", WATCH[0])]
    found = batches_and_losses.joined_watch(results, ["node1"], SNAPSHOTS)
    told = {**WATCH[0], "role": "hosts"}
    assert found == {"node1": ({**told, "sha256": "new"}, WATCH[1]), "node4": (told,)}


def test_of_roles_that_were_left_out_what_they_told_before_holds() -> None:
    kept = {"path": "/etc/environment", "kind": "block", "marker": "e", "role": "environment"}
    old = {**WATCH[1], "role": "software"}
    new = {"path": "/usr/local/openmpi-5.0.8-bb", "kind": "artifact", "digest": "e"}
    before = {"node1": SNAPSHOTS["node1"].model_copy(update={"watch": (kept, old)})}
    found = batches_and_losses.joined_watch([said("node1", "software", new)], ["node1"], before, ["software"])
    assert found == {"node1": (kept, {**new, "role": "software"})}, "the former version is watched no longer"


def test_a_host_that_only_meets_others_has_finished_with_the_last_role_of_these() -> None:
    results = [said("node1", "fabric"), said("node2", "hosts"), said("node3", "fabric"), said("node4", "validation")]
    assert batches_and_losses.finished(ALL, results, {"node3"}, dict.fromkeys(OLD, "fabric")) == ("node1", "node4")


def test_a_play_gets_patterns_of_hosts_and_the_hosts_whose_files_are_right() -> None:
    before = Snapshot(members=({"name": "node1"},), hosts=SNAPSHOTS)
    given = batches_and_losses.join_variables(ALL, ["node1", "node2", "node3"], before)
    assert (given["provision_whole"], given["provision_settled"]) == ("node4", "node1,node2,node3")
    assert given["preflight_settled"] == ["node1", "node2", "node3"]
    assert given["preflight_known_members"] == before.members
    nobody = batches_and_losses.join_variables(OLD, OLD, Snapshot())
    assert (nobody["provision_whole"], nobody["preflight_settled"]) == ("!all", [])
