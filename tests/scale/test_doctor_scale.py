"""Doctor on 64 nodes that were never provisioned: within a minute, and a few lines, not thousands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from clusterctl.sandbox import podman

if TYPE_CHECKING:
    from clusterctl.sandbox import Sandbox

LONGEST_S = 60.0


def test_64_nodes_in_a_minute(many: Sandbox) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", "doctor", str(many.inventory), "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    assert done.returncode == 10, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["unreachable"] == []
    everybody = [node.name for node in many.nodes]
    told = [(one["check"], one["severity"], one["hosts"]) for one in found["findings"]]
    assert told == [  # what a fresh Debian is: its own name on loopback, no keys, no names of the others
        ("ssh", "error", everybody),
        ("names", "error", everybody),
        ("names", "warning", everybody),
    ]
    assert seconds < LONGEST_S
    print(f"\ndoctor on {len(everybody)} nodes: {seconds:.1f} s")  # noqa: T201 - make test-scale shows it


def test_nothing_is_left_on_any_node(many: Sandbox) -> None:
    engine = podman.find()
    for node in many.nodes:
        left = engine.text("exec", node.container, "sh", "-c", "ps -u cluster -o args= | grep -v '^sshd' ; true")
        assert left == "", node.name
