"""Inventories as users write them: templates, several files, lists of hosts, and limits with brackets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from clusterctl.model.hosts import Host
from clusterctl.state import locks
from validated import CLUSTERCTL, NODES, Cluster

pytestmark = pytest.mark.cluster

NAMED_IN = (
    "/etc/hosts",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_config.d/00-clusterctl.conf",
    "/home/cluster/.ssh/authorized_keys",
    "/var/lib/clusterctl/cluster.json",
)
HELLO = ("--", "sh", "-c", "echo $OMPI_COMM_WORLD_SIZE")


def clusterctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLUSTERCTL, *words], capture_output=True, text=True, check=False, timeout=120)


def variables(cluster: Cluster) -> str:
    """Return the group's variables of the sandbox's own inventory: user, key and known hosts."""
    return cluster.box.inventory.read_text(encoding="utf-8").partition("[nodes:vars]\n")[2]


@pytest.fixture
def templated(mpi_cluster: Cluster, tmp_path: Path) -> Path:
    """Return an inventory whose addresses are templates over a file, another host's variables and the host's name."""
    prefix, _, first = mpi_cluster.box.node("node1").address.rpartition(".")
    (tmp_path / "prefix").write_text(prefix, encoding="utf-8")
    path = tmp_path / "templated.ini"
    path.write_text(
        f"[nodes]\nnode1 first={first}\nnode[2:4]\n\n[nodes:vars]\n{variables(mpi_cluster)}\n"
        f"prefix=\"{{{{ lookup('file', '{tmp_path / 'prefix'}') }}}}\"\n"
        "number=\"{{ (hostvars['node1'].first | int) + (inventory_hostname[-1] | int) - 1 }}\"\n"
        'ansible_host="{{ prefix }}.{{ number }}"\n',
        encoding="utf-8",
    )
    return path


def test_templates_mean_the_same_for_every_command(mpi_cluster: Cluster, templated: Path) -> None:
    ran = clusterctl("run", str(templated), "-np", "4", "--", "hostname")
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.split()) == len(NODES)
    looked = json.loads(clusterctl("doctor", str(templated), "--format", "json").stdout)
    assert looked["unreachable"] == []
    proved = clusterctl("validate", str(templated), "--checks", "hello", "--format", "json", "--no-history")
    assert json.loads(proved.stdout)["verdict"] == "PASS", proved.stdout
    with locks.HostLock([Host("alias", mpi_cluster.box.node("node3").address)], "another run"):
        held = clusterctl("validate", str(templated), "--checks", "hello")
    assert held.returncode == 1
    assert "node3 is held by" in held.stderr, "a lock is named by the address, not by a name or a template"
    templated.write_text(templated.read_text(encoding="utf-8").replace("{{ prefix }}", "{{ nowhere }}"))
    for command in ("provision", "validate", "doctor"):
        refused = clusterctl(command, str(templated))
        assert refused.returncode == 1, refused.stderr
        assert "ansible_host of node[1-4]" in refused.stderr
        assert "'nowhere' is undefined" in refused.stderr


def test_several_inventories_lists_of_hosts_and_bracketed_limits(mpi_cluster: Cluster, tmp_path: Path) -> None:
    lines = [f"{node.name} ansible_host={node.address} slots=1" for node in mpi_cluster.box.nodes]
    halves = [tmp_path / "a.ini", tmp_path / "b.ini"]
    for path, its in zip(halves, (lines[:2], lines[2:]), strict=True):
        text = "[nodes]\n" + "\n".join(its) + f"\n\n[nodes:vars]\n{variables(mpi_cluster)}"
        path.write_text(text, encoding="utf-8")
    both = ("-i", str(halves[0]), "-i", str(halves[1]))
    assert clusterctl("run", *both, *HELLO).stdout.split() == ["4"] * 4
    for limit in ("node[1-3]", "node[1:3]", "nodes[0:2]", "all:!node[4-9]"):
        assert clusterctl("run", *both, "--limit", limit, *HELLO).stdout.split() == ["3"] * 3, limit
    first, second = (node.address for node in mpi_cluster.box.nodes[:2])
    its = dict(line.partition("=")[::2] for line in variables(mpi_cluster).splitlines() if line.startswith("ansible_"))
    given = json.dumps({name: value.strip("'\"") for name, value in its.items()} | {"slots": 1})
    listed = clusterctl("validate", f"{first},{second},", "-e", given, "--checks", "hello", "--format", "json")
    record = json.loads(listed.stdout or "{}")
    assert listed.returncode in {0, 10}, listed.stderr
    assert record["hosts"] == [first, second]
    assert next(one for one in record["checks"] if one["check"] == "reachable")["verdict"] == "PASS"


@pytest.mark.long
def test_a_node_takes_no_name_from_another_machine(mpi_cluster: Cluster, tmp_path: Path) -> None:
    """A node that calls itself like a package index, in an inventory of bare addresses: its name stays its own."""
    first, second = (node.address for node in mpi_cluster.box.nodes[:2])
    inventory = tmp_path / "addresses.ini"
    lines = [f"{address} slots=2" for address in (first, second)]
    inventory.write_text(
        "\n".join(["[nodes]", *lines, "", f"[nodes:vars]\n{variables(mpi_cluster)}"]), encoding="utf-8"
    )
    alone = ("python_env_framework=none nccl_install=never horovod_install=never", "--tags", "hosts,ssh_mesh")
    for node in NODES[:2]:
        mpi_cluster.on(node, "sh", "-c", f"for file in {' '.join(NAMED_IN)}; do cp -a $file $file.kept; done")
    try:
        mpi_cluster.on("node2", "hostname", "pypi")
        done = clusterctl("provision", str(inventory), "--yes", "--adopt", "-e", *alone)
        assert done.returncode == 0, done.stderr
        known = mpi_cluster.on("node1", "cat", *NAMED_IN)
        assert second in known
        assert "pypi" not in known
        assert mpi_cluster.on("node2", "grep", "pypi", *NAMED_IN) == f"/etc/hosts:{second} pypi"
        for words, said in (([], ["node1"] * 2 + ["pypi"] * 2), (["-np", "2", "--launch-node", second], ["pypi"] * 2)):
            ran = clusterctl("run", str(inventory), *words, "--", "hostname")
            assert (ran.returncode, sorted(ran.stdout.split())) == (0, said), ran.stderr
        checked = clusterctl("validate", str(inventory), "--checks", "hello", "--no-history")
        assert checked.returncode == 0, checked.stderr
    finally:
        mpi_cluster.on("node2", "hostname", "node2")
        for node in NODES[:2]:
            mpi_cluster.on(node, "sh", "-c", f"for file in {' '.join(NAMED_IN)}; do mv $file.kept $file; done")
