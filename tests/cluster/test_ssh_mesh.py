"""The mesh on real nodes: who gets in without a prompt, and who is kept out."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import playing
import pytest
from clusterctl.sandbox import Sandbox, container_engine

pytestmark = pytest.mark.cluster

PORT = 2222  # where node3's sshd listens, and nowhere else
AUTHORIZED = "/home/cluster/.ssh/authorized_keys"
SHARED = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_config.d/00-clusterctl.conf")
PLAYBOOK = """
- name: Look
  hosts: all
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - name: Look
      ansible.builtin.import_role: {name: clusterctl.hpc.preflight, rolespec_validate: false}
- name: Mesh
  hosts: all
  gather_facts: false
  tasks:
    - name: Mesh
      ansible.builtin.import_role: {name: clusterctl.hpc.ssh_mesh, rolespec_validate: false}
      vars: {ssh_mesh_members: "{{ preflight_members }}"}
"""


@dataclass
class Cluster:
    """The sandbox as its owner sees it: an inventory, the host keys she believes, and a console."""

    box: Sandbox
    folder: Path
    engine: container_engine.Podman = field(default_factory=container_engine.find)

    def console(self, node: str, *argv: str) -> str:
        """Run something as root without ssh."""
        return self.engine.run("exec", self.box.node(node).container, *argv).decode()

    def host_key(self, node: str) -> str:
        return " ".join(self.console(node, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2])

    def user_key(self, node: str) -> str:
        return self.console(node, "cat", "/home/cluster/.ssh/id_clusterctl.pub").split()[1]

    def port(self, node: str) -> int:
        return PORT if node == "node3" else 22

    def reload_sshd(self, node: str) -> None:
        """Let sshd read its settings and host key again, believe the key as the console shows it, and wait."""
        self.console(node, "kill", "-HUP", "1")
        self.believe()
        for _ in range(100):
            if self.ssh_from_controller(node, "true").returncode != 255:
                return
            time.sleep(0.1)
        raise AssertionError(f"sshd of {node} did not come back")

    def believe(self) -> None:
        """Write down the controller's known hosts as the nodes are now."""
        lines = [
            f"[{node.address}]:{self.port(node.name)} {self.host_key(node.name)}"
            if self.port(node.name) != 22
            else f"{node.address} {self.host_key(node.name)}"
            for node in self.box.nodes
        ]
        (self.folder / "known_hosts").write_text("\n".join(lines) + "\n")

    def ssh_from_controller(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        command = [
            "ssh",
            "-n",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=5",
            "-o",
            f"UserKnownHostsFile={self.folder}/known_hosts",
        ]
        command += ["-o", "StrictHostKeyChecking=yes", "-i", str(self.box.private_key), "-p", str(self.port(node))]
        command += ["-l", "cluster", self.box.node(node).address, *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def login(self, origin: str, target: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Log in from node to node as a job would."""
        return self.ssh_from_controller(origin, "ssh", "-n", "-o", "BatchMode=yes", target, *(argv or ("hostname",)))

    def play(self, names: Sequence[str], *options: str) -> str:
        """Make the mesh and return what Ansible said."""
        done = self.try_to_play(names, *options)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    def try_to_play(self, names: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
        inventory = [
            f"{name} ansible_host={self.box.node(name).address} ansible_port={self.port(name)}" for name in names
        ]
        inventory += ["[all:vars]", "ansible_user=cluster", "ansible_become=true"]
        inventory += [f"ansible_ssh_private_key_file={self.box.private_key}"]
        inventory += [f"ansible_ssh_common_args='-o UserKnownHostsFile={self.folder}/known_hosts'"]
        (self.folder / "inventory.ini").write_text("\n".join(inventory) + "\n")
        (self.folder / "mesh.yml").write_text(PLAYBOOK)
        surroundings = playing.environment(
            ANSIBLE_HOST_KEY_CHECKING="true",
            # A connection kept open from an earlier run would hide a swapped key.
            ANSIBLE_SSH_CONTROL_PATH_DIR=tempfile.mkdtemp(prefix="mesh-", dir=self.folder),
            ANSIBLE_SSH_ARGS="-o ControlMaster=auto -o ControlPersist=5s",
        )
        given = ("-i", str(self.folder / "inventory.ini"), str(self.folder / "mesh.yml"), *options)
        return playing.ran([playing.PLAYBOOK, *given], surroundings)

    def files(self, node: str) -> str:
        return "".join(self.console(node, "cat", path) for path in (AUTHORIZED, *SHARED))


def changed(output: str) -> dict[str, int]:
    recap = output.partition("PLAY RECAP")[2].splitlines()
    return {line.split()[0]: int(line.partition("changed=")[2].split()[0]) for line in recap if "changed=" in line}


ALL = ("node1", "node2", "node3", "node4")


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Four nodes of two releases, one with its sshd on another port, meshed without the role's own proof."""
    made = Cluster(sandbox("mesh", nodes=4, images=("debian12", "debian13")), tmp_path_factory.mktemp("mesh"))
    made.console("node3", "sh", "-c", f"echo Port {PORT} > /etc/ssh/sshd_config.d/port.conf")
    made.reload_sshd("node3")
    made.console("node1", "sh", "-c", f"echo '# a line of its owner' >> {AUTHORIZED}")
    made.play(ALL, "-e", "ssh_mesh_verify=none")
    return made


def test_every_node_logs_in_to_every_node_without_a_prompt(cluster: Cluster) -> None:
    pairs = [(origin, target) for origin in ALL for target in ALL]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda pair: cluster.login(*pair), pairs))
    assert [(done.stdout.strip(), done.stderr) for done in answers] == [(target, "") for _, target in pairs]


@pytest.mark.parametrize("form", ["name", "address"])
def test_the_other_port_is_found_by_name_and_by_address(cluster: Cluster, form: str) -> None:
    target = "node3" if form == "name" else cluster.box.node("node3").address
    connection = cluster.login("node1", target, "printenv", "SSH_CONNECTION").stdout.split()
    assert connection[3] == str(PORT)


def test_a_second_run_changes_nothing_and_proves_all_logins_itself(cluster: Cluster) -> None:
    assert changed(cluster.play(ALL, "-e", "ssh_mesh_verify=all")) == dict.fromkeys(ALL, 0)


def test_private_halves_differ_and_belong_to_their_user_alone(cluster: Cluster) -> None:
    assert len({cluster.user_key(node) for node in ALL}) == 4
    for node in ALL:
        assert cluster.console(node, "stat", "-c", "%a %U", "/home/cluster/.ssh/id_clusterctl").split() == [
            "600",
            "cluster",
        ]


def test_what_others_wrote_stays(cluster: Cluster) -> None:
    assert "# a line of its owner\n" in cluster.console("node1", "cat", AUTHORIZED)
    # The login key of the sandbox is there too, or nothing above would have worked.


def test_ssh_of_other_users_of_the_node_stays_as_it_is(cluster: Cluster) -> None:
    """Their ssh to a node has the settings of their ssh to any other machine: agent, GSSAPI, keys and host keys."""

    def settings(user: str, host: str) -> list[str]:
        said = cluster.console("node1", "su", user, "-s", "/bin/sh", "-c", f"ssh -G {host}").splitlines()
        return [line for line in said if host not in line.split()]

    own = "/etc/ssh/ssh_config.d/90-site.conf"
    cluster.console("node1", "sh", "-c", f"printf 'Host *\\n    ForwardAgent yes\\n' > {own}")
    try:
        for user in ("root", "daemon"):
            for host in ("node2", "node3", cluster.box.node("node3").address):
                assert settings(user, host) == settings(user, "elsewhere"), (user, host)
            assert {"forwardagent yes", "gssapiauthentication yes", "port 22"} <= set(settings(user, "node3"))
        ours = settings("cluster", "node3")
        assert {"forwardagent no", "gssapiauthentication no", f"port {PORT}", "stricthostkeychecking true"} <= set(ours)
    finally:
        cluster.console("node1", "rm", own)


def test_a_host_key_accepted_by_hand_does_not_count(cluster: Cluster) -> None:
    forged = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIALi599DvvDwMySq11LrlGoa5zscn2pIVvFVI3NuVmul"
    line = f"{cluster.box.node('node2').address} {forged}"
    cluster.console("node1", "sh", "-c", f"echo '{line}' > /home/cluster/.ssh/known_hosts")
    try:
        assert cluster.login("node1", "node2").stdout == "node2\n"
    finally:
        cluster.console("node1", "rm", "/home/cluster/.ssh/known_hosts")


def test_limit_loses_nobody(cluster: Cluster) -> None:
    before = cluster.files("node1")
    output = cluster.play(ALL, "--limit", "node1")
    assert changed(output) == {"node1": 0}
    assert "Nothing is known of node2, node3, node4" in " ".join(output.split())
    assert cluster.files("node1") == before


def test_limit_with_a_new_key_says_who_will_not_know_it(cluster: Cluster) -> None:
    cluster.console("node1", "sh", "-c", "rm /home/cluster/.ssh/id_clusterctl*")
    output = " ".join(cluster.play(ALL, "--limit", "node1").split())
    assert "node1: new or changed. node2, node3, node4, which this run did not visit" in output
    assert "Permission denied" in cluster.login("node1", "node2").stderr
    assert cluster.login("node2", "node1").stdout == "node1\n"
    cluster.play(ALL)
    assert cluster.login("node1", "node2").stdout == "node2\n"


def test_a_damaged_key_is_put_aside_and_replaced(cluster: Cluster) -> None:
    cluster.console("node4", "truncate", "-s", "100", "/home/cluster/.ssh/id_clusterctl")
    assert changed(cluster.play(ALL))["node4"] == 2
    assert cluster.login("node4", "node1").stdout == "node1\n"
    assert "id_clusterctl.damaged-" in cluster.console("node4", "ls", "/home/cluster/.ssh")


def test_a_swapped_host_key_is_refused_until_the_controller_vouches_for_it(cluster: Cluster) -> None:
    old = cluster.host_key("node2")
    cluster.console(
        "node2", "sh", "-c", "rm /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
    )
    cluster.reload_sshd("node2")
    for origin in ("node1", "node3", "node4"):
        refused = cluster.login(origin, "node2")
        assert (refused.returncode, refused.stdout) == (255, "")
        assert "Host key verification failed" in refused.stderr
    cluster.play(ALL, "-e", "ssh_mesh_verify=all")
    for node in ALL:
        assert old not in cluster.files(node)


@pytest.fixture
def job_user(cluster: Cluster) -> Iterator[str]:
    """A user without any privilege on all nodes, whose mesh is made in place of the login user's."""
    for node in ALL:
        cluster.console(node, "useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", "mpi")
    yield "mpi"
    for node in ALL:
        cluster.console(node, "userdel", "--remove", "mpi")
    cluster.play(ALL)


def test_root_follows_no_link_that_the_job_user_set(cluster: Cluster, job_user: str) -> None:
    """Three users who try to make root write or read for them; what they aim at stays as it was."""
    home = f"/home/{job_user}"
    secret = "root:very-secret:1\n"  # noqa: S105 - the test's own
    links = {
        "node1": (f"{home}/.ssh/authorized_keys", "/etc/victim"),
        "node2": (f"{home}/.ssh/authorized_keys", "/etc/secret"),
        "node3": (f"{home}/.ssh", "/etc/victim.d"),
    }
    prepare = (
        "echo 'a line of root' > /etc/victim; mkdir -p /etc/victim.d; cp /etc/victim /etc/victim.d/authorized_keys;"
        f"printf '{secret}' > /etc/secret; chmod 600 /etc/secret;"
        "chmod 644 /etc/victim /etc/victim.d/authorized_keys; chmod 755 /etc/victim.d"
    )
    look = "cd /etc; stat -c '%n %U %G %a' victim secret victim.d victim.d/*; cat victim secret victim.d/*"
    before = {}
    for node, (link, target) in links.items():
        folder = Path(link).parent
        cluster.console(node, "sh", "-c", prepare)
        cluster.console(node, "su", job_user, "-c", f"mkdir -p -m 700 {folder} && ln -s {target} {link}")
        before[node] = cluster.console(node, "sh", "-c", look)

    options = ("--diff", "-e", f"ssh_mesh_user={job_user}")
    done = cluster.try_to_play(ALL, *options)

    assert {node: cluster.console(node, "sh", "-c", look) for node in links} == before
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    for node, (link, _) in links.items():
        assert re.search(rf"User {job_user} may not \w+ [^ ]+, where the link {link} leads; [^.]*'rm {link}'", said), (
            node
        )
    assert "very-secret" not in said
    assert "very-secret" not in cluster.console("node2", "sh", "-c", f"find {home} -type f -exec cat {{}} +")

    for node, (link, _) in links.items():  # the cure that the sentences name; node1 shall keep its keys elsewhere
        cluster.console(node, "rm", link)
    own = f"mkdir {home}/dotfiles && ln -s {home}/dotfiles/keys {links['node1'][0]}"
    cluster.console("node1", "su", job_user, "-c", own)
    assert changed(cluster.play(ALL, *options))["node1"] > 0  # which proves the logins
    assert "clusterctl:node2" in cluster.console("node1", "cat", f"{home}/dotfiles/keys")
    assert cluster.console("node1", "readlink", links["node1"][0]).strip() == f"{home}/dotfiles/keys"
    assert changed(cluster.play(ALL, *options)) == dict.fromkeys(ALL, 0)


def test_a_removed_node_is_forgotten_everywhere(cluster: Cluster) -> None:
    words = [cluster.user_key("node4"), cluster.host_key("node4"), "node4", cluster.box.node("node4").address]
    remaining = ("node1", "node2", "node3")
    for node in remaining:  # or the test would prove nothing
        assert all(word in cluster.files(node) for word in words)
    cluster.play(remaining)
    for node in remaining:
        assert not [word for word in words if word in cluster.files(node)]
    assert "Permission denied" in cluster.login("node4", "node1").stderr
    assert cluster.login("node1", cluster.box.node("node4").address).returncode == 255
    assert cluster.login("node1", "node2").stdout == "node2\n"
