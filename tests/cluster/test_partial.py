"""Provisioning a part of real nodes: some are left out, some fail in the middle, and batches follow each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import container_engine
from clusterctl.sandbox.container_engine import Podman

pytestmark = pytest.mark.cluster

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
# Waits until the test has done its part, then is ssh.
SLOW_SSH = """#!/bin/sh
touch /tmp/begun
while test ! -e /tmp/go; do sleep 0.1; done
exec /usr/bin/ssh "$@"
"""


@dataclass(frozen=True)
class Cluster:
    """Three nodes, and an inventory that also names one that does not answer."""

    sandbox: sandboxes.Sandbox
    state: Path
    podman: Podman
    with_dead: Path

    def start(self, *options: str, inventory: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, "provision", str(inventory or self.sandbox.inventory), "--no-validate", *options],
            env={**os.environ, "XDG_STATE_HOME": str(self.state), "COLUMNS": "400"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, inventory: Path | None = None) -> tuple[int, str, dict[str, Any]]:
        """Return the exit code, the screen and the record."""
        with self.start(*options, inventory=inventory) as process:
            _, said = process.communicate()
        return process.returncode, said, self.record()

    def record(self) -> dict[str, Any]:
        places = self.state.glob("clusterctl/clusters/*/runs/latest/run.json")
        newest = max(places, key=lambda place: place.stat().st_mtime)
        return dict(json.loads(newest.read_text(encoding="utf-8")))

    def on(self, node: str, script: str, stdin: str = "") -> str:
        container = self.sandbox.node(node).container
        return self.podman.run("exec", "-i", container, "sh", "-c", script, stdin=stdin.encode()).decode()

    def login(self, source: str, target: str) -> str:
        return self.on(source, f"su cluster -c 'ssh -o BatchMode=yes {target} hostname'").strip()


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    box = sandbox("partial", nodes=3)
    with_dead = box.inventory.with_name("with-dead.ini")
    text = box.inventory.read_text(encoding="utf-8")
    dead = "dead ansible_host=127.0.0.1 ansible_port=1\n"
    with_dead.write_text(text.replace("[nodes]\n", f"[nodes]\n{dead}"), encoding="utf-8")
    return Cluster(box, tmp_path_factory.mktemp("state"), container_engine.find(), with_dead)


def outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {host["host"]: host["outcome"] for host in record["hosts"]}


def test_batches_leave_out_a_dead_node_and_the_others_are_one_cluster(cluster: Cluster) -> None:
    code, said, record = cluster.run("--skip-unreachable", "--max-fail", "0", inventory=cluster.with_dead)
    assert code == 4
    assert "--max-fail allows 0. Nothing was changed." in said
    assert set(outcomes(record).values()) == {"unreachable", "not run"}

    code, said, record = cluster.run("--skip-unreachable", "--batch", "2", inventory=cluster.with_dead)
    assert code == 4, said
    assert "Left out, for they cannot be reached: dead." in said
    assert (record["left_out"], record["batches"]) == (["dead"], [["node1", "node2"], ["node3"]])
    assert outcomes(record) == {"dead": "unreachable", "node1": "changed", "node2": "changed", "node3": "changed"}
    for source, target in (("node1", "node3"), ("node3", "node2")):
        assert cluster.login(source, target) == target, "nodes of different batches know each other"

    code, said, record = cluster.run("--skip-unreachable", inventory=cluster.with_dead)
    assert code == 4, said
    assert "Nothing to do on the other hosts" in said
    assert not (Path(record["folder"]) / "ansible.log").exists()


@pytest.mark.long
def test_the_first_bad_batch_stops_the_run_and_says_where_each_node_is(cluster: Cluster) -> None:
    cluster.on("node2", "rm /usr/local/openmpi && mkdir -p /usr/local/openmpi/mine")
    code, said, record = cluster.run("--batch", "1")
    assert code == 2, said
    assert "Batch 2 of 3 failed (done: node1; failed: node2; not touched: node3)." in said
    assert outcomes(record)["node3"] == "not run"
    cluster.on("node2", "rm -r /usr/local/openmpi")
    code, said, record = cluster.run()
    assert code == 0, said
    assert cluster.run()[2]["outcome"] == "nothing to do"


@pytest.mark.long
def test_a_node_that_dies_during_the_logins_is_the_only_one_that_fails(cluster: Cluster) -> None:
    """The first time one lost node is too many, so that all stop; the second time the others go on."""
    outcome = {}
    for allowed in ("0", "1"):
        cluster.on(
            "node1", "cat >/usr/local/bin/ssh && chmod 755 /usr/local/bin/ssh; rm -f /tmp/begun /tmp/go", SLOW_SSH
        )
        cluster.on("node1", "rm -f /usr/local/openmpi")  # so that there is something to do
        with cluster.start("--max-fail", allowed) as process:
            deadline = time.monotonic() + 120
            while not cluster.on("node1", "ls /tmp/begun 2>/dev/null || true") and time.monotonic() < deadline:
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.2)
            cluster.podman.run("kill", cluster.sandbox.node("node3").container)
            cluster.on("node1", "touch /tmp/go")
            _, said = process.communicate()
        record = cluster.record()
        assert process.returncode == 4, said
        assert outcomes(record)["node3"] == "unreachable", said
        assert "failed" not in outcomes(record).values(), said
        outcome[allowed] = (record["message"], cluster.on("node1", "readlink /usr/local/openmpi || true").strip())
        cluster.on("node1", "rm /usr/local/bin/ssh")
        sandboxes.up(sandboxes.SandboxSpec(name=cluster.sandbox.name, nodes=3, images=cluster.sandbox.images))
    assert outcome["0"] == ("Stopped: 1 host failed or could not be reached, and --max-fail allows 0.", "")
    assert outcome["1"][0] == ""
    assert outcome["1"][1].startswith("openmpi-"), "the others finish"
    code, said, record = cluster.run()
    assert code == 0, said
    assert "node3" in record["reasons"]
    assert cluster.run()[2]["outcome"] == "nothing to do"
