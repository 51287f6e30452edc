from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clusterctl.inventory import ansible_call, ansible_inventory, templates
from clusterctl.model import hosts

pytestmark = pytest.mark.programs


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("slots: 2\n")
    (tmp_path / "inventory.ini").write_text("[nodes]\nnode1\nnode2\n")
    return tmp_path / "inventory.ini"


def kept(place: Path) -> int:
    files = (place.parent / "state" / "clusterctl" / "listings").glob("*.json")
    return len([file for file in files if "settings" not in json.loads(file.read_text())])  # those of ansible-config


def slots(place: Path, **options: Any) -> int | None:
    return ansible_inventory.load(place, hosts.InventoryOptions(**options)).hosts[0].slots


def test_an_answer_is_remembered_until_something_changes(place: Path, monkeypatch: Any) -> None:
    assert (slots(place), kept(place)) == (2, 1)
    (file,) = (place.parent / "state" / "clusterctl" / "listings").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(ansible_call.subprocess, "run", lambda *_, **__: pytest.fail("asked again"))
        assert slots(place) == 2
    (place.parent / "group_vars" / "all.yml").write_text("slots: 3\n")
    assert (slots(place), kept(place)) == (3, 2)
    (place.parent / "host_vars").mkdir()
    (place.parent / "host_vars" / "node1.yml").write_text("slots: 4\n")
    assert slots(place) == 4
    assert (slots(place, extra_vars=("slots=5",)), kept(place)) == (5, 3), "an extra variable may be a secret"
    monkeypatch.setenv("ANSIBLE_HASH_BEHAVIOUR", "merge")
    assert (slots(place), kept(place)) == (4, 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda place: place.chmod(0o755),
        lambda place: (place.parent / "ansible.cfg").write_text("[defaults]\nvars_plugins = x\n"),
        lambda place: (place.parent / "group_vars" / "nodes.yml").write_text("x: 1\nansible_become_pass: y\n"),
        lambda place: (place.parent / "group_vars" / "nodes.yml").write_text("api_token: y\n"),
    ],
)
def test_what_may_depend_on_more_or_is_secret_is_not_kept(place: Path, change: Any) -> None:
    change(place)
    if place.stat().st_mode & 0o100:
        place.write_text("#!/bin/sh\necho '" + json.dumps({"nodes": {"hosts": ["node1"]}}) + "'\n")
    ansible_inventory.load(place)
    assert kept(place) == 0


def test_a_command_reads_its_inventory_once(place: Path, monkeypatch: Any) -> None:
    cluster = ansible_inventory.Cluster.of(place, hosts.InventoryOptions(extra_vars=("slots=5",), limit="node2"))
    assert cluster.inventory.selected == ("node2",)
    monkeypatch.setattr(ansible_call.subprocess, "run", lambda *_, **__: pytest.fail("asked again"))
    assert ansible_inventory.load(ansible_inventory.Cluster.of(cluster)).hosts[0].slots == 5


def test_what_names_a_file_or_a_vault_has_no_key(place: Path) -> None:
    assert templates.cache_key(place, ["x", "--vault-password-file=y"], {}) == ""
    assert templates.cache_key(place, ["x", "--extra-vars=@file"], {}) == ""
    assert templates.cache_key(place, ["x"], {"ANSIBLE_VAULT_PASSWORD_FILE": "x"}) == ""
    assert templates.cache_key(place.parent, ["x"], {}) == ""
    assert templates.cache_key(place, ["x"], {}) != ""
