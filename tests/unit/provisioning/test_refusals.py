"""What is refused before a run changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import factory
import pytest
from agreeing import Agreeing
from clusterctl.cli.main import main
from clusterctl.inventory import ansible_call
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.probe import Probe
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import playbook
from clusterctl.provisioning.run import ProvisionRequest, provision
from clusterctl.remote import facts
from clusterctl.state import paths, snapshots
from clusterctl.support.errors import ConfigError

pytestmark = pytest.mark.programs


def write(folder: Path, text: str) -> Path:
    path = folder / "inventory.ini"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "fields", "says"),
    [
        ({"private_key": "/nix/key"}, {}, "--private-key names /nix/key, which cannot be read"),
        ({}, {"tags": ("openmp",)}, "No task has the tag 'openmp'; known tags are .*hosts"),
        ({}, {"skip_tags": ("nobody",)}, "No task has the tag 'nobody'"),
        ({"extra_vars": ("@/nix/vars",)}, {}, "/nix/vars"),
    ],
)
def test_refused_before_anything_begins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    fields: dict[str, object],
    says: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    request = ProvisionRequest(
        write(tmp_path, "[nodes]\nnode1 ansible_host=127.0.0.1\n"), InventoryOptions(**options), **fields
    )  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=says):
        provision(request, Agreeing())


def test_an_unreadable_key_of_the_inventory_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, f"node1 ansible_ssh_private_key_file={tmp_path}/nix\n")
    with pytest.raises(ConfigError, match=r"ansible_ssh_private_key_file of node1 names .*/nix, which cannot be read"):
        provision(ProvisionRequest(path), Agreeing())


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 1 of loopback answers nobody: exit 4, one problem per host, Ansible is not even started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = write(tmp_path, "node[1:2] ansible_host=127.0.0.1 ansible_port=1\n")
    record = provision(ProvisionRequest(path, argv=("clusterctl", "provision")), Agreeing())
    assert (record.exit_code, record.outcome) == (4, "unreachable")
    assert [(problem.host, problem.subject) for problem in record.problems] == [
        ("node1", "unreachable"),
        ("node2", "unreachable"),
    ]
    assert {host.outcome for host in record.hosts} == {"unreachable"}
    assert not (Path(record.folder) / "ansible.log").exists()


@pytest.mark.parametrize("began", [False, True], ids=["refused", "changed"])
def test_a_run_that_is_refused_on_the_nodes_keeps_the_snapshots_of_the_last_one(
    lab: Path, monkeypatch: pytest.MonkeyPatch, *, began: bool
) -> None:
    found = {
        "check": "openmpi",
        "problem": "/opt/nothing does not exist",
        "cure": "install it",
        "kind": "configuration",
    }

    def run(_play: playbook.Play, *words: Any) -> playbook.End:
        words[2](factory.host_result("node2", "changed" if began else "ok"))
        words[2](factory.host_result("node1", "failed", data={"problems": [found]}))
        return playbook.End("failed", 2, failed=frozenset({"node1"}))

    nodes = {name: factory.node(name) for name in ("node1", "node2")}
    monkeypatch.setattr(facts, "gather", lambda *_, **__: Probe(facts=nodes))
    monkeypatch.setattr(playbook, "run", run)
    cluster = paths.cluster_id(lab)
    before = Snapshot(members=({"name": "node1"},), hosts=dict.fromkeys(nodes, factory.host_snapshot()))
    snapshots.write(cluster, before)
    assert provision(ProvisionRequest(lab), Agreeing()).exit_code == 1
    assert snapshots.read(cluster).hosts == ({} if began else before.hosts)


# --- A provision reads an unchanged inventory from the cache; asking Ansible takes as long as looking at every node ---


def test_an_unchanged_inventory_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "lab.ini"
    calls: list[Any] = []
    call = ansible_call.call
    monkeypatch.setattr(ansible_call, "call", lambda *given: calls.append(given) or call(*given))

    def asked(line: str) -> int:
        """Return how often a run that ends before it looks at a node asks Ansible."""
        place.write_text(f"{line}\n", encoding="utf-8")
        calls.clear()
        assert main(["provision", str(place), "--tags", "unheard_of", "--yes"]) == 1
        assert "unheard_of" in capsys.readouterr().err
        return len(calls)

    assert [asked("node1 slots=1"), asked("node1 slots=1"), asked("node1 slots=2")] == [1, 0, 1]
