"""Whose a node is, on real nodes: overlapping inventories, two controllers at once, and two names of one machine.

A controller is a state folder of its own. Only the role hosts is played, because it is quick.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.support import content
from validated import engine

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
AUDIT = "/var/log/clusterctl/audit.jsonl"
MARK, LOCK = "/var/lib/clusterctl/cluster.json", "/run/clusterctl/lock"
LOOK = f"cat /etc/hosts {MARK}; ls /run/clusterctl 2>&1; true"


@dataclass(frozen=True)
class Nodes:
    """Three nodes, and inventories of some of them."""

    box: sandboxes.Sandbox
    folder: Path

    def inventory(self, name: str, *hosts: str) -> Path:
        """Write an inventory with these lines, or with the lines of these nodes."""
        text = self.box.inventory.read_text(encoding="utf-8")
        lines = [f"{host} ansible_host={self.box.node(host).address}" if " " not in host else host for host in hosts]
        path = self.folder / f"{name}.ini"
        body = "\n".join(["[nodes]", *lines, "", text[text.index("[nodes:vars]") :]])
        path.write_text(body, encoding="utf-8")
        return path

    def start(self, controller: str, inventory: Path, *options: str) -> subprocess.Popen[str]:
        state = self.folder / controller
        return subprocess.Popen(
            [str(BIN / "clusterctl"), "provision", str(inventory), "-t", "hosts", "--yes", *options],
            env={**os.environ, "XDG_STATE_HOME": str(state), "COLUMNS": "400"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, controller: str, inventory: Path, *options: str) -> tuple[int, str]:
        with self.start(controller, inventory, *options) as process:
            said, _ = process.communicate()
        return process.returncode, said

    def record(self, controller: str) -> dict[str, Any]:
        places = self.folder.glob(f"{controller}/clusterctl/clusters/*/runs/latest/run.json")
        return dict(json.loads(max(places, key=lambda place: place.stat().st_mtime).read_text()))

    def on(self, node: str, script: str, stdin: str = "") -> str:
        container = self.box.node(node).container
        return engine().run("exec", "-i", container, "sh", "-c", script, stdin=stdin.encode()).decode()

    def mark(self, node: str) -> dict[str, Any]:
        return dict(json.loads(self.on(node, f"cat {MARK}")))

    def audited(self, node: str) -> list[dict[str, Any]]:
        """Return the audit lines of claims on a node."""
        found = [json.loads(line) for line in self.on(node, f"cat {AUDIT} 2>/dev/null || true").splitlines()]
        return [line for line in found if line["action"] == "clusterctl.hpc.node_ownership"]

    def look(self) -> dict[str, str]:
        return {node.name: self.on(node.name, LOOK) for node in self.box.nodes}


@pytest.fixture(scope="module")
def nodes(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    return Nodes(sandbox("claim", nodes=3), tmp_path_factory.mktemp("claim"))


@pytest.fixture(scope="module")
def pair(nodes: Nodes) -> Path:
    """Two of the nodes are the cluster of the first controller."""
    path = nodes.inventory("pair", "node1", "node2")
    code, said = nodes.run("first", path)
    assert code == 0, said
    return path


def test_an_overlapping_inventory_is_refused_and_changes_nothing(nodes: Nodes, pair: Path) -> None:
    overlap = nodes.inventory("overlap", "node2", "node3")
    before = nodes.look()
    code, said = nodes.run("second", overlap)
    assert code == 1, said
    for word in ("node2", str(pair), "would lose node1", "--adopt", "Stopped before anything was changed"):
        assert word in said
    assert nodes.look() == before, "also on node3, which is free"
    play = subprocess.run(
        [str(BIN / "ansible-playbook"), "-i", str(overlap), str(content.playbook("provision")), "-t", "preflight"],
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert play.returncode == 2, play.stdout
    assert "which would lose node1" in play.stdout
    assert "preflight_adopt=true" in play.stdout


def test_more_nodes_pass_and_fewer_are_adopted(nodes: Nodes, pair: Path) -> None:
    first = nodes.mark("node1")
    whole = nodes.inventory("whole", "node1", "node2", "node3")
    code, said = nodes.run("second", whole)
    assert code == 0, said
    theirs = nodes.mark("node1")
    assert theirs["cluster"] != first["cluster"]
    assert set(theirs["members"]) == {"node1", "node2", "node3"}
    code, said = nodes.run("first", pair)
    assert code == 1, said
    assert "node[1-2]" in said
    assert "would lose node3" in said
    code, said = nodes.run("first", pair, "--adopt")
    assert code == 0, said
    assert f"Taken over from the cluster of {whole}" in said
    assert set(nodes.record("first")["adopted"]) == {"node1", "node2"}
    assert (nodes.mark("node1")["cluster"], nodes.mark("node2")["cluster"]) == (first["cluster"], first["cluster"])
    assert nodes.mark("node3")["cluster"] == theirs["cluster"]
    for node, before in (("node1", theirs["cluster"]), ("node2", theirs["cluster"])):
        last = nodes.audited(node)[-1]
        assert last["run"] == nodes.record("first")["run_id"]
        assert last["changes"] == [
            f"taken over from the cluster {before} of {whole}, set up by {theirs['controller']}, which loses node3"
        ]
    assert nodes.audited("node3") == [], "it was free, and it stays where it is"


def test_of_two_controllers_at_once_the_second_is_refused_and_a_killed_one_is_no_obstacle(
    nodes: Nodes, pair: Path
) -> None:
    with nodes.start("first", pair) as first:
        deadline = time.monotonic() + 60
        while LOCK not in nodes.on("node2", f"ls {LOCK} 2>/dev/null || true") and time.monotonic() < deadline:
            assert first.poll() is None, first.communicate()
            time.sleep(0.05)
        first.send_signal(signal.SIGSTOP)  # its locks stay
        code, said = nodes.run("second", pair)
        assert code == 1, said
        assert "node[1-2]" in said
        for word in (f"process {first.pid} on", "provision", "wait for that run to end", "--take-lock"):
            assert word in said
        first.kill()
        first.communicate()
    code, said = nodes.run("second", pair)
    assert code == 0, said
    assert nodes.on("node1", "ls /run/clusterctl 2>/dev/null || true") == ""


def test_the_lock_of_another_machine_is_taken_only_by_hand(nodes: Nodes, pair: Path) -> None:
    lock = {
        "run": "x",
        "host": "node1",
        "user": "operator",
        "controller": "desk",
        "machine": "m",
        "pid": 1,
        "command": "c",
    }
    nodes.on("node1", f"mkdir /run/clusterctl && cat > {LOCK}", json.dumps(lock))
    code, said = nodes.run("first", pair)
    assert code == 1, said
    assert "operator's 'c' (process 1 on desk" in said
    code, said = nodes.run("first", pair, "--take-lock")
    assert code == 0, said
    changes = [change for line in nodes.audited("node1") for change in line["changes"]]
    assert [change for change in changes if "took the lock of operator's 'c' (process 1 on desk" in change]


def test_a_moved_inventory_is_the_same_cluster_and_keeps_its_past(nodes: Nodes, pair: Path) -> None:
    code, said = nodes.run("first", pair)
    assert code == 0, said
    before, its = nodes.record("first"), nodes.mark("node1")["cluster"]
    moved = pair.with_name("moved")
    moved.mkdir()
    pair.rename(moved / "lab.ini")
    try:
        code, said = nodes.run("first", moved / "lab.ini")
        _, refused = nodes.run("first", pair)
    finally:
        (moved / "lab.ini").rename(pair)
    assert code == 0, said
    assert f"its cluster has the inventory {moved / 'lab.ini'} now" in refused
    after = nodes.record("first")
    assert after["run_id"] > before["run_id"]
    assert after["cluster_id"] == before["cluster_id"]
    assert nodes.mark("node1")["cluster"] == its


def test_two_names_of_one_machine_are_both_named(nodes: Nodes) -> None:
    address = nodes.box.node("node3").address
    # The same address in another form, as a name of the machine would lead there.
    other = f"alias ansible_host={int(ipaddress.ip_address(address)):#x}"
    alias = nodes.inventory("alias", "node3", f"{other} ansible_ssh_extra_args='-o HostKeyAlias={address}'")
    before = nodes.look()
    code, said = nodes.run("second", alias, "--adopt")
    assert code == 1, said
    assert "are one machine" in said
    assert "alias" in said
    assert "node3" in said
    assert nodes.look() == before
