"""Preflight on real nodes: every problem of every node in one answer, and nothing changed before."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import playing
import pytest
from clusterctl.sandbox import Sandbox

pytestmark = pytest.mark.cluster

PLAYBOOK = """
- name: Look
  hosts: all
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - name: Look
      ansible.builtin.import_role: {name: clusterctl.hpc.preflight, rolespec_validate: false}
- name: Change
  hosts: all
  gather_facts: false
  tasks:
    - name: Change something
      ansible.builtin.file: {path: /run/preflight-let-it-through, state: touch, mode: "0644"}
"""


@pytest.fixture(scope="module")
def pair(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox("pair", nodes=2, images=("debian12", "debian13"))


def play(box: Sandbox, folder: Path, hosts: str) -> subprocess.CompletedProcess[str]:
    common = f"-o UserKnownHostsFile={box.known_hosts} -o StrictHostKeyChecking=yes -o ConnectTimeout=5"
    (folder / "inventory.ini").write_text(
        f"{hosts}\n[all:vars]\nansible_user=cluster\nansible_ssh_private_key_file={box.private_key}\n"
        f"ansible_ssh_common_args='{common}'\n"
    )
    (folder / "play.yml").write_text(PLAYBOOK)
    surroundings = playing.environment(ANSIBLE_SSH_CONTROL_PATH_DIR=str(folder / "cp"))
    return playing.ran([playing.PLAYBOOK, "-i", str(folder / "inventory.ini"), str(folder / "play.yml")], surroundings)


def exists(box: Sandbox, node: str) -> bool:
    return playing.ssh(box, node, "test", "-e", "/run/preflight-let-it-through").returncode == 0


def test_all_problems_in_one_answer_and_nothing_is_changed(pair: Sandbox, tmp_path: Path) -> None:
    one, two = (pair.node(name).address for name in ("node1", "node2"))
    done = play(
        pair,
        tmp_path,
        f"good ansible_host={one} ansible_become=true\n"
        f"clone ansible_host={one} ansible_become=true\n"
        f"plain ansible_host={two} ansible_become=false preflight_max_clock_skew=3 slots=many\n"
        f"silent ansible_host={two} ansible_port=2222 ansible_become=true\n"
        f"snake ansible_host={two} ansible_become=true ansible_python_interpreter=/usr/bin/python9\n"
        "[all:vars]\npreflight_ignored_variables=['preflight_max_clock_skew']\nssh_mesh_verfy=ring\n",
    )
    assert done.returncode == 2
    message = done.stdout.partition("nothing has been changed.")[2]
    for line in (
        "silent: it refuses connections at that port (ssh: connect to host",
        "snake: Python was not found",
        "plain: tasks run as cluster, not as root",
        "plain: slots is 'many'",
        "good: its address ",
        "clone: its ssh host key is also that of good",
        "good, clone, plain, silent, snake: ssh_mesh_verfy is not a variable of role ssh_mesh",
        "did you mean ssh_mesh_verify?",
    ):
        assert line in message
    assert "preflight_max_clock_skew " not in message
    assert not exists(pair, "node1")


def test_healthy_nodes_go_on(pair: Sandbox, tmp_path: Path) -> None:
    hosts = "\n".join(f"{node.name} ansible_host={node.address} ansible_become=true" for node in pair.nodes)
    done = play(pair, tmp_path, f"{hosts}\n[all:vars]\nenvironment_label=blue\nhosts_by_rack={{}}\nhosts_domains=x\n")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, said
    assert "environment_label, hosts_by_rack are variables that the roles of clusterctl do not have" in said
    assert "hosts_domains is not a variable of role hosts, and stays unused there; did you mean hosts_domain?" in said
    assert exists(pair, "node1")
    assert exists(pair, "node2")
