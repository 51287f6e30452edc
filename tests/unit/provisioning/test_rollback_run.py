"""A whole rollback with nodes that are told what to say: what it writes down, and when it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import factory
import pytest
from agreeing import Agreeing
from clusterctl.model.facts import NodeFacts
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.model.snapshot import HostSoftware, Snapshot, SoftwareSet
from clusterctl.provisioning import playbook, rollback
from clusterctl.provisioning.host_run import HostRun
from clusterctl.provisioning.rollback import RollbackRequest
from clusterctl.state import paths, runs, snapshots
from clusterctl.state import snapshots as kept
from clusterctl.support.errors import ConfigError

WHEN = datetime(2026, 3, 1, tzinfo=timezone.utc)
PLATFORM = "debian-12-x86_64"
LINK = "/usr/local/openmpi"
OLD, NEW = f"{LINK}-4.1.4-aaaaaaaaaaaaaaaa", f"{LINK}-5.0.7-bbbbbbbbbbbbbbbb"
NODES = ("node1", "node2")


def facts(tree: str, **changed: Any) -> NodeFacts:
    """Return a node with both versions, whose link leads to one of them."""
    found = [
        {"name": "openmpi", "link": LINK if each == tree else "", "target": each, "version": "", "key": "", "ok": True}
        for each in (OLD, NEW)
    ]
    return factory.node(artifacts=found, **changed)


@dataclass
class Nodes:
    """What the nodes answer to each look, and what the playbook does to them."""

    inventory: Path
    looks: list[Probe]
    end: playbook.End = field(default_factory=lambda: playbook.End("successful", 0))
    played: list[dict[str, Any]] = field(default_factory=list)

    @property
    def cluster(self) -> str:
        return paths.cluster_id(self.inventory)

    def roll_back(self, **options: Any) -> Any:
        return rollback.rollback(RollbackRequest(self.inventory, **options), Agreeing())


@pytest.fixture
def nodes(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Two nodes at the second of two runs."""
    found = Nodes(lab, [Probe(facts={name: facts(NEW) for name in NODES})])
    for run_id, tree in (("20260301T000000Z-provision-1", OLD), ("20260302T000000Z-provision-2", NEW)):
        run = runs.start("provision", lab, [], {})
        run.close()
        hosts = {name: HostSoftware(platform=PLATFORM, links={LINK: tree}) for name in NODES}
        folder = run.folder.rename(run.folder.parent / run_id)
        kept.write_set(folder, SoftwareSet(run_id=run_id, verb="provision", left=WHEN, hosts=hosts))
    watch = (
        {"path": "/etc/hosts", "kind": "file", "sha256": "1"},
        {"path": NEW, "kind": "artifact", "files": 3},
        {"path": LINK, "kind": "link", "target": "new"},
    )
    host = factory.host_snapshot(*watch, inputs={"the inventory": "1"}, platform=PLATFORM)
    snapshots.write(found.cluster, Snapshot(hosts=dict.fromkeys(NODES, host)))

    def look(_self: HostRun, _watch: object, *, busy: bool = False) -> Probe:  # noqa: ARG001 - of the real one
        return found.looks.pop(0) if len(found.looks) > 1 else found.looks[0]

    def play(self: HostRun, name: str, **given: Any) -> playbook.End:
        found.played.append({"name": name, **given})
        assert kept.hold(found.cluster) is not None, "the hold is written before anything is switched"
        assert snapshots.read(found.cluster).hosts == {}, "a run that dies leaves no snapshot"
        for host in NODES if found.end.status == "successful" else ():
            state = ({"path": OLD, "kind": "artifact", "files": 3}, {"path": LINK, "kind": "link", "target": "old"})
            self.task_results.add(factory.host_result(host, "changed", changes=("x",), watch=state))
        return found.end

    monkeypatch.setattr(HostRun, "look", look)
    monkeypatch.setattr(HostRun, "play", play)
    return found


def test_the_hold_the_set_and_the_snapshots_are_written(nodes: Nodes) -> None:
    record = nodes.roll_back()
    assert (record.outcome, record.exit_code, record.verb) == ("done", 0, "rollback")
    (played,) = nodes.played
    assert played["variables"]["software_links"] == {key: {LINK: OLD} for key in NODES}
    hold = kept.hold(nodes.cluster)
    assert hold is not None
    assert (hold.software.run_id, hold.finished) == ("20260301T000000Z-provision-1", True)
    assert kept.sets(nodes.cluster)[0].run_id == record.run_id
    snapshot = snapshots.read(nodes.cluster).hosts["node2"]
    assert [entry["path"] for entry in snapshot.watch] == ["/etc/hosts", OLD, LINK]
    assert set(snapshot.inputs) == {"the inventory", "the hold of a rollback"}


@pytest.mark.parametrize("is_switched", [False, True])
def test_a_rollback_that_was_killed_is_finished_with_the_snapshots_before_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, is_switched: bool
) -> None:
    class Killed(BaseException):
        pass

    def killed(_self: HostRun, _name: str, **_given: Any) -> playbook.End:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(HostRun, "play", killed)
        with pytest.raises(Killed):
            nodes.roll_back()
    assert snapshots.read(nodes.cluster).hosts == {}
    if is_switched:
        nodes.looks[:] = [Probe(facts={name: facts(OLD) for name in NODES})]
    assert nodes.roll_back().outcome == "done"
    for name in NODES:
        snapshot = snapshots.read(nodes.cluster).hosts[name]
        assert [entry["path"] for entry in snapshot.watch] == ["/etc/hosts", OLD, LINK]
    hold = kept.hold(nodes.cluster)
    assert hold is not None
    assert (hold.finished, hold.before) == (True, None)


def test_a_failure_that_was_taken_back_leaves_no_hold(nodes: Nodes) -> None:
    nodes.end = playbook.End("failed", 2, failed=frozenset(NODES))
    record = nodes.roll_back()
    assert (record.outcome, record.exit_code) == ("failed", 2)
    assert "lead where they led before" in record.message
    assert kept.hold(nodes.cluster) is None


def test_a_node_that_is_lost_half_way_is_named_and_the_next_rollback_goes_on(nodes: Nodes) -> None:
    failure = ProbeFailure("node2", "unreachable", "node2 does not answer")
    nodes.looks.append(Probe(facts={"node1": facts(OLD)}, failures={"node2": failure}))
    nodes.end = playbook.End("failed", 4, unreachable=frozenset({"node2"}))
    record = nodes.roll_back()
    assert (record.outcome, record.exit_code) == ("unreachable", 4)
    assert "switched: node1" in record.message
    assert "not known: node2" in record.message
    nodes.looks = [Probe(facts={"node1": facts(OLD), "node2": facts(NEW)})]
    nodes.end = playbook.End("successful", 0)
    again = nodes.roll_back()
    assert again.exit_code == 0
    assert nodes.played[-1]["variables"]["software_links"] == {key: {LINK: OLD} for key in NODES}


@pytest.mark.parametrize("how", ["unreachable", "gone", "busy"])
def test_what_stands_in_the_way_changes_nothing(nodes: Nodes, how: str) -> None:
    before = snapshots.read(nodes.cluster)
    (probe,) = nodes.looks
    if how == "unreachable":
        del probe.facts["node2"]
        probe.failures["node2"] = ProbeFailure("node2", "unreachable", "node2 does not answer")
    elif how == "gone":
        probe.facts["node2"] = factory.node(artifacts=[facts(NEW).artifacts[1].model_dump()])
    else:
        probe.facts["node2"] = facts(NEW, busy=[{"pid": 7, "user": "user1", "command": "train", "rank": True}])
    record = nodes.roll_back()
    assert [problem.host for problem in record.problems] == ["node2"]
    assert record.exit_code == (4 if how == "unreachable" else 2)
    assert nodes.played == []
    assert kept.hold(nodes.cluster) is None
    assert snapshots.read(nodes.cluster) == before
    if how == "busy":
        assert nodes.roll_back(while_busy=True).exit_code == 0


def test_nothing_to_do_and_nothing_to_go_back_to(nodes: Nodes) -> None:
    done = nodes.roll_back(run="last")
    assert (done.outcome, done.exit_code) == ("nothing to do", 0)
    assert "20260302T000000Z-provision-2" in done.message
    nodes.looks = [Probe(facts={name: facts(OLD) for name in NODES})]
    with pytest.raises(ConfigError, match="There is nothing to go back to for"):
        nodes.roll_back()
    assert nodes.played == []
