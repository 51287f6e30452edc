"""A sandbox is what it says: nodes that answer ssh like real hosts, and nothing left when it is gone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import planting
import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.inventory.ansible_inventory import load
from clusterctl.sandbox import Sandbox, container_engine
from clusterctl.state import paths, runs
from clusterctl.support.errors import ConfigError
from playing import said, ssh

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

BROUGHT_BY_ROLES = ("gcc", "make", "zstd", "rsync", "pip", "pip3", "mpirun", "curl", "git")


@pytest.fixture(scope="module")
def engine() -> container_engine.Podman:
    return container_engine.find()


@pytest.fixture(scope="module")
def pair(sandbox: Start) -> Sandbox:
    """One node of each image, for tests that leave their nodes as they were."""
    return sandbox("pair", nodes=2, images=("debian12", "debian13"))


def test_every_node_is_a_host_of_its_own(pair: Sandbox) -> None:
    assert [said(pair, node.name, "hostname") for node in pair.nodes] == ["node1", "node2"]
    releases = [said(pair, node.name, "sh", "-c", ". /etc/os-release; echo $VERSION_ID") for node in pair.nodes]
    assert releases == ["12", "13"]
    assert node_key(pair, "node1") != node_key(pair, "node2")
    for node in pair.nodes:
        assert node.address in said(pair, node.name, "ip", "-4", "-brief", "address")


def test_no_monitor_of_a_node_stays_in_the_users_folder(pair: Sandbox, engine: container_engine.Podman) -> None:
    for node in pair.nodes:
        monitor = engine.text("inspect", "--format", "{{.State.ConmonPid}}", node.container)
        assert Path("/proc", monitor, "cwd").readlink() == pair.inventory.parent


@pytest.mark.parametrize(("name", "other"), [("node1", "node2"), ("node2", "node1")])
def test_a_node_that_goes_takes_nobodys_connection_with_it(
    pair: Sandbox, engine: container_engine.Podman, name: str, other: str
) -> None:
    gone = pair.node(name)
    command = sandboxes.ssh_command(pair, pair.node(other), ("sh", "-c", "echo up; read _; echo still there"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout.readline() == "up\n"
        bridge = engine.text("network", "inspect", "--format", "{{.NetworkInterface}}", pair.network)
        address = Path("/sys/class/net", bridge, "address")
        before = address.read_text(encoding="ascii")
        engine.run("stop", "--time", "0", gone.container)
        try:
            assert session.communicate("\n", timeout=10)[0] == "still there\n"
            assert address.read_text(encoding="ascii") == before
        finally:
            engine.run("start", gone.container)
            for _ in range(50):  # until its sshd is up again
                if ssh(pair, name, "true").returncode == 0:
                    break
                time.sleep(0.2)


def node_key(box: Sandbox, node: str) -> str:
    return said(box, node, "cat", "/etc/ssh/ssh_host_ed25519_key.pub")


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_login_user_is_root_by_sudo_without_a_password(pair: Sandbox, node: str) -> None:
    assert said(pair, node, "id", "-un") == "cluster"
    done = ssh(pair, node, "sudo", "-n", "id", "-un")
    assert (done.stdout, done.stderr) == ("root\n", "")


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_nodes_are_bare(pair: Sandbox, node: str) -> None:
    assert ssh(pair, node, "sh", "-c", f"command -v {' '.join(BROUGHT_BY_ROLES)}").stdout == ""
    assert ssh(pair, node, "python3", "-c", "import ensurepip").returncode != 0


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_session_reads_etc_environment(pair: Sandbox, node: str) -> None:
    said(pair, node, "sudo", "sh", "-c", "echo SANDBOX_TEST=seen >> /etc/environment")
    assert "SANDBOX_TEST=seen" in said(pair, node, "env").splitlines()


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_apt_installs_from_the_machines_mirror(pair: Sandbox, node: str) -> None:
    said(pair, node, "sudo", "apt-get", "update", "-qq")
    policy = said(pair, node, "apt-cache", "policy")
    assert "-security/main" in policy
    said(pair, node, "sudo", "apt-get", "install", "-qq", "--no-install-recommends", "tree")
    assert said(pair, node, "tree", "--version").startswith("tree v")


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_hosts_file_can_be_replaced_by_a_rename(pair: Sandbox, node: str) -> None:
    said(pair, node, "sudo", "sh", "-ec", "cp /etc/hosts /etc/hosts.new; mv /etc/hosts.new /etc/hosts")


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_ranks_may_read_each_others_memory_and_share_a_gigabyte(pair: Sandbox, node: str) -> None:
    assert "1.0G" in said(pair, node, "df", "-h", "/dev/shm")  # noqa: S108 - on the node
    assert said(pair, node, "sh", "-c", "grep Seccomp: /proc/self/status").split() == ["Seccomp:", "0"]


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_thirty_two_logins_at_once(pair: Sandbox, node: str) -> None:
    with ThreadPoolExecutor(32) as pool:
        codes = list(pool.map(lambda _: ssh(pair, node, "true").returncode, range(32)))
    assert codes == [0] * 32


def test_up_again_changes_nothing_and_mends_what_is_broken(sandbox: Start, engine: container_engine.Podman) -> None:
    box = sandbox("mend", nodes=3)
    for node in box.nodes:
        said(box, node.name, "touch", "before")
    keys = [node_key(box, node.name) for node in box.nodes]
    again = sandbox("mend", nodes=3)
    assert again == box
    assert [node_key(again, node.name) for node in again.nodes] == keys

    engine.run("kill", box.nodes[0].container)
    engine.run("rm", "--force", "--time", "0", box.nodes[1].container)
    planting.freeze(engine, box.nodes[2].container)
    assert [node.state for node in sandboxes.status(box.name).nodes] == ["stopped", "missing", "stopped"]
    grown = sandbox("mend", nodes=4)
    assert [node.state for node in sandboxes.status(box.name).nodes] == ["running"] * 4
    assert [ssh(grown, f"node{number}", "test", "-e", "before").returncode for number in range(1, 5)] == [0, 1, 0, 1]


def test_other_image_or_fewer_nodes_ask_for_down_first(sandbox: Start) -> None:
    box = sandbox("other", nodes=2)
    with pytest.raises(ConfigError, match=rf"made of debian12, not of debian13.*down --name {box.name}"):
        sandbox("other", nodes=2, images=("debian13",))
    with pytest.raises(ConfigError, match=r"has 2 nodes, not 1; take it down first"):
        sandbox("other", nodes=1)
    assert said(box, "node2", "hostname") == "node2"


def test_swapped_host_key_is_refused_until_up_has_vouched_for_it(
    sandbox: Start, engine: container_engine.Podman
) -> None:
    box = sandbox("swap", nodes=1)
    container = box.nodes[0].container
    engine.run("exec", container, "rm", "/etc/ssh/ssh_host_ed25519_key")
    engine.run("restart", "--time", "0", container)
    refused = ssh(sandbox_answering(box), "node1", "true")
    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    assert ssh(sandbox("swap", nodes=1), "node1", "true").returncode == 0


def sandbox_answering(box: Sandbox) -> Sandbox:
    """Wait, as a user would, until the status says that the nodes run."""
    for _ in range(50):
        found = sandboxes.status(box.name)
        if all(node.state == "running" for node in found.nodes):
            return found
    raise AssertionError(found)


def test_down_leaves_nothing(
    sandbox: Start, engine: container_engine.Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = tmp_path / "deeper" / "hosts.ini"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    box = sandbox("down", nodes=1, inventory=inventory)
    assert inventory.is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deeper"]
    load(inventory)
    run = runs.start("doctor", inventory, ["clusterctl", "doctor"], {})
    run.close()
    assert sandboxes.down(box.name)
    assert not paths.cluster_dir(run.record.cluster_id).exists()
    assert str(inventory) not in paths.known_inventories()
    assert not sandboxes.down(box.name)
    assert not inventory.exists()
    assert not (paths.state_dir().value / "sandboxes" / box.name).exists()
    assert not engine.succeeds("container", "exists", box.nodes[0].container)
    assert not engine.succeeds("network", "exists", box.network)
    known_hosts = Path.home() / ".ssh" / "known_hosts"
    assert not known_hosts.exists() or box.nodes[0].address not in known_hosts.read_text()


def test_somebody_elses_inventory_is_not_written_over(sandbox: Start, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("[nodes]\nreal-machine\n")
    with pytest.raises(ConfigError, match="exists already and is no sandbox's inventory"):
        sandbox("foreign", nodes=1, inventory=inventory)
    assert inventory.read_text() == "[nodes]\nreal-machine\n"


def test_another_checkout_joins_a_sandbox_or_is_refused(sandbox: Start, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine" / "hosts.ini", tmp_path / "other" / "hosts.ini"
    box = sandbox("shared", nodes=1, inventory=mine)
    with pytest.raises(ConfigError, match=rf"is in use with the inventory {mine}; use that one without --inventory"):
        sandbox("shared", nodes=1, inventory=other)
    assert not other.exists()
    assert sandbox("shared", nodes=1) == box
    assert mine.is_file()


def test_somebody_elses_sandbox_is_not_taken(sandbox: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box = sandbox("mine", nodes=1)
    with monkeypatch.context() as other_user:
        other_user.setenv("XDG_STATE_HOME", str(tmp_path))
        with pytest.raises(ConfigError, match=r"was started from .*choose another --name"):
            sandboxes.up(sandboxes.SandboxSpec(name=box.name, nodes=1))
    assert said(box, "node1", "hostname") == "node1"


def test_ansible_and_the_command_line_reach_the_nodes(pair: Sandbox) -> None:
    command = [sys.executable, "-m", "clusterctl", "sandbox", "ssh", "--name", pair.name, "node2"]

    def told(*words: str) -> str:
        return subprocess.run([*command, *words], capture_output=True, text=True, check=True).stdout

    # As with ssh, a shell gets the words: a line of one word has its own quotes, and several are joined by blanks.
    assert told('cd /usr; pwd; echo "a  b"') == "/usr\na  b\n"
    assert told("--", "echo", "a  b", "$HOME") == "a b /home/cluster\n"
    ping = [
        "-m",
        "ansible",
        "adhoc",
        "-i",
        str(pair.inventory),
        "nodes",
        "-m",
        "ansible.builtin.command",
        "-a",
        "id -u",
    ]
    done = subprocess.run([sys.executable, *ping], capture_output=True, text=True, check=True)
    assert done.stdout.count("rc=0 >>\n0") == 2
