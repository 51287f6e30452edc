"""A whole uninstall with nodes that are told what to say: what it asks, forgets and refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import factory
import pytest
from agreeing import Agreeing
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.model.snapshot import Hold, HostSoftware, Snapshot, SoftwareSet
from clusterctl.provisioning import playbook, remove
from clusterctl.provisioning.host_run import HostRun
from clusterctl.provisioning.preview import UninstallPreview
from clusterctl.provisioning.remove import UninstallRequest
from clusterctl.state import locks, paths, runs, snapshots
from clusterctl.state import snapshots as kept
from clusterctl.support.errors import ConfigError, LockedError

WHEN = datetime(2026, 3, 1, tzinfo=timezone.utc)
LINK, TREE = "/usr/local/openmpi", "/usr/local/openmpi-5.0.7-bbbbbbbbbbbbbbbb"
NODES = ("node1", "node2")
STAYS = "The account mpi stays"


def facts(**changed: Any) -> NodeFacts:
    found = {"name": "openmpi", "link": LINK, "target": TREE, "version": "5.0.7", "key": "b", "ok": True}
    return factory.node(artifacts=[found], **changed)


@dataclass
class Nodes(Agreeing):
    """What the nodes answer, and what the playbook finds on them."""

    inventory: Path
    probe: Probe
    changes: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(NODES, ("removed x",)))
    played: list[dict[str, Any]] = field(default_factory=list)
    asked: list[UninstallPreview] = field(default_factory=list)
    answer: bool = True
    lost: frozenset[str] = frozenset()  # hosts that Ansible does not reach

    @property
    def cluster(self) -> str:
        return paths.cluster_id(self.inventory)

    def uninstall(self, **options: Any) -> Any:
        return remove.uninstall(UninstallRequest(self.inventory, **options), self)

    def confirm(self, preview: UninstallPreview) -> bool:  # type: ignore[override]
        self.asked.append(preview)
        return self.answer


@pytest.fixture
def nodes(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Two provisioned nodes under a hold."""
    found = Nodes(lab, Probe(facts={name: facts() for name in NODES}))
    run = runs.start("provision", lab, [], {})
    run.close()
    software = SoftwareSet(
        run_id=run.folder.name,
        verb="provision",
        left=WHEN,
        hosts={name: HostSoftware(platform="debian-12-x86_64", links={LINK: TREE}) for name in NODES},
    )
    kept.write_set(run.folder, software)
    kept.write_hold(found.cluster, Hold(software=software, since=WHEN, finished=True))
    watch = ({"path": "/home/me/.ssh/authorized_keys", "kind": "block"}, {"path": TREE, "kind": "artifact"})
    host = factory.host_snapshot(*watch)
    snapshots.write(found.cluster, Snapshot(members=({"name": "node1"},), hosts=dict.fromkeys(NODES, host)))

    def play(self: HostRun, name: str, **given: Any) -> playbook.End:
        found.played.append({"name": name, **given})
        lost = found.lost & set(self.cluster.selected)
        for each in self.cluster.selected:
            changes = found.changes.get(each, ())
            said: dict[str, Any] = {"outcome": "changed" if changes else "ok", "changes": changes}
            if each in lost:
                said = {"outcome": "unreachable", "message": "no route to host"}
            self.task_results.add(factory.host_result(each, data={"told": [STAYS]}, **said))
        return playbook.End("failed", 4, unreachable=lost) if lost else playbook.End("successful", 0)

    monkeypatch.setattr(HostRun, "look", lambda _self, _watch, *, busy=False: found.probe)  # noqa: ARG005 - as it is
    monkeypatch.setattr(HostRun, "play", play)
    return found


def test_it_looks_asks_removes_and_forgets(nodes: Nodes) -> None:
    record = nodes.uninstall()
    assert (record.outcome, record.exit_code, record.verb) == ("done", 0, "uninstall")
    assert [(one["name"], one.get("check")) for one in nodes.played] == [("uninstall", True), ("uninstall", None)]
    assert nodes.played[0]["variables"]["uninstall_paths"] == {
        name: ["/home/me/.ssh/authorized_keys"] for name in NODES
    }
    (ahead,) = nodes.asked
    assert (ahead.changes["node2"], ahead.told) == (("removed x",), (STAYS,))
    assert record.told == (STAYS,)
    assert [(host.host, host.outcome, host.changes) for host in record.hosts] == [
        (name, "changed", ("removed x",)) for name in NODES
    ]
    assert snapshots.read(nodes.cluster) == Snapshot()
    assert kept.sets(nodes.cluster) == []
    assert kept.hold(nodes.cluster) is None
    assert len(list(paths.runs_dir(nodes.cluster).glob("*/run.json"))) == 3, "the records of the runs and latest"
    nodes.changes = {}
    again = nodes.uninstall()
    assert (again.outcome, again.exit_code) == ("nothing to do", 0)
    assert "Nothing to do" in again.message


def test_of_one_node_the_others_are_told_of(nodes: Nodes) -> None:
    record = nodes.uninstall(options=InventoryOptions(limit="node2"))
    assert "The other nodes still know node2: 'clusterctl remove " in record.told[0]
    assert list(snapshots.read(nodes.cluster).hosts) == ["node1"]
    assert [list(found.hosts) for found in kept.sets(nodes.cluster)] == [["node1"]]
    hold = kept.hold(nodes.cluster)
    assert hold is not None
    assert list(hold.software.hosts) == ["node1"]


def untouched(nodes: Nodes) -> bool:
    real = [one for one in nodes.played if one.get("check") is not True]
    return not real and len(snapshots.read(nodes.cluster).hosts) == len(NODES) and len(kept.sets(nodes.cluster)) == 1


@pytest.mark.parametrize(("how", "code"), [("unreachable", 4), ("busy", 2), ("no", 130), ("check", 0)])
def test_what_stands_in_the_way_changes_nothing(nodes: Nodes, how: str, code: int) -> None:
    if how == "unreachable":
        del nodes.probe.facts["node2"]
        nodes.probe.failures["node2"] = ProbeFailure("node2", "unreachable", "node2 does not answer")
    elif how == "busy":
        nodes.probe.facts["node2"] = facts(busy=[{"pid": 7, "user": "user1", "command": "train", "rank": True}])
    nodes.answer = how != "no"
    record = nodes.uninstall(check=how == "check")
    assert record.exit_code == code
    assert untouched(nodes)
    assert [problem.host for problem in record.problems] == (["node2"] if how in {"unreachable", "busy"} else [])
    if how == "busy":
        assert nodes.uninstall(while_busy=True).exit_code == 0


@pytest.mark.parametrize("how", ["ssh", "ansible"])
def test_hosts_that_cannot_be_reached_are_left_out_where_that_is_asked_for(nodes: Nodes, how: str) -> None:
    if how == "ssh":
        del nodes.probe.facts["node2"]
        nodes.probe.failures["node2"] = ProbeFailure("node2", "unreachable", "no route to host")
    else:
        nodes.lost = frozenset({"node2"})
    refused = nodes.uninstall()
    assert (refused.exit_code, untouched(nodes)) == (4, True)
    record = nodes.uninstall(skip_unreachable=True)
    assert (record.outcome, record.exit_code, record.left_out) == ("unreachable", 4, ("node2",))
    outcomes = {host.host: (host.outcome, host.message) for host in record.hosts}
    assert outcomes == {"node1": ("changed", ""), "node2": ("unreachable", "left out: no route to host")}
    assert list(snapshots.read(nodes.cluster).hosts) == ["node2"]
    assert [list(found.hosts) for found in kept.sets(nodes.cluster)] == [["node2"]]
    nodes.changes = {}
    again = nodes.uninstall(skip_unreachable=True)
    assert (again.exit_code, again.left_out) == (4, ("node2",))
    assert "Nothing to do on the other hosts" in again.message


def test_a_cluster_without_a_node_that_answers_is_refused(nodes: Nodes) -> None:
    nodes.probe.facts.clear()
    nodes.probe.failures.update({name: ProbeFailure(name, "timeout", "does not answer") for name in NODES})
    record = nodes.uninstall(skip_unreachable=True)
    assert (record.exit_code, record.left_out, untouched(nodes)) == (4, (), True)


def test_a_cluster_that_was_never_provisioned_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    nodes.inventory = tmp_path / "other.ini"
    nodes.inventory.write_text("node1\nnode2\n", encoding="utf-8")
    nodes.changes = {}
    with pytest.raises(ConfigError, match=r"other\.ini was never provisioned, so there is nothing to uninstall"):
        nodes.uninstall()


def test_hosts_that_another_run_holds_are_refused(nodes: Nodes) -> None:
    with locks.HostLock(factory.hosts(NODES), "another"), pytest.raises(LockedError, match="is held by"):
        nodes.uninstall()
    assert untouched(nodes)
