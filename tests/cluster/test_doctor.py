"""Doctor on four provisioned nodes: nothing to say of healthy ones, and every planted fault by its node."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import planting
import pytest
from clusterctl.diagnosis import doctor
from clusterctl.model.findings import Diagnosis
from validated import NODES, Cluster

pytestmark = pytest.mark.cluster

# What MPI and NCCL listen on, and what leaves ssh alone: answers of sshd go to such ports as well.
FIREWALL = """
table inet planted {
    chain input {
        type filter hook input priority 0;
        ip saddr ADDRESS tcp sport != 22 tcp dport 32768-60999 drop
    }
}
"""
NCCL = "int ncclGetVersion(int *version) { *version = %d; return 0; }\n"


def told(found: Diagnosis) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(one.check, one.severity, one.hosts) for one in found.findings}


def cause(found: Diagnosis, check: str, *hosts: str) -> str:
    return next(one.cause for one in found.findings if (one.check, one.hosts) == (check, hosts))


@contextlib.contextmanager
def edited(cluster: Cluster, node: str, path: str, *sed: str) -> Iterator[None]:
    """Change a file by sed for a while."""
    cluster.on(node, "cp", "-a", path, f"{path}.aside")
    try:
        cluster.on(node, "sed", "-i", *sed, path)
        yield
    finally:
        cluster.on(node, "sh", "-c", 'cat "$1.aside" > "$1"; rm "$1.aside"', "sh", path)


@contextlib.contextmanager
def loading_nccl(cluster: Cluster, folder: Path, versions: dict[str, int]) -> Iterator[None]:
    """Have the loaders of nodes find small libraries that call themselves NCCL of these versions."""
    place = "/opt/planted-nccl"
    conf = "/etc/ld.so.conf.d/planted.conf"
    try:
        for node, version in versions.items():
            source, library = folder / f"{version}.c", folder / f"{version}.so"
            source.write_text(NCCL % version, encoding="utf-8")
            subprocess.run(
                ["gcc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", str(library), str(source)], check=True
            )
            cluster.on(node, "mkdir", place)
            cluster.engine.run("cp", str(library), f"{cluster.box.node(node).container}:{place}/libnccl.so.2")
            cluster.on(node, "sh", "-c", f"echo {place} > {conf}; ldconfig")
        yield
    finally:
        for node in versions:
            cluster.on(node, "sh", "-c", f"rm -rf {place} {conf}; ldconfig")


@contextlib.contextmanager
def a_leftover_rank(cluster: Cluster, node: str) -> Iterator[None]:
    """Leave a process with a rank's environment to the first process, as a launcher that was killed does."""
    container = cluster.box.node(node).container
    script = "PMIX_RANK=3 setsid sleep 600 >/dev/null 2>&1 & echo $!"
    pid = cluster.engine.text("exec", "--user", "cluster", container, "sh", "-c", script)
    try:
        yield
    finally:
        cluster.on(node, "kill", pid)


@contextlib.contextmanager
def a_damaged_artifact(cluster: Cluster, node: str) -> Iterator[None]:
    find = "find -L /usr/local/mpi4py -name __init__.py -path '*/mpi4py/*' | head -n 1"
    path = cluster.on(node, "sh", "-c", find)
    cluster.on(node, "mv", path, f"{path}.aside")
    try:
        yield
    finally:
        cluster.on(node, "mv", f"{path}.aside", path)


@contextlib.contextmanager
def a_firewall(cluster: Cluster, node: str, against: str, folder: Path) -> Iterator[None]:
    rules = folder / "planted.nft"
    rules.write_text(FIREWALL.replace("ADDRESS", cluster.box.node(against).address), encoding="utf-8")
    cluster.in_network_of(node, "nft", "-f", str(rules))
    try:
        yield
    finally:
        cluster.in_network_of(node, "nft", "delete", "table", "inet", "planted")


@contextlib.contextmanager
def another_host_key(cluster: Cluster, node: str) -> Iterator[None]:
    """Have the node's sshd show a key that nobody knows."""
    key = "/etc/ssh/ssh_host_ed25519_key"
    # A busy machine's sshd takes seconds to read its keys anew.
    shown = (
        "for _ in $(seq 100); do shown=$(ssh-keyscan -t ed25519 localhost 2>/dev/null | cut -d' ' -f3);"
        f' test "$shown" = "$(cut -d\' \' -f2 {key}.pub)" && exit; sleep 0.2; done; exit 1'
    )
    new = f"mkdir -m 700 /root/aside && cp -a {key} {key}.pub /root/aside && rm {key} {key}.pub"
    cluster.on(node, "sh", "-c", f"{new} && ssh-keygen -q -t ed25519 -N '' -f {key} && pkill -HUP -o sshd; {shown}")
    try:
        yield
    finally:
        old = "cp -a /root/aside/* /etc/ssh/ && rm -r /root/aside && pkill -HUP -o sshd"
        cluster.on(node, "sh", "-c", f"{old}; {shown}")


@contextlib.contextmanager
def a_twin_address(cluster: Cluster) -> Iterator[None]:
    """Give every node a docker0 with the address that Docker gives it everywhere."""
    made = (
        ("link", "add", "docker0", "type", "bridge"),
        ("address", "add", "172.17.0.1/16", "dev", "docker0"),
        ("link", "set", "docker0", "up"),
    )
    try:
        for node in NODES:
            for words in made:
                cluster.in_network_of(node, "ip", *words)
        yield
    finally:
        for node in NODES:
            cluster.in_network_of(node, "ip", "link", "delete", "docker0")


def test_a_healthy_cluster_is_left_as_it_was_and_has_no_finding(mpi_cluster: Cluster) -> None:
    before = mpi_cluster.state()
    done, seconds = mpi_cluster.run("doctor", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["findings"], found["unreachable"]) == ([], [])
    assert mpi_cluster.state() == before
    assert mpi_cluster.is_clean()
    assert seconds < 60


def test_each_fault_is_named_with_its_node(mpi_cluster: Cluster, tmp_path: Path) -> None:
    nccl = {"node1": 22907, "node2": 22907, "node3": 22907, "node4": 22005}
    with contextlib.ExitStack() as faults:
        faults.enter_context(edited(mpi_cluster, "node2", "/etc/hosts", "1i 127.0.1.1 node2"))
        lost = "1i PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/horovod/bin"
        faults.enter_context(edited(mpi_cluster, "node3", "/home/cluster/.bashrc", lost))
        faults.enter_context(loading_nccl(mpi_cluster, tmp_path, nccl))
        faults.enter_context(a_leftover_rank(mpi_cluster, "node1"))
        faults.enter_context(a_damaged_artifact(mpi_cluster, "node1"))
        faults.enter_context(a_firewall(mpi_cluster, "node3", "node1", tmp_path))
        faults.enter_context(a_twin_address(mpi_cluster))
        faults.enter_context(mpi_cluster.second_network("eth7", "10.77.0.0/24", NODES[:3]))
        found = doctor.examine(mpi_cluster.box.inventory)
    assert told(found) == {
        ("names", "error", ("node2",)),
        ("session", "error", ("node3",)),
        ("versions", "error", ("node4",)),
        ("leftovers", "error", ("node1",)),
        ("artifacts", "error", ("node1",)),
        ("ports", "error", ("node1", "node3")),
        ("network", "warning", ("node4",)),
    }
    assert cause(found, "network", "node4").startswith("it has no address in 10.77.0.0/24 (eth7), in which node[1-3] ")
    assert any(words.startswith("docker0 has the address 172.17.0.1 on each of node[1-4]; ") for words in found.notes)
    assert "127.0.1.1" in cause(found, "names", "node2")
    assert cause(found, "session", "node3").endswith("lacks /usr/local/openmpi/bin")
    assert cause(found, "versions", "node4") == "libnccl.so.2 as a session loads it is 2.20.5, and 2.29.7 on most nodes"
    assert "sleep 600" in cause(found, "leftovers", "node1")
    assert "1 of " in cause(found, "artifacts", "node1")
    assert "between node1 and node3 in " in cause(found, "ports", "node1", "node3")
    assert "time out" in cause(found, "ports", "node1", "node3")
    assert doctor.exit_code(found) == 10


# What hinders a launch or stops jobs, by the node that has it: how to plant it, and how to undo it.
ASIDE = "mv {0} {0}.aside", "mv {0}.aside {0}"
ON_NODES = (
    ("node1", "mount -t tmpfs -o size=8m planted /tmp; head -c 8m /dev/zero > /tmp/full; true", "umount /tmp"),
    ("node1", *(line.format("/etc/nccl.conf") for line in ASIDE)),
    ("node2", "mount -o remount,ro /dev/shm", "mount -o remount,rw /dev/shm"),
    ("node2", *(line.format("/etc/clusterctl/fabric.json") for line in ASIDE)),
    (
        "node3",
        "mv /usr/local/mpi4py /usr/local/mpi4py.aside; cp -a $(readlink -f /usr/local/mpi4py.aside) /usr/local/mpi4py",
        "rm -r /usr/local/mpi4py; mv /usr/local/mpi4py.aside /usr/local/mpi4py",
    ),
    (
        "node3",
        "mkdir -p /opt/planted/bin; echo echo foreign > /opt/planted/bin/mpirun; chmod 755 /opt/planted/bin/mpirun",
        "rm -r /opt/planted",
    ),
    ("node4", "chmod -x /usr/local/openmpi/bin/prted", "chmod 755 /usr/local/openmpi/bin/prted"),
    (
        "node4",
        "install -d -o cluster ~cluster/.openmpi; echo 'btl = self' > ~cluster/.openmpi/mca-params.conf",
        "rm -r ~cluster/.openmpi",
    ),
)


def test_what_hinders_a_launch_is_named_with_its_node(mpi_cluster: Cluster) -> None:
    with contextlib.ExitStack() as faults:
        for fault in ON_NODES:
            faults.enter_context(planting.changed(mpi_cluster, *fault))
        foreign = "1i PATH=/opt/planted/bin:$PATH"
        faults.enter_context(edited(mpi_cluster, "node3", "/home/cluster/.bashrc", foreign))
        faults.enter_context(edited(mpi_cluster, "node4", "/etc/environment", "$aNCCL_DEBUG=INFO"))
        faults.enter_context(edited(mpi_cluster, "node2", "/etc/ssh/ssh_known_hosts", "/^node2[, ]/d"))
        faults.enter_context(planting.quota(mpi_cluster, "node1", 150))
        found = doctor.examine(mpi_cluster.box.inventory)
    assert told(found) == {
        ("temporary files", "error", ("node1",)),
        ("parameters", "error", ("node1",)),
        ("cores", "warning", ("node1",)),
        ("shared memory", "error", ("node2",)),
        ("parameters", "error", ("node2",)),
        ("host_key", "warning", ("node2",)),
        ("artifacts", "error", ("node3",)),
        ("session", "error", ("node3",)),
        ("launch", "error", ("node4",)),
        ("artifacts", "error", ("node4",)),  # a program that may not run has another mode than was installed
        ("parameters", "error", ("node4",)),
        ("parameters", "warning", ("node4",)),
    }
    assert "is full (0 of 8 MiB are free)" in cause(found, "temporary files", "node1")
    assert "is read-only" in cause(found, "shared memory", "node2")
    assert cause(found, "parameters", "node1").startswith("/etc/nccl.conf is missing")
    assert cause(found, "parameters", "node2").startswith("/etc/clusterctl/fabric.json is missing")
    assert "no line of the node itself" in cause(found, "host_key", "node2")
    assert cause(found, "artifacts", "node3").startswith("/usr/local/mpi4py is a folder")
    assert cause(found, "session", "node3").startswith("mpirun of a session is /opt/planted/bin/mpirun")
    assert cause(found, "launch", "node4").startswith("/usr/local/openmpi/bin/prted is not executable")
    assert cause(found, "cores", "node1") == "it has 2 slots, and its control group a CPU quota of 1.5 cores"
    stop = next(one.cause for one in found.findings if one.check == "parameters" and "btl" in one.cause)
    assert stop.startswith("btl = self (/home/cluster/.openmpi/mca-params.conf) leaves out tcp")


# A job's segment of 64 MiB that only its user may map, as Open MPI and NCCL make them; and when it was written.
SEGMENT = "umask 077; head -c 64M /dev/zero > /dev/shm/{0}; touch -d '{1}' /dev/shm/{0}"
MAPPED = """
import mmap, time
with open("/dev/shm/{0}", "r+b") as file, mmap.mmap(file.fileno(), 0):
    time.sleep(600)
"""


@contextlib.contextmanager
def a_segment(cluster: Cluster, node: str, name: str, written: str, *, mapped: bool = False) -> Iterator[None]:
    """Leave a segment of a job in a node's /dev/shm, and have a process of its user use it if asked to."""
    of_user = ("exec", "--user", "cluster", cluster.box.node(node).container)
    cluster.engine.text(*of_user, "sh", "-c", SEGMENT.format(name, written))
    try:
        if not mapped:
            yield
            return
        start = 'setsid python3 -c "$1" >/dev/null 2>&1 & echo $!'
        pid = cluster.engine.text(*of_user, "sh", "-c", start, "sh", MAPPED.format(name))
        try:
            yield
        finally:
            cluster.on(node, "kill", pid)
    finally:
        cluster.on(node, "rm", f"/dev/shm/{name}")  # noqa: S108 - a path in the node


@pytest.mark.long
def test_a_dead_file_system_and_stale_segments_are_named_with_node_place_and_cure(mpi_cluster: Cluster) -> None:
    """A segment that is in use, and one that was written just now, are left alone."""
    with contextlib.ExitStack() as faults:
        faults.enter_context(planting.dead_file_system(mpi_cluster, "node2", "/shared"))
        faults.enter_context(planting.dead_file_system(mpi_cluster, "node2", "/scratch"))
        faults.enter_context(planting.dead_file_system(mpi_cluster, "node2", "/apps"))
        faults.enter_context(a_segment(mpi_cluster, "node1", "psm2_shm.0000000000017", "now"))
        faults.enter_context(a_segment(mpi_cluster, "node3", "nccl-Ab12Cd", "1 hour ago"))
        faults.enter_context(a_segment(mpi_cluster, "node4", "nccl-Ef34Gh", "1 hour ago", mapped=True))
        found = doctor.examine(mpi_cluster.box.inventory)
    dead = [(one.hosts, one.cause, one.cure) for one in found.findings if one.check == "file systems"]
    assert sorted(dead) == [
        (
            ("node2",),
            f"{place} (fuse.dead) does not answer, and a program that touches it hangs",
            f"look at its server and network; then 'umount -l {place}' and mount it again",
        )
        for place in ("/apps", "/scratch", "/shared")
    ]
    wanted = {("file systems", "error", ("node2",)), ("shared memory", "warning", ("node3",))}
    assert told(found) == wanted, found.notes
    assert cause(found, "shared memory", "node3") == "ended jobs left the segment nccl-Ab12Cd with 64 MiB in /dev/shm"
    (segments,) = (one for one in found.findings if one.check == "shared memory")
    assert segments.cure == "remove them: 'rm /dev/shm/nccl-Ab12Cd' and the like"
    assert mpi_cluster.is_clean()


def test_a_changed_host_key_is_named_by_who_shows_it_and_by_who_remembers_it_wrongly(mpi_cluster: Cluster) -> None:
    known = "/etc/ssh/ssh_known_hosts"
    other = mpi_cluster.on("node1", "awk", "{print $2}", "/etc/ssh/ssh_host_ed25519_key.pub")
    swap = f"/^node3[, ]/s#AAAA[^ ]*#{other}#"
    with edited(mpi_cluster, "node2", known, swap), another_host_key(mpi_cluster, "node4"):
        found = doctor.examine(mpi_cluster.box.inventory)
    keys = [(one.hosts, one.cause) for one in found.findings if one.check == "host_key"]
    assert sorted(hosts for hosts, _ in keys) == [("node2",), ("node4",), ("node4",)]
    assert ("node4",) in {hosts for hosts, words in keys if "shows a host key that this machine does not know" in words}
    assert cause(found, "host_key", "node2") == "its known_hosts has another host key for node3 than is shown there"
    assert any(words == "it shows a host key that is not the one that node[1-3] know" for _, words in keys)
    assert {one.check for one in found.findings} == {"host_key"}
    assert found.unreachable == ("node4",)
    assert doctor.exit_code(found) == 4


def test_a_wrong_host_key_on_a_node_that_starts_daemons_in_a_tree_is_named_there(mpi_cluster: Cluster) -> None:
    """mpirun says that it lost the daemon of the node that could not be reached, which is innocent."""
    other = mpi_cluster.on("node1", "awk", "{print $2}", "/etc/ssh/ssh_host_ed25519_key.pub")
    swap = f"/^node3[, ]/s#AAAA[^ ]*#{other}#"
    chain = "$aprte_routed_radix = 1"  # each daemon starts the next one
    with (
        edited(mpi_cluster, "node2", "/etc/ssh/ssh_known_hosts", swap),
        edited(mpi_cluster, "node1", "/usr/local/etc/openmpi/prte-mca-params.conf", chain),
    ):
        hello = mpi_cluster.validate("hello", search=False).checks[-1]
    assert (hello.check, hello.hosts) == ("hello", ("node2",))
    assert [one.nodes for one in hello.culprits] == [("node2",)]
    assert "its known_hosts has another host key for node3 than is shown there" in hello.reason
