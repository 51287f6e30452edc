"""Doctor on 256 nodes that were never provisioned: it reaches all, and says a few lines, not thousands."""

from __future__ import annotations

import json
import subprocess
import sys

from netns_nodes import Nodes


def test_all_nodes_are_looked_at_in_a_few_lines(many: Nodes) -> None:
    few_files = ["prlimit", "--nofile=512:4096"]  # fewer than connections to all nodes at once take
    done = subprocess.run(
        [*few_files, sys.executable, "-m", "clusterctl", "doctor", str(many.inventory(256)), "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 10, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["unreachable"] == []
    everybody = [node.name for node in many.box.nodes]
    told = [(one["check"], one["severity"], one["hosts"]) for one in found["findings"]]
    assert told == [  # what a fresh Debian is: its own name on loopback, no keys, no names of the others
        ("ssh", "error", everybody),
        ("names", "error", everybody),
        ("names", "warning", everybody),
    ]


def test_nothing_is_left_on_any_node(many: Nodes) -> None:
    script = "ps -u cluster -o args= | grep -v '^sshd' ; true"
    assert {node.name: left for node in many.box.nodes if (left := many.on(node.name, "sh", "-c", script))} == {}
