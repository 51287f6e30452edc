"""A rotation of host keys with nodes that are told what to say: what the controller knows at each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import factory
import pytest
from agreeing import Agreeing
from clusterctl.inventory import ansible_inventory
from clusterctl.model.probe import Probe
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import playbook, replace
from clusterctl.provisioning.host_run import HostRun
from clusterctl.provisioning.replace import RotateRequest
from clusterctl.remote import host_key
from clusterctl.remote.host_key import KnownPlace
from clusterctl.state import paths, snapshots
from clusterctl.support.errors import ConfigError, HostFailedError

NODES = ("node1", "node2")
OLD = {name: f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOld{name}AAA" for name in NODES}
NEW = {name: f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINew{name}AAA" for name in NODES}


@dataclass
class Lab:
    """Two provisioned nodes, and what the controller knew whenever a playbook was played."""

    inventory: Path
    known: Path
    mute: tuple[str, ...] = ()
    ends: dict[str, playbook.End] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)

    def rotate(self, *, host_keys: bool = True) -> Any:
        return replace.rotate(RotateRequest(self.inventory, host_keys=host_keys), Agreeing())

    def lines(self) -> list[str]:
        return self.known.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def known(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    found = Lab(lab, lab.with_name("known_hosts"))
    found.known.write_text("".join(f"{name} {key}\n" for name, key in OLD.items()), encoding="utf-8")
    members = tuple({"name": name, "address": "10.0.0.1"} for name in NODES)
    snapshots.write(paths.cluster_id(found.inventory), Snapshot(members=members))

    def play(self: HostRun, name: str, **_: Any) -> playbook.End:
        found.seen[name] = found.lines()
        for host in NODES:
            data = {"next_host_key": NEW[host]} if name == "stage_host_keys" and host not in found.mute else {}
            self.task_results.add(factory.host_result(host, "changed", data=data))
        return found.ends.get(name, playbook.End("successful", 0))

    monkeypatch.setattr(host_key, "known_place", lambda host: KnownPlace(found.known, (host.name,)))
    monkeypatch.setattr(HostRun, "look", lambda *_, **__: Probe(facts={name: factory.node(name) for name in NODES}))
    monkeypatch.setattr(HostRun, "play", play)
    return found


def test_the_controller_knows_both_keys_until_all_nodes_have_switched(known: Lab) -> None:
    record = known.rotate()
    assert (record.outcome, record.exit_code, record.verb) == ("done", 0, "rotate")
    assert known.seen["stage_host_keys"] == [f"{name} {OLD[name]}" for name in NODES]
    assert known.seen["switch_host_keys"] == [f"{name} {key}" for name in NODES for key in (OLD[name], NEW[name])]
    assert known.lines() == [f"{name} {NEW[name]}" for name in NODES]


def test_nodes_with_new_keys_are_the_same_cluster(known: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    home = known.known.with_name("home")
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "known_hosts").symlink_to(known.known)
    monkeypatch.setenv("HOME", str(home))
    cluster = paths.cluster_id(known.inventory)
    assert known.rotate().exit_code == 0
    assert ansible_inventory.load(known.inventory).hosts
    assert paths.cluster_id(known.inventory) == cluster


def test_a_switch_that_fails_leaves_both_keys_known(known: Lab) -> None:
    known.ends["switch_host_keys"] = playbook.End("failed", 2, failed=frozenset({"node2"}))
    assert known.rotate().exit_code == 2
    assert known.lines() == [f"{name} {key}" for name in NODES for key in (OLD[name], NEW[name])]


def test_no_node_switches_while_a_key_is_unknown(known: Lab) -> None:
    known.mute = ("node2",)
    with pytest.raises(HostFailedError, match="node2 returned no new host key"):
        known.rotate()
    assert list(known.seen) == ["stage_host_keys"]


def test_mesh_keys_leave_the_controllers_known_hosts_alone(known: Lab) -> None:
    assert known.rotate(host_keys=False).exit_code == 0
    assert list(known.seen) == ["rotate_keys"]
    assert known.lines() == [f"{name} {OLD[name]}" for name in NODES]


def test_a_cluster_without_keys_of_the_mesh_is_refused(known: Lab) -> None:
    snapshots.write(paths.cluster_id(known.inventory), Snapshot())
    with pytest.raises(ConfigError, match="provision it first"):
        known.rotate()
