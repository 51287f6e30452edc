"""What is refused before a run changes anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.model.hosts import InventoryOptions
from clusterctl.provisioning.run import ProvisionRequest, provision
from clusterctl.support.errors import ConfigError

pytestmark = pytest.mark.programs


def write(folder: Path, text: str) -> Path:
    path = folder / "inventory.ini"
    path.write_text(text, encoding="utf-8")
    return path


class Nobody:
    """An observer that is told and says nothing."""

    def phase(self, text: str) -> None: ...

    def event(self, event: object) -> None: ...

    def confirm(self, _preview: object) -> bool:
        return True

    def stopping(self, requests: int) -> None: ...


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
        provision(request, Nobody())


def test_an_unreadable_key_of_the_inventory_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, f"node1 ansible_ssh_private_key_file={tmp_path}/nix\n")
    with pytest.raises(ConfigError, match=r"ansible_ssh_private_key_file of node1 names .*/nix, which cannot be read"):
        provision(ProvisionRequest(path), Nobody())


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 1 of loopback answers nobody: exit 4, one problem per host, Ansible is not even started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = write(tmp_path, "node[1:2] ansible_host=127.0.0.1 ansible_port=1\n")
    record = provision(ProvisionRequest(path, argv=("clusterctl", "provision")), Nobody())
    assert (record.exit_code, record.outcome) == (4, "unreachable")
    assert [(problem.host, problem.subject) for problem in record.problems] == [
        ("node1", "unreachable"),
        ("node2", "unreachable"),
    ]
    assert {host.outcome for host in record.hosts} == {"unreachable"}
    assert not (Path(record.folder) / "ansible.log").exists()
