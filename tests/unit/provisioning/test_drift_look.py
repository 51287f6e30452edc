"""``clusterctl drift`` with the real probe on real files; only the network is a stand-in."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import factory
import pytest
import typer
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state
from clusterctl.cli import output
from clusterctl.cli.main import main
from clusterctl.model.hosts import Host
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import look, plan
from clusterctl.remote import facts
from clusterctl.state import locks, paths, snapshots
from clusterctl.support.errors import ExitCode

HOSTS = ("node1", "node2", "node3")


class Machine:
    """This machine as three nodes: one watched file, and one installed artifact."""

    def __init__(self, folder: Path) -> None:
        self.file, self.tree = folder / "hosts", folder / "demo-1.0-k"
        self.file.write_text("10.0.0.1 node1\n")
        self.file.chmod(0o644)
        (self.tree / "lib").mkdir(parents=True)
        self.library = self.tree / "lib/libdemo.so.1"
        self.library.write_bytes(b"library")
        manifest = artifact.manifest_bytes(artifact.make_manifest(str(self.tree)))
        (self.tree / artifact.MANIFEST).write_bytes(manifest)
        marker = artifact.marker_bytes("demo", "1.0", "k", {}, hashlib.sha256(manifest).hexdigest())
        (self.tree / artifact.MARKER).write_bytes(marker)
        self.inventory = folder / "inventory.ini"
        self.inventory.write_text("".join(f"{name} ansible_host=192.0.2.{at}\n" for at, name in enumerate(HOSTS)))

    def corrupt(self) -> None:
        """Change one byte, and neither size nor time."""
        status = self.library.stat()
        self.library.write_bytes(b"librarY")
        os.utime(self.library, ns=(status.st_atime_ns, status.st_mtime_ns))

    def provisioned(self, *names: str) -> None:
        """Write the snapshots that a run would leave now."""
        watch = (path_state.watch_state(str(self.file)), path_state.watch_state(str(self.tree), "artifact"))
        state = look.state_of(facts.gather([Host("here", "192.0.2.1")]).facts["here"])
        made = plan.snapshots_after(
            "r",
            names,
            dict.fromkeys(names, state),
            dict.fromkeys(names, watch),
            plan.Inputs("i", "c", "1"),
            plan.ClusterDigests("m"),
        )
        snapshots.write(paths.cluster_id(self.inventory), Snapshot(hosts=made))

    def drift(self, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, Any, str]:
        code = main(["drift", str(self.inventory), "--format", "json", *options])
        said = capsys.readouterr()
        return code, json.loads(said.out or "{}"), said.err


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    refused = 'echo "ssh: connect to host 192.0.2.9 port 22: Connection refused" >&2; exit 255'
    program.write_text(f'#!/bin/sh\nfor last; do :; done\ncase "$*" in *192.0.2.9*) {refused};; esac\neval "$last"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Machine(tmp_path)


def test_the_typed_password_of_sudo_reaches_the_look(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.provisioned(*HOSTS)
    machine.inventory.write_text(machine.inventory.read_text() + "node2 ansible_become_password=kept\n")
    gathered: list[Host] = []
    real = facts.gather

    def gather(hosts: list[Host], **given: Any) -> Any:
        gathered.extend(hosts)
        return real(hosts, **given)

    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    monkeypatch.setattr(typer, "prompt", lambda *_words, **_options: "hush")
    code, told, error = machine.drift(capsys, "-K")
    assert (code, told["hosts"], error) == (0, {}, "")
    assert {host.name: host.sudo_password for host in gathered} == {"node1": "hush", "node2": "kept", "node3": "hush"}
    assert "hush" not in json.dumps(told)


def test_drift_is_told_by_node_set_and_a_corruption_is_remembered(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = machine.drift(capsys)
    assert (code, "node[1-3]: not provisioned yet" in said) == (ExitCode.BAD_CONFIG, True), said
    machine.provisioned(*HOSTS)
    code, report, _ = machine.drift(capsys)
    assert (code, report["hosts"], report["compared"]) == (0, {}, list(HOSTS))

    machine.file.chmod(0o666)
    assert main(["drift", str(machine.inventory)]) == 10
    said = capsys.readouterr().out
    assert f"node[1-3]: {machine.file} differs: mode 0666, was 0644" in said
    assert f"clusterctl provision {machine.inventory}" in said
    machine.file.chmod(0o644)

    machine.corrupt()
    assert machine.drift(capsys)[:2] == (0, report)
    code, verified, _ = machine.drift(capsys, "--verify")
    assert (code, verified["verified"]) == (10, True)
    words = "1 of 2 files are missing or changed, first lib/libdemo.so.1 (content)"
    assert verified["hosts"]["node1"] == [{"subject": str(machine.tree), "words": words}]
    code, remembered, _ = machine.drift(capsys)
    assert (code, remembered["hosts"]) == (10, verified["hosts"])
    kept = snapshots.read(paths.cluster_id(machine.inventory)).hosts
    reasons = {
        name: plan.decide([name], {}, kept, plan.Inputs("i", "c", "1"), plan.ClusterDigests("m")).reasons[name]
        for name in HOSTS
    }
    assert set(reasons) == set(HOSTS)
    machine.library.write_bytes(b"library")
    assert machine.drift(capsys, "--verify")[0] == 0
    assert machine.drift(capsys)[0] == 0


def test_hosts_without_a_snapshot_and_out_of_reach_have_the_documented_codes(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.provisioned("node1")
    code, report, _ = machine.drift(capsys)
    assert (code, sorted(report["unknown"]), report["compared"]) == (10, ["node2", "node3"], ["node1"])
    assert machine.drift(capsys, "--limit", "node1")[0] == 0
    machine.inventory.write_text(machine.inventory.read_text().replace("192.0.2.2", "192.0.2.9"))
    code, report, _ = machine.drift(capsys)
    assert (code, report["unreachable"]) == (4, ["node3"])
    assert main(["drift", str(machine.inventory), "--limit", "node[1:1],node3"]) == 4
    said = capsys.readouterr().out
    assert f"Next: see that node3 can be reached; 'clusterctl doctor {machine.inventory}' says why not." in said
    assert "repairs it" not in said


def test_a_plain_look_is_taken_while_another_run_holds_a_host(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.provisioned(*HOSTS)
    with locks.HostLock([Host("node2", "192.0.2.1")], "clusterctl provision inventory.ini"):
        code, report, _ = machine.drift(capsys)
        assert (code, report["compared"]) == (0, list(HOSTS))
        (note,) = report["notes"]
        assert "is held by " in note
        assert "clusterctl provision inventory.ini" in note
        assert machine.drift(capsys, "--verify")[0] == ExitCode.BAD_CONFIG


def test_what_sessions_lack_after_a_run_is_a_warning_without_another_run_as_its_cure() -> None:
    """A .bashrc that sets PATH undoes what the role environment has written."""
    own = factory.artifact("openmpi", "5.0.7")
    whole = {"artifacts": [own], "environment": {"PATH": "/usr/local/openmpi/bin:/usr/bin"}}
    undone = {"artifacts": [own], "environment": {"PATH": "/usr/bin"}}
    nodes = {
        "node1": factory.node("node1", **whole),
        "node2": factory.node("node2", **undone),
        "node3": factory.node("node3", **undone, login={"shell": "/usr/bin/fish"}),
    }
    first, second = look.session_warnings(nodes)
    assert first == (
        "On node[2-3], PATH of a session without a terminal lacks /usr/local/openmpi/bin; find what sets PATH in "
        "/etc/environment or a start-up file."
    )
    assert second.startswith("On node3, the login shell of user user1 is /usr/bin/fish")
