"""A whole removal with nodes that are told what to say: what --clean plays, in which order, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import factory
import pytest
from agreeing import Agreeing
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import playbook, remove
from clusterctl.provisioning.host_run import HostRun
from clusterctl.provisioning.preview import MembersPreview
from clusterctl.provisioning.remove import RemoveRequest
from clusterctl.state import paths, snapshots
from clusterctl.support.errors import ConfigError

NODES = ("node1", "node2", "node3")
REST = ("node1", "node2")
CHANGES = {"uninstall": "removed /usr/local/openmpi", "update_members": "changed /etc/hosts"}
CHECK, REAL, OTHERS = ("uninstall", True), ("uninstall", False), ("update_members", None)


@dataclass
class Nodes(Agreeing):
    """What the nodes answer, and what the playbooks do to them."""

    inventory: Path
    probe: Probe
    ends: Mapping[tuple[str, bool | None], playbook.End] = field(default_factory=dict)
    says: str = ""  # of a host that fails
    played: list[tuple[str, bool | None]] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    at_play: list[Snapshot] = field(default_factory=list)

    @property
    def cluster(self) -> str:
        return paths.cluster_id(self.inventory)

    def remove(self, *names: str, **options: Any) -> Any:
        return remove.remove(RemoveRequest(self.inventory, nodes=names, **{"clean": True, **options}), self)

    def confirm(self, preview: MembersPreview) -> bool:  # type: ignore[override]
        self.asked.extend(preview.lines)
        return True


@pytest.fixture
def nodes(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Three provisioned nodes."""
    lab.write_text("\n".join(NODES), encoding="utf-8")
    found = Nodes(lab, Probe(facts={name: factory.node() for name in NODES}))
    host = factory.host_snapshot({"path": "/etc/hosts", "kind": "block", "marker": "hosts"})
    snapshots.write(
        found.cluster, Snapshot(members=tuple({"name": name} for name in NODES), hosts=dict.fromkeys(NODES, host))
    )

    def play(self: HostRun, name: str, **given: Any) -> playbook.End:
        step = (name, given.get("check"))
        found.played.append(step)
        found.given.append(given)
        found.at_play.append(snapshots.read(found.cluster))
        end = found.ends.get(step, playbook.End("successful", 0))
        for each in REST if "all" in given["limit"] else given["limit"].split(","):
            said: dict[str, Any] = {"outcome": "changed", "changes": (CHANGES[name],)}
            if each in end.failed | end.unreachable:
                said = {"outcome": "failed" if each in end.failed else "unreachable", "message": found.says}
            self.task_results.add(factory.host_result(each, **said))
        return end

    monkeypatch.setattr(remove, "look", lambda *_words, **_options: found.probe)
    monkeypatch.setattr(HostRun, "play", play)
    return found


def dies(nodes: Nodes, name: str) -> None:
    del nodes.probe.facts[name]
    nodes.probe.failures[name] = ProbeFailure(name, "unreachable", "no route to host")


def test_a_node_is_cleaned_after_the_others_dropped_it(nodes: Nodes) -> None:
    record = nodes.remove("node3")
    assert (record.outcome, record.exit_code) == ("done", 0)
    assert nodes.played == [CHECK, OTHERS, REAL]
    assert [given["limit"] for given in nodes.given] == ["node3", "all,!node3", "node3"]
    assert nodes.given[2]["variables"] == {
        "uninstall_paths": {"node3": ["/etc/hosts"]},
        "uninstall_remove_user": False,
    }
    assert any("clean     node3: removed /usr/local/openmpi" in line for line in nodes.asked)
    assert {host.host: host.changes for host in record.hosts} == {
        **dict.fromkeys(REST, ("changed /etc/hosts",)),
        "node3": ("removed /usr/local/openmpi",),
    }
    assert "node3 is as before the first provision." in record.told
    after = snapshots.read(nodes.cluster)
    assert (set(after.hosts), after.removed) == (set(REST), ("node3",))
    assert nodes.at_play[2] == after, "a run that is killed during the cleaning leaves the snapshot of the others"
    assert nodes.remove("node3").exit_code == 0, "a repeated run goes on"


def test_without_clean_the_node_is_left_alone(nodes: Nodes) -> None:
    record = nodes.remove("node3", clean=False)
    assert nodes.played == [OTHERS]
    assert [host.host for host in record.hosts] == list(REST)
    assert any("still has its private key" in words for words in record.told)


@pytest.mark.parametrize("how", ["ssh", "ansible"])
def test_a_dead_node_leaves_and_is_named_as_not_cleaned(nodes: Nodes, how: str) -> None:
    if how == "ssh":
        dies(nodes, "node3")
    else:
        nodes.ends = {CHECK: playbook.End("failed", 4, unreachable=frozenset({"node3"}))}
        nodes.says = "no route to host"
    record = nodes.remove("node3")
    assert (record.outcome, record.exit_code, record.left_out) == ("unreachable", 4, ("node3",))
    assert nodes.played == ([OTHERS] if how == "ssh" else [CHECK, OTHERS])
    assert record.message == "node[1-2] forgot node3, which was not cleaned."
    assert record.hosts[-1].message == "left out: no route to host"
    assert set(snapshots.read(nodes.cluster).hosts) == set(REST)


def test_what_stands_in_the_way_of_the_cleaning_changes_nothing(nodes: Nodes) -> None:
    nodes.ends = {CHECK: playbook.End("failed", 2, failed=frozenset({"node3"}))}
    nodes.says = "/home/mpi/.ssh leads through a link."
    record = nodes.remove("node3")
    assert (record.exit_code, [problem.problem for problem in record.problems]) == (2, [nodes.says])
    assert nodes.played == [CHECK]
    assert set(snapshots.read(nodes.cluster).hosts) == set(NODES)


def test_a_node_is_not_cleaned_where_the_others_did_not_drop_it(nodes: Nodes) -> None:
    nodes.ends = {OTHERS: playbook.End("failed", 2, failed=frozenset({"node1"}))}
    assert nodes.remove("node3").exit_code == 2
    assert nodes.played == [CHECK, OTHERS]


def test_a_cleaning_that_fails_is_told_and_keeps_the_removal(nodes: Nodes) -> None:
    nodes.ends = {REAL: playbook.End("failed", 2, failed=frozenset({"node3"}))}
    nodes.says = "No space left on device"
    record = nodes.remove("node3")
    outcomes = {host.host: (host.outcome, host.message) for host in record.hosts}
    assert (record.exit_code, outcomes["node3"]) == (2, ("failed", nodes.says))
    assert outcomes["node1"] == ("changed", "")
    assert snapshots.read(nodes.cluster).removed == ("node3",)


def test_a_node_that_the_inventory_does_not_name_cannot_be_cleaned(nodes: Nodes) -> None:
    before = snapshots.read(nodes.cluster)
    nodes.inventory.write_text("node1\nnode2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"node3 cannot be cleaned.*lab\.ini does not name it"):
        nodes.remove("node3")
    assert snapshots.read(nodes.cluster) == before
