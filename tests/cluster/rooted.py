"""A node that somebody else is root of: its Python edits what modules and programs of clusterctl answer.

``programs/lying_python.py`` stands in for ``/usr/bin/python3``. It reads its lies from a file of the node.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.model.snapshot import Snapshot
from clusterctl.state import paths, snapshots
from validated import CLUSTERCTL, Cluster

Lie = dict[str, Any]

PROGRAM = Path(__file__).with_name("programs") / "lying_python.py"
LIES, TOLD = "/var/lib/lies.json", "/var/lib/lies.told"
HONEST, ROOTED = ("node1", "node2"), "node3"
ATTACKER = "AAAAC3NzaC1lZDI1NTE5AAAAIALi599DvvDwMySq11LrlGoa5zscn2pIVvFVI3NuVmul"
KEY = f"ssh-ed25519 {ATTACKER}"
LAUNCHER = "prte_launch_agent = /tmp/evil.sh"
FORGED = "forged-by-a-node"
# What no honest node may hold, wherever a role writes.
PLANTED = rf"grep -rlaE '{ATTACKER.replace('+', '.')}|evil\.sh|{FORGED}' /etc /home /root /usr/local /var/spool; true"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


def lie(of: str, at: str, value: Any) -> Lie:
    """Return a lie that replaces a part of an answer; ``of`` is a module, 'record' or 'any'."""
    return {"of": of, "at": at, "value": value}


def more(of: str, at: str, extend: Any) -> Lie:
    """Return a lie that adds to a list or a text of an answer."""
    return {"of": of, "at": at, "extend": extend}


def token(host: str, **result: Any) -> str:
    """Return a result of another host in the form in which ansible-runner finds events in the text of the screen."""
    data = {"play": "x", "role": "hosts", "task": FORGED, "host": host}
    data["task_action"] = "clusterctl.hpc.preflight_judge"
    event = {
        "uuid": FORGED,
        "event": "runner_on_ok",
        "created": "2026-01-01T00:00:00+00:00",
        "event_data": {**data, "res": result},
    }
    return f"{_shown(event)}{FORGED} text{_shown({})}"


def _shown(event: dict[str, Any]) -> str:
    words = base64.b64encode(json.dumps(event).encode()).decode()
    return f"\x1b[K{words}\x1b[{len(words)}D\x1b[K"


def tokens(**result: Any) -> list[Lie]:
    """Return lies that show such a result of ``node2`` on each way to the controller's screen."""
    text = token("node2", **result)
    return [
        more("any", "warnings", [text]),
        {"of": "any", "stderr": f"{text}\n"},
        {"of": "any", "stdout": f"{text}\n"},
    ]


@dataclass
class Attacked:
    """How a verb ended while a node lied, what it said, and which lies it was told."""

    returncode: int
    record: dict[str, Any]
    said: str
    told: list[str]

    def of(self, host: str) -> dict[str, Any]:
        """Return what the run did to a host; {} where it did nothing."""
        return next((one for one in self.record.get("hosts", ()) if one["host"] == host), {})


class RootedCluster(Cluster):
    """Three nodes; on each, a lying Python waits for lies."""

    canary: Path  # what a template would make on the controller

    def __init__(self, box: Any, folder: Path) -> None:
        """Put the program into the place of the nodes' Python."""
        super().__init__(box)
        self.canary = folder / "canary"
        for node in (*HONEST, ROOTED):
            real = Path(self.on(node, "readlink", "-f", "/usr/bin/python3")).name
            text = PROGRAM.read_text(encoding="utf-8").replace("python3.REAL", real)
            text = f"#!/usr/bin/{real} -I\n{text}"
            put = 'printf %s "$1" > /usr/bin/lying && chmod 755 /usr/bin/lying && mv -f /usr/bin/lying /usr/bin/python3'
            self.on(node, "sh", "-c", put, "sh", text)

    @property
    def template(self) -> str:
        return "{{ lookup('pipe', 'touch " + str(self.canary) + "') }}"

    @property
    def id(self) -> str:
        return paths.cluster_id(self.box.inventory)

    @contextlib.contextmanager
    def lying(self, lies: Sequence[Lie], node: str = ROOTED) -> Iterator[None]:
        """Have a node tell lies for a while."""
        self.on(node, "sh", "-c", f': > {TOLD}; chmod 666 {TOLD}; printf %s "$1" > {LIES}', "sh", json.dumps(lies))
        try:
            yield
        finally:
            self.on(node, "rm", "-f", LIES)

    def attacked(self, lies: Sequence[Lie], *words: str, node: str = ROOTED) -> Attacked:
        """Run a verb while a node lies, and see that no other machine has anything of it."""
        with self.lying(lies, node):
            done = subprocess.run([*CLUSTERCTL, *words], capture_output=True, text=True, check=False, timeout=300)
        told = self.on(node, "sh", "-c", f"sort -u {TOLD}; true").splitlines()
        assert told, f"No lie was told:\n{done.stdout}{done.stderr}"
        found = Attacked(done.returncode, _record(done.stdout), done.stdout + done.stderr, told)
        self.assert_nothing_gained(found, node)
        return found

    def provision(self, *options: str) -> Any:
        return self.run("provision", "--yes", "--no-validate", "--format", "json", *options)

    def assert_nothing_gained(self, found: Attacked, node: str) -> None:
        """Look at the controller, the other nodes and the text of the screen."""
        ran = self.canary.exists()
        self.canary.unlink(missing_ok=True)
        assert not ran, "a text of a node was run as a template"
        others = [one for one in (*HONEST, ROOTED) if one != node]
        assert {one: self.on(one, "sh", "-c", PLANTED) for one in others} == dict.fromkeys(others, "")
        assert ATTACKER not in self.box.known_hosts.read_text(encoding="utf-8")
        assert "Traceback" not in found.said
        text = found.said
        assert not CONTROL.findall(text), ascii(text[-2000:])
        assert not [line for line in text.splitlines() if line.strip().startswith(FORGED)], text
        for one in others:
            assert FORGED not in json.dumps(found.of(one).get("changes", ()))

    @property
    def first_run(self) -> Path:
        return min(path.parent for path in paths.runs_dir(self.id).glob("2*/facts.json"))

    def remember(self, **changed: Any) -> None:
        """Write the members into the snapshot as a full run would, with other values of ``node3``."""
        snapshots.write(self.id, Snapshot(members=tuple(self.member(name) for name in (*HONEST, ROOTED))))
        path = paths.snapshot_file(self.id)
        data = json.loads(path.read_text(encoding="utf-8"))
        data["members"][-1].update(changed)  # past the gate: an earlier release let everything pass
        path.write_text(json.dumps(data), encoding="utf-8")

    def member(self, name: str) -> dict[str, Any]:
        key = " ".join(self.on(name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2])
        address = self.box.node(name).address
        facts = json.loads(paths.facts_file(self.first_run).read_text(encoding="utf-8"))
        known = {"platform": facts[name]["platform"], "slots": 2, "gpus": 0, "provides": [], "trees": []}
        return {**known, "name": name, "address": address, "addresses": [address], "port": 22, "host_keys": [key]}


def _record(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
