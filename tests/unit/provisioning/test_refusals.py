"""What is refused before a run changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agreeing import Agreeing
from clusterctl.cli.main import main
from clusterctl.inventory import ansible_call
from clusterctl.model.hosts import InventoryOptions
from clusterctl.provisioning.run import ProvisionRequest, provision
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
