"""Plays on the nodes of a sandbox, by ansible-playbook with this checkout's collection, and logins to its nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import Sandbox
from clusterctl.support import content

PLAYBOOK = str(Path(sys.executable).with_name("ansible-playbook"))
_RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of ansible-playbook."""
    ours = {"ANSIBLE_CONFIG": str(content.root() / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    return {**os.environ, **ours, "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()), **more}


def without_an_index(**more: str) -> dict[str, str]:
    """Return an environment in which whoever asks a package index gets no answer."""
    kept = {name: value for name, value in environment(**more).items() if not name.startswith("PIP_")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}


def ran(
    argv: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints."""
    return subprocess.run(
        argv,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
    )


def play(
    box: Sandbox,
    folder: Path,
    plays: list[dict[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *options: str,
    surroundings: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Write plays into a folder and run them with variables on all nodes."""
    (folder / "play.json").write_text(json.dumps(plays), encoding="utf-8")
    given = ("-i", str(box.inventory), "-e", json.dumps(variables or {}), *options)
    return ran([PLAYBOOK, *given, str(folder / "play.json")], surroundings or environment(), timeout_s)


def changes(text: str) -> dict[str, int]:
    """Return from Ansible's output how much each host changed, -1 where it failed."""
    return {host: int(changed) if failed == "0" else -1 for host, changed, _, failed in _RECAP.findall(text)}


def ssh(box: Sandbox, node: str, *argv: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command on a node as the login user."""
    return ran(sandboxes.ssh_command(box, box.node(node), list(argv)), timeout_s=timeout_s)


def said(box: Sandbox, node: str, *argv: str, timeout_s: float = 120) -> str:
    """Return what a command on a node prints; it has to end well."""
    done = ssh(box, node, *argv, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
