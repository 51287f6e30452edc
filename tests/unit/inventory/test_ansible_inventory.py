from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from clusterctl.inventory import ansible_inventory, ansible_settings
from clusterctl.model.hosts import InventoryOptions, InventorySources
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError

pytestmark = pytest.mark.programs


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_ini(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "inventory.ini",
        "[nodes]\nnode2 ansible_host=192.0.2.2 slots=4\nnode1 ansible_port=2222\n"
        "[nodes:vars]\nansible_user=me\nansible_become=true\n"
        "ansible_ssh_common_args='-o UserKnownHostsFile=/a/b -o X=y'\n",
    )
    found = ansible_inventory.load(path)
    assert [host.name for host in found.hosts] == ["node2", "node1"], "the inventory's order"
    second, first = found.hosts
    assert (second.address, second.slots, second.user, second.become) == ("192.0.2.2", 4, "me", True)
    assert (first.address, first.port, first.slots) == ("node1", 2222, None)
    assert first.ssh_args == ("-o", "UserKnownHostsFile=/a/b", "-o", "X=y")
    assert found.selected == ("node2", "node1")


CONFIG = """[defaults]
remote_user = mpi
private_key_file = ~/keys/cluster
remote_port = 2022
host_key_checking = False
interpreter_python = /opt/python/bin/python3
[privilege_escalation]
become = true
become_method = su
[sudo_become_plugin]
user = admin
[ssh_connection]
ssh_args = -F ssh.cfg -o ControlMaster=auto -oControlPersist=60s
ssh_common_args = -o ProxyJump=gate
ssh_executable = /opt/ssh/bin/ssh
"""
LOGIN = ("-l", "mpi", "-F", "ssh.cfg", "-o", "ProxyJump=gate")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without settings of Ansible above it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_what_only_ansible_cfg_says_of_a_login_counts(alone: Path) -> None:
    write(alone, "ansible.cfg", CONFIG)
    (host,) = ansible_inventory.load(write(alone, "i.ini", "node1\n")).hosts
    assert host.login_words == ("-p", "2022", "-i", str(alone / "keys" / "cluster"), *LOGIN)
    assert (host.become, host.become_user, host.python) == (True, "admin", "/opt/python/bin/python3")
    place = alone / "ansible.cfg"
    assert host.unheeded == (
        f"host_key_checking = False in {place} line 5 does not count here: clusterctl always checks host keys",
        f"ssh_executable = /opt/ssh/bin/ssh in {place} line 15 does not count here: clusterctl takes the ssh on PATH",
        f"become_method = su in {place} line 9 does not count here: clusterctl itself takes sudo",
    )


def test_another_connection_of_ansible_cfg_is_named_with_its_place(alone: Path) -> None:
    write(alone, "ansible.cfg", "[defaults]\ntransport = paramiko_ssh\n")
    path = write(alone, "i.ini", "node1\nnode2 ansible_connection=ssh\n")
    first, second = ansible_inventory.load(path).hosts
    place = f"{alone / 'ansible.cfg'} line 2"
    assert first.not_by_ssh == f"ansible_connection is 'paramiko_ssh, by transport in {place}'"
    assert second.by_ssh


def test_what_a_host_says_goes_before_ansible_cfg_and_the_environment(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(alone, "ansible.cfg", CONFIG)
    text = "node1 ansible_user=me ansible_port=22 ansible_become=false ansible_ssh_common_args='' ansible_ssh_args=-4\n"
    path = write(alone, "i.ini", f"{text}node2\n")
    monkeypatch.setenv("ANSIBLE_REMOTE_USER", "other")
    monkeypatch.setenv("ANSIBLE_SSH_EXTRA_ARGS", "-o X=y")
    monkeypatch.setenv("ANSIBLE_BECOME_PASS", "a-secret")
    first, second = ansible_inventory.load(path).hosts
    key = ("-i", str(alone / "keys" / "cluster"))
    assert first.login_words == ("-p", "22", *key, "-l", "me", "-4", "-o", "X=y")
    assert second.login_words[4:6] == ("-l", "other")
    assert (first.become, second.become, second.sudo_password) == (False, True, "a-secret")
    kept = "".join(file.read_text() for file in paths.listings_dir().glob("*.json"))
    assert '"settings"' in kept
    assert "a-secret" not in kept


def test_without_settings_of_ansible_nothing_is_asked_and_ssh_decides(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(alone, "i.ini", "node1\n")
    monkeypatch.setattr(ansible_settings, "_asked", lambda *_unused: pytest.fail("asked"))
    (host,) = ansible_inventory.load(path).hosts
    assert (host.login_words, host.port, host.unheeded) == ((), 22, ())


def test_reads_yaml_folder_and_script(tmp_path: Path) -> None:
    write(tmp_path, "one.yml", "nodes:\n  hosts:\n    node1: {ansible_host: 192.0.2.1}\n")
    assert [host.address for host in ansible_inventory.load(tmp_path / "one.yml").hosts] == ["192.0.2.1"]
    folder = tmp_path / "folder"
    (folder / "group_vars").mkdir(parents=True)
    write(folder, "hosts.yml", "nodes:\n  hosts:\n    node1:\n    node2:\n")
    write(folder / "group_vars", "nodes.yml", "slots: 3\n")
    assert [(host.name, host.slots) for host in ansible_inventory.load(folder).hosts] == [("node1", 3), ("node2", 3)]
    script = write(
        tmp_path,
        "dynamic.sh",
        '#!/bin/sh\necho \'{"nodes": {"hosts": ["d1"]}, "_meta": {"hostvars": {"d1": {"ansible_port": 23}}}}\'\n',
    )
    script.chmod(0o755)
    assert [(host.name, host.port) for host in ansible_inventory.load(script).hosts] == [("d1", 23)]


def test_the_digest_follows_every_variable(tmp_path: Path) -> None:
    path = write(tmp_path, "i.ini", "node1 a=1\nnode2\n")
    before = ansible_inventory.load(path).digest
    assert ansible_inventory.load(path).digest == before
    write(tmp_path, "i.ini", "node1 a=2\nnode2\n")
    assert ansible_inventory.load(path).digest != before


def test_the_digest_of_a_part_follows_the_variables_of_its_role(tmp_path: Path) -> None:
    def changed(before: str, after: str) -> set[str]:
        path = write(tmp_path, "i.ini", f"node1\nnode2\n[all:vars]\n{before}\n")
        parts = ansible_inventory.load(path).parts
        write(tmp_path, "i.ini", f"node1\nnode2\n[all:vars]\n{after}\n")
        now = ansible_inventory.load(path).parts
        return {name for name in parts if parts[name] != now[name]}

    assert changed("nccl_version=1", "nccl_version=2") == {"nccl"}
    assert changed("nccl_version=1", "") == {"nccl"}
    for word in ("openmpi_ucx", "openmpi_cuda"):
        assert changed(f"{word}=auto", f"{word}=never") == {""}, "fabric reads it as well"
    assert changed("mine=1", "mine=2") == {""}
    assert changed("nccl_version=1\nmine=1", "nccl_version=2\nmine=2") == {"nccl", ""}
    template = "environment_variables={'A': '{{ nccl_version }}'}"
    assert changed(f"{template}\nnccl_version=1", f"{template}\nnccl_version=2") == {"environment", "nccl"}
    unknown = "python_env_python={{ lookup('env', 'MINE') }}\nmine={{ lookup('env', 'MINE') }}"
    assert "" in changed(f"{unknown}\nfabric_networks=a", f"{unknown}\nfabric_networks=b"), "it may read any variable"


def test_limit(tmp_path: Path) -> None:
    path = write(tmp_path, "i.ini", "[a]\nnode1\nnode2\n[b]\nnode3\n")
    found = ansible_inventory.load(path, InventoryOptions(limit="b:node1"))
    assert [host.name for host in found.selected_hosts] == ["node1", "node3"]
    with pytest.raises(ConfigError, match=r"limit 'nobody' matches no host .*node1, node2, node3"):
        ansible_inventory.load(path, InventoryOptions(limit="nobody"))


@pytest.mark.parametrize(
    ("limit", "part"),
    [
        ("all,!node7", "node7"),
        ("all:!node7", "node7"),
        ("node1,node7", "node7"),
        ("node1,&racks", "racks"),
        ("node1,!node[7-9]", "node[7-9]"),
        ("all,!gpu*", "gpu*"),
        ("all,!~gpu.*", "~gpu.*"),
    ],
)
def test_each_part_of_a_limit_matches_a_host(tmp_path: Path, limit: str, part: str) -> None:
    path = write(tmp_path, "i.ini", "[nodes]\nnode[1:3]\n[empty]\n")
    with pytest.raises(ConfigError, match=f"'{re.escape(part)}' of the limit .* matches no host .*node1, node2, node3"):
        ansible_inventory.load(path, InventoryOptions(limit=limit))


@pytest.mark.parametrize("limit", ["all,!empty", "all:!empty", "@{file}", "nodes[0:2],!~empty|gpu", "nod*:empty"])
def test_a_group_without_hosts_may_be_a_part_of_a_limit(tmp_path: Path, limit: str) -> None:
    file = write(tmp_path, "names", "node1\nnode2\nnode3\n")
    path = write(tmp_path, "i.ini", "[nodes]\nnode[1:3]\n[empty]\n")
    found = ansible_inventory.load(path, InventoryOptions(limit=limit.format(file=file)))
    assert list(found.selected) == ["node1", "node2", "node3"]


def test_only_a_login_password_or_another_connection_is_beyond_plain_ssh(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "i.ini",
        "plain\nlocal ansible_connection=local\nlogin ansible_password=x\nold ansible_ssh_pass=x\n"
        "sudo ansible_become=true ansible_become_password=hush\n",
    )
    hosts = {host.name: host for host in ansible_inventory.load(path).hosts}
    assert [name for name, host in hosts.items() if host.by_ssh] == ["plain", "sudo"]
    assert "ansible_connection is 'local'" in hosts["local"].not_by_ssh
    assert "ansible_password" in hosts["login"].not_by_ssh
    assert "ansible_ssh_pass" in hosts["old"].not_by_ssh
    assert hosts["sudo"].sudo_password == "hush"  # noqa: S105 - of a test
    assert "hush" not in repr(hosts["sudo"]), "neither a message nor a traceback shows it"


def test_the_older_variables_and_a_discovered_interpreter_lead_where_ansible_goes(tmp_path: Path) -> None:
    """Of both forms Ansible takes the older one, as the ssh command of 'ansible -m raw' shows."""
    older = (
        "ansible_ssh_host=10.0.0.2 ansible_ssh_port=22 ansible_ssh_user=ub ansible_ssh_private_key_file=/kb "
        "ansible_sudo_user=sb"
    )
    newer = (
        "ansible_host=10.0.0.1 ansible_port=11 ansible_user=ua ansible_private_key_file=/ka ansible_become_user=sa "
        "ansible_become_password=pa"
    )
    text = f"old {older} ansible_python_interpreter=auto_silent\nboth {newer} {older} ansible_sudo_pass=pb\n"
    text += f"new {newer} ansible_python_interpreter='/usr/bin/env python3.11'\n"
    hosts = {host.name: host for host in ansible_inventory.load(write(tmp_path, "i.ini", text)).hosts}

    def way(name: str) -> tuple[object, ...]:
        host = hosts[name]
        return (host.address, host.port, host.user, host.private_key, host.become_user)

    assert way("old") == way("both") == ("10.0.0.2", 22, "ub", "/kb", "sb")
    assert way("new") == ("10.0.0.1", 11, "ua", "/ka", "sa")
    assert (hosts["both"].sudo_password, hosts["new"].sudo_password) == ("pb", "pa")
    assert [hosts[name].python for name in ("old", "both", "new")] == ["/usr/bin/python3"] * 2 + ["python3.11"]


def test_several_inventories_and_lists_of_hosts_are_one_cluster(tmp_path: Path) -> None:
    first = write(tmp_path, "a.ini", "[nodes]\nnode1 slots=1\nnode2\n")
    second = write(tmp_path, "b.yml", "nodes:\n  hosts:\n    node1: {slots: 4}\n    node3:\n")
    sources = InventorySources((str(first), str(second), "x[1-2],y"))
    found = ansible_inventory.load(sources)
    assert {host.name: host.slots for host in found.hosts} == {
        "node1": 4,
        "node2": None,
        "node3": None,
        "x1": None,
        "x2": None,
        "y": None,
    }
    assert found.sources.arguments == ("-i", str(first), "-i", str(second), "-i", "x[1-2],y")
    assert [host.name for host in ansible_inventory.load(InventorySources(("alone,",))).hosts] == ["alone"]
    with pytest.raises(ConfigError, match=r"none\.ini does not exist"):
        ansible_inventory.load(InventorySources((str(first), str(tmp_path / "none.ini"))))


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        ("node[1-2]", ["node1", "node2"]),
        ("node[1:2]", ["node1", "node2"]),
        ("node[1,3]", ["node1", "node3"]),
        ("nodes[0:1]", ["node1", "node2"]),  # members of a group, which Ansible counts
        ("all:!node[2-9]", ["node1", "node10"]),
        ("nodes:&node[2-9]", ["node2", "node3"]),
        ("node[1-2],node10", ["node1", "node2", "node10"]),
        ("node[12]", []),
        ("~node[12]$", ["node1", "node2"]),
    ],
)
def test_a_limit_with_brackets_selects_hosts_by_name(tmp_path: Path, limit: str, left: list[str]) -> None:
    path = write(tmp_path, "i.ini", "[nodes]\nnode[1:3]\nnode10\n")
    if not left:
        with pytest.raises(ConfigError, match=re.escape(f"limit '{limit}' matches no host")):
            ansible_inventory.load(path, InventoryOptions(limit=limit))
        return
    assert list(ansible_inventory.load(path, InventoryOptions(limit=limit)).selected) == left


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.ini", "", "names no host|is empty"),
        ("empty.yml", "", "names no host|is empty"),
        ("group.ini", "[nodes]\n", "names no host"),
        ("broken.yml", "a: [b", "cannot be parsed: While parsing a flow sequence"),
        ("broken.ini", "[nodes\nnode1\n", "cannot be parsed"),
        ("space.yml", 'all:\n  hosts:\n    "node 1": {}\n', "'node 1', which is not a valid host name"),
        ("semicolon.ini", "[nodes]\nnode;1\n", "'node;1', which is not a valid host name"),
        ("newline.yml", 'all:\n  hosts:\n    "node\\n1": {}\n', r"'node\\n1', which is not a valid host name"),
        ("dash.ini", "[nodes]\n-node1\n", "'-node1', which is not a valid host name"),
        (
            "ipv6.ini",
            "[nodes]\n[2001:db8::7]:2022\n",
            "give the host a name, as in 'node1 ansible_host=2001:db8::7 ansible_port=2022'",
        ),
        ("older.ini", "node1 ansible_ssh_host=a=b\n", "ansible_ssh_host of node1 is 'a=b', which is neither"),
        ("address.ini", "node1 ansible_host='-oProxyCommand=x'\n", "neither a name nor an address"),
        (
            "link.ini",
            "node1 ansible_host=fe80::7\n",
            (
                "ansible_host of node1 is fe80::7, a link-local address without its interface. Write fe80::7%eth0, "
                "with the name of the interface of this machine that leads there."
            ),
        ),
        ("user.ini", "node1 ansible_user=-lroot\n", "which is not a valid user name"),
        ("job.ini", "node1 cluster_user=root\n", "node1: cluster_user is 'root', .*; name another user"),
        ("jobs.ini", "node1 cluster_user='a b'\n", "node1: cluster_user is 'a b', which is not a valid user name"),
        ("both.ini", "node1 cluster_user=mpi ssh_mesh_user=user1\n", "remove one of them"),
        ("keys.ini", "node1 cluster_user=mpi cluster_user_keys=/root/k.pub\n", "cluster_user_keys has '/root/k.pub'"),
        ("port.ini", "node1 ansible_port=99999\n", "ansible_port of node1 is 99999"),
        ("slots.ini", "node1 slots=0\n", "slots of node1 is 0"),
        ("infinite.yml", "nodes: {hosts: {node1: {ansible_port: .inf}}}\n", "ansible_port of node1 is inf; a port is"),
        ("many_slots.yml", "nodes: {hosts: {node1: {slots: .inf}}}\n", "slots of node1 is inf; it is the number"),
        (
            "many.ini",
            "[nodes]\nnode[1:999999999] slots=1\n",
            r"'node\[1:999999999\]'; one inventory has at most 100,000",
        ),
        ("many.yml", "nodes:\n  hosts:\n    node[1:999999999]:\n", r"'node\[1:999999999\]'; one inventory has at most"),
        (
            "flow.yml",
            'nodes: {hosts: {"r[1:999]n[1:999]": {}}}\n',
            r"'r\[1:999\]n\[1:999\]'; one inventory has at most",
        ),
        ("quote.yml", 'all:\n  hosts:\n    node1:\n      ansible_ssh_common_args: "-o \'x"\n', "unbalanced quote"),
    ],
)
def test_bad_inventories_get_one_sentence(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError, match=says) as caught:
        ansible_inventory.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_ranges_of_hosts_are_counted(tmp_path: Path) -> None:
    text = "[nodes]\nnode[1:3] part='x[1:999999999]'\n[nodes:vars]\nslice={{ [1, 2][0:999999999] | length }}\n"
    assert len(ansible_inventory.load(write(tmp_path, "i.ini", text)).hosts) == 3


def test_ranges_of_a_folder_are_counted_together_file_by_file(tmp_path: Path) -> None:
    write(tmp_path, "a.ini", "[nodes]\nnode1\n")
    path = write(tmp_path, "b.ini", "[nodes]\na[1:60000]\nb[1:60000]\n")
    with pytest.raises(ConfigError, match="at most 100,000 hosts") as caught:
        ansible_inventory.load(tmp_path)
    assert str(path) in str(caught.value)


def test_missing_inventory_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; 'clusterctl init"):
        ansible_inventory.load(tmp_path / "none.ini")


def test_missing_vault_password(tmp_path: Path) -> None:
    """The file was made with 'ansible-vault encrypt', password 'right'."""
    path = write(tmp_path, "i.ini", "[nodes]\nnode1\n")
    (tmp_path / "group_vars").mkdir()
    password = write(tmp_path, "password", "right\n")
    secret = write(tmp_path / "group_vars", "nodes.yml", "slots: 5\n")
    program = ansible_inventory.ansible_program("ansible-vault")
    subprocess.run([program, "encrypt", "--vault-password-file", password, secret], check=True, capture_output=True)
    with pytest.raises(ConfigError, match="give --vault-password-file or --vault-id"):
        ansible_inventory.load(path)
    wrong = write(tmp_path, "wrong", "wrong\n")
    with pytest.raises(ConfigError, match="vault"):
        ansible_inventory.load(path, InventoryOptions(vault_password_files=(str(wrong),)))
    with pytest.raises(ConfigError, match="vault"):
        ansible_inventory.load(path, InventoryOptions(vault_password_files=(str(tmp_path / "nix"),)))
    assert ansible_inventory.load(path, InventoryOptions(vault_password_files=(str(password),))).hosts[0].slots == 5
    typed = InventoryOptions(vault_ids=("prod@prompt",), vault_passwords={"prod": "right"})
    assert ansible_inventory.load(path, typed).hosts[0].slots == 5
    assert "right" not in repr(typed)


def test_the_digest_without_a_host_is_that_of_the_inventory_without_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lab.ini"
    path.write_text("[a]\nnode1 slots=2\nnode2 slots=3\n[b]\nnode2\n[a:vars]\nansible_user=me\n", encoding="utf-8")
    reading = ansible_inventory.read(InventorySources.of(path), InventoryOptions())
    assert reading.inventory().digest == ansible_inventory.load(path).digest
    without = reading.inventory(without=["node2", "elsewhere"])
    assert ([host.name for host in without.hosts], without.selected, without.limit) == (
        ["node1"],
        ("node1",),
        "all,!node2",
    )
    path.write_text("[a]\nnode1 slots=2\n[b]\n[a:vars]\nansible_user=me\n", encoding="utf-8")
    assert without.digest == ansible_inventory.load(path).digest
