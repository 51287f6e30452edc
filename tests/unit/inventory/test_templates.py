"""Values of Jinja templates in an inventory, as Ansible works them out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clusterctl.inventory import ansible_call, ansible_inventory
from clusterctl.model.hosts import InventoryOptions
from clusterctl.support.errors import ConfigError

pytestmark = pytest.mark.programs

INVENTORY = """\
[nodes]
node1 number=1
node2 number=2 ansible_user="{{ nobody_defines_this | default(omit) }}"
node3 number=3 ansible_host="{{ hostvars['node1'].ansible_host }}"
[nodes:vars]
ansible_host="{{ prefix }}.{{ number }}"
ansible_ssh_common_args="-o ProxyJump={{ lookup('file', 'bastion') }}"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.ini").write_text(INVENTORY)
    (tmp_path / "bastion").write_text("gate.example.org\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text(
        'prefix: 10.0.0\nansible_port: "{{ 2200 + number | int }}"\nslots: "{{ groups[\'nodes\'] | length }}"\n'
    )
    return tmp_path / "inventory.ini"


def test_templates_lookups_and_other_hosts_variables_have_ansibles_value(place: Path) -> None:
    found = {host.name: host for host in ansible_inventory.load(place).hosts}
    assert {name: host.place for name, host in found.items()} == {
        "node1": "10.0.0.1:2201",
        "node2": "10.0.0.2:2202",
        "node3": "10.0.0.1:2203",
    }
    assert all(host.by_ssh for host in found.values())
    assert {(host.slots, host.user, host.ssh_args) for host in found.values()} == {
        (3, None, ("-o", "ProxyJump=gate.example.org"))
    }


def test_a_template_without_a_value_is_one_sentence_with_host_and_variable(place: Path) -> None:
    (place.parent / "group_vars" / "all.yml").write_text('prefix: "{{ nowhere }}"\n')
    with pytest.raises(ConfigError) as caught:
        ansible_inventory.load(place)
    assert "ansible_host of node[1-3]" in str(caught.value)
    assert "'nowhere' is undefined" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_extra_variables_and_vaults_count(place: Path) -> None:
    password, secret = place.parent / "password", place.parent / "group_vars" / "nodes.yml"
    password.write_text("right\n")
    secret.write_text("vault_sudo: hush\nprefix: 10.9.9\n")
    program = ansible_call.ansible_program("ansible-vault")
    subprocess.run([program, "encrypt", "--vault-password-file", password, secret], check=True, capture_output=True)
    (place.parent / "host_vars").mkdir()
    (place.parent / "host_vars" / "node1.yml").write_text('ansible_become_password: "{{ vault_sudo }}"\n')
    options = InventoryOptions(vault_password_files=(str(password),))
    one = ansible_inventory.load(place, options).host("node1")
    assert (one.address, one.sudo_password, one.by_ssh) == ("10.9.9.1", "hush", True)
    assert "ansible_become_password" not in one.variables
    more = InventoryOptions(vault_password_files=(str(password),), extra_vars=("prefix=10.1.1",))
    assert ansible_inventory.load(place, more).host("node1").address == "10.1.1.1"
    kept = b"".join(path.read_bytes() for path in (place.parent / "state").rglob("*") if path.is_file())
    assert b"hush" not in kept


def test_values_are_remembered_until_what_they_depend_on_changes(place: Path, monkeypatch: Any) -> None:
    place.write_text(INVENTORY.replace("{{ lookup('file', 'bastion') }}", "{{ bastion }}"))
    variables = place.parent / "group_vars" / "all.yml"
    variables.write_text("prefix: 10.0.0\nbastion: gate\n")
    assert ansible_inventory.load(place).host("node1").address == "10.0.0.1"
    with monkeypatch.context() as patch:
        patch.setattr(ansible_call.subprocess, "run", lambda *_, **__: pytest.fail("asked again"))
        assert ansible_inventory.load(place).host("node1").address == "10.0.0.1"
    variables.write_text("prefix: 10.2.0\nbastion: gate\n")
    assert ansible_inventory.load(place).host("node1").address == "10.2.0.1"
    variables.write_text("prefix: \"{{ lookup('env', 'NETWORK') }}\"\nbastion: gate\n")
    for network in ("10.3.0", "10.4.0"):
        monkeypatch.setenv("NETWORK", network)
        assert ansible_inventory.load(place).host("node1").address == f"{network}.1"


def test_a_template_that_clusterctl_does_not_read_is_left_alone(place: Path) -> None:
    script = place.parent / "dynamic.sh"
    answer = {"nodes": {"hosts": ["d1"]}, "_meta": {"hostvars": {"d1": {"motd": "{{ nowhere }}"}}}}
    script.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    script.chmod(0o755)
    (place.parent / "group_vars" / "all.yml").unlink()
    assert ansible_inventory.load(script).host("d1").variables["motd"] == "{{ nowhere }}"
