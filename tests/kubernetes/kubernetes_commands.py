"""``clusterctl validate`` in pods, as the tests of a real API server start it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from control_plane import USER, ControlPlane

CLUSTERCTL = (sys.executable, "-m", "clusterctl")
GONE_S = 60.0
ROLE = [
    {"apiGroups": ["kubeflow.org"], "resources": ["mpijobs", "pytorchjobs"], "verbs": ["create", "get", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]


def wait(holds: Callable[[], object], within_s: float = GONE_S) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.3)


def command(plane: ControlPlane, *more: str, user: str = USER, kind: str = "pytorchjob") -> list[str]:
    given = ("--kubeconfig", str(plane.kubeconfig(user)), "--image", "a:1", "--nodes", "2", "--format", "json")
    return [*CLUSTERCTL, "validate", "--via", kind, *given, *more]


def ran(argv: list[str]) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "This should not have happened" not in done.stderr
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr
