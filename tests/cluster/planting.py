"""Ways to plant a fault in a node of a sandbox for a while, and to take it away again."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from clusterctl.sandbox.container_engine import Podman
from clusterctl.support.errors import HostFailedError
from validated import Cluster

FLIP = Path(__file__).with_name("flip.c")
FLIP_COPIES = Path(__file__).with_name("flip_copies.c")
OPENMPI = "/usr/local/openmpi"
PYTHON = "/usr/local/python_env/bin/python"
_TRIES = 5
TMP = "/tmp"  # noqa: S108 - the folder of a node


def freeze(engine: Podman, container: str) -> None:
    """Freeze a container; runc gives up where the processes in it start others, and the next try finds them."""
    for _try in range(_TRIES - 1):
        with contextlib.suppress(HostFailedError):
            engine.run("pause", container)
            return
        time.sleep(0.3)
    engine.run("pause", container)


@contextlib.contextmanager
def frozen(cluster: Cluster, node: str) -> Iterator[None]:
    """Freeze a node, which then answers nothing; its kernel still takes connections."""
    container = cluster.box.node(node).container
    freeze(cluster.engine, container)
    try:
        yield
    finally:
        cluster.engine.run("unpause", container)


@contextlib.contextmanager
def nothing(_cluster: Cluster) -> Iterator[None]:
    """Plant nothing: the cluster is healthy, or the fault comes with an event of the run."""
    yield


def docker0(cluster: Cluster, nodes: Iterable[str]) -> None:
    """Give nodes a docker0 with a carrier, at the address that it has everywhere; it stays."""
    for node in nodes:
        for argv in (
            ("link", "add", "docker0", "type", "bridge"),
            ("address", "add", "172.17.0.1/16", "dev", "docker0"),
            ("link", "add", "inside0", "type", "veth", "peer", "name", "inside1"),
            ("link", "set", "inside0", "master", "docker0", "up"),
            ("link", "set", "inside1", "up"),
            ("link", "set", "docker0", "up"),
        ):
            cluster.in_network_of(node, "ip", *argv)


@contextlib.contextmanager
def changed(cluster: Cluster, node: str, forth: str, back: str) -> Iterator[None]:
    """Run a shell script as root in a node, and another one afterwards."""
    cluster.on(node, "sh", "-c", forth)
    try:
        yield
    finally:
        cluster.on(node, "sh", "-c", back)


def not_executable(cluster: Cluster, node: str, program: str) -> contextlib.AbstractContextManager[None]:
    """Take a launch program's right to be executed; a link is followed."""
    path = f'"$(readlink -f {OPENMPI}/bin/{program})"'
    return changed(cluster, node, f"chmod a-x {path}", f"chmod a+x {path}")


def away(cluster: Cluster, node: str, path: str) -> contextlib.AbstractContextManager[None]:
    """Move a file or folder aside."""
    return changed(cluster, node, f"mv {path} {path}.aside", f"mv {path}.aside {path}")


def cut_short(cluster: Cluster, node: str, path: str) -> contextlib.AbstractContextManager[None]:
    """Have a file end after its first kilobyte, as a copy that was broken off; a link is followed."""
    real = f'"$(readlink -f {path})"'
    forth = f"cp -a {real} {real}.aside && truncate -s 1k {real}"
    return changed(cluster, node, forth, f"mv {real}.aside {real}")


def python_that(cluster: Cluster, node: str, script: str) -> contextlib.AbstractContextManager[None]:
    """Have the Python of a node's ranks be a shell script, so that they end before they say a word."""
    forth = f"mv {PYTHON} {PYTHON}.aside && printf '#!/bin/sh\\n%s\\n' '{script}' > {PYTHON} && chmod 755 {PYTHON}"
    return changed(cluster, node, forth, f"mv {PYTHON}.aside {PYTHON}")


def mounted(
    cluster: Cluster, node: str, folder: str, options: str, then: str
) -> contextlib.AbstractContextManager[None]:
    """Mount a small file system over a folder, and run a script there."""
    forth = f"mount -t tmpfs -o mode=1777,{options} tmpfs {folder}; {then}"
    return changed(cluster, node, forth, f"umount -l {folder}")


def full(cluster: Cluster, node: str, folder: str) -> contextlib.AbstractContextManager[None]:
    """Fill a file system that has the size for a job."""
    return mounted(cluster, node, folder, "size=8m", f"head -c 16m /dev/zero > {folder}/filler; true")


def read_only(cluster: Cluster, node: str, folder: str) -> contextlib.AbstractContextManager[None]:
    return mounted(cluster, node, folder, "size=64m", f"mount -o remount,ro {folder}")


@contextlib.contextmanager
def filtered(cluster: Cluster, node: str, hook: str, *rules: str) -> Iterator[None]:
    """Give a node's network a packet filter with these rules."""
    chain = "\n ".join((f"type filter hook {hook} priority 0; policy accept;", *rules))
    cluster.in_network_of(node, "nft", f"table inet planted {{\n chain planted {{\n {chain}\n }}\n}}")
    try:
        yield
    finally:
        cluster.in_network_of(node, "nft", "delete", "table", "inet", "planted")


def closed(
    cluster: Cluster, node: str, *, source: str = "", hook: str = "input", verdict: str = "drop", but: int = 0
) -> contextlib.AbstractContextManager[None]:
    """Keep connections to ports from 1024 on, all but one, from a node, from all others or from one."""
    who = f"ip saddr {cluster.box.node(source).address} " if source else ""
    ports = f"tcp dport 1024-65535 {f'tcp dport != {but} ' if but else ''}"
    rule = f"{who}{ports}tcp flags & (syn | ack) == syn {verdict}"
    return filtered(cluster, node, hook, f'iifname != "lo" {rule}' if hook == "input" else f'oifname != "lo" {rule}')


def lossy(cluster: Cluster, node: str, percent: int, source: str = "") -> contextlib.AbstractContextManager[None]:
    """Lose a share of the TCP segments that a node gets, from all others or from one."""
    who = f"ip saddr {cluster.box.node(source).address} " if source else ""
    return filtered(cluster, node, "input", f"{who}ip protocol tcp numgen random mod 100 < {percent} drop")


def small_packets_alone(cluster: Cluster, node: str, source: str) -> contextlib.AbstractContextManager[None]:
    """Lose the packets of more than 1000 bytes that a node gets from another, as a way with a small MTU does."""
    rule = f"ip saddr {cluster.box.node(source).address} meta length > 1000 drop"
    return filtered(cluster, node, "input", rule)


@contextlib.contextmanager
def slow_link(cluster: Cluster, node: str, rate: str, to: str = "", *, interface: str = "eth0") -> Iterator[None]:
    """Slow down what a node sends, to all others or to one."""
    if to:
        rules = (
            "qdisc add dev eth0 root handle 1: htb default 10",
            "class add dev eth0 parent 1: classid 1:10 htb rate 100gbit quantum 60000",
            f"class add dev eth0 parent 1: classid 1:20 htb rate {rate} quantum 60000",
            f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {cluster.box.node(to).address} flowid 1:20",
        )
    else:
        rules = (f"qdisc add dev {interface} root tbf rate {rate} burst 64kb latency 400ms",)
    for rule in rules:
        cluster.in_network_of(node, "tc", *rule.split())
    try:
        yield
    finally:
        cluster.in_network_of(node, "tc", "qdisc", "del", "dev", interface, "root")


@contextlib.contextmanager
def quota(cluster: Cluster, node: str, percent_of_a_core: int) -> Iterator[None]:
    container = cluster.box.node(node).container
    cluster.engine.run("update", "--cpu-period", "100000", "--cpu-quota", str(1000 * percent_of_a_core), container)
    try:
        yield
    finally:  # a thousand processors: podman 4 passes over a quota of -1 and keeps the old one
        cluster.engine.run("update", "--cpu-period", "100000", "--cpu-quota", "100000000", container)


@contextlib.contextmanager
def few_files(cluster: Cluster, node: str, most: int) -> Iterator[None]:
    """Limit the open files of every session (its soft limit): sessions inherit it from sshd, the first process."""
    pid = cluster.first_process(node)
    ask = ["prlimit", "--pid", pid, "--nofile", "--output", "SOFT", "--noheadings", "--raw"]
    before = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["prlimit", "--pid", pid, f"--nofile={most}:"], check=True)
    try:
        yield
    finally:
        subprocess.run(["prlimit", "--pid", pid, f"--nofile={before}:"], check=True)


@contextlib.contextmanager
def link_down(cluster: Cluster, node: str) -> Iterator[None]:
    """Take the host's end of a node's cable down; the node keeps its address and its routes."""
    number = cluster.on(node, "cat", "/sys/class/net/eth0/iflink")
    names = [
        path.parent.name for path in Path("/sys/class/net").glob("*/ifindex") if path.read_text().strip() == number
    ]
    prefix = cluster.engine.prefix
    subprocess.run([*prefix, "ip", "link", "set", names[0], "down"], check=True)
    try:
        yield
    finally:
        subprocess.run([*prefix, "ip", "link", "set", names[0], "up"], check=True)


@contextlib.contextmanager
def preloaded(cluster: Cluster, node: str, source: Path = FLIP) -> Iterator[None]:
    """Have every program of a node load a library; that of ``FLIP`` flips one bit of one rank's allreduce."""
    target = "/opt/clusterctl-flip.so"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "flip.so"
        argv = ["cc", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(argv, check=True)
        cluster.engine.run("cp", str(library), f"{cluster.box.node(node).container}:{target}")
    try:
        with cluster.with_file("/etc/ld.so.preload", f"{target}\n", nodes=(node,)):
            yield
    finally:
        cluster.on(node, "rm", target)


@contextlib.contextmanager
def flipped(cluster: Cluster, node: str) -> Iterator[None]:
    """Flip one bit of libmpi's text that no rank prints: everything runs as before, from another file."""
    script = """
import os, sys
path = os.path.realpath("/usr/local/openmpi/lib/libmpi.so.40")
with open(path, "r+b") as file:
    data = file.read()
    at = data.rindex(b"GCC: (") + 8
    file.seek(at)
    file.write(bytes([data[at] ^ 1]))
"""
    cluster.on(node, "python3", "-c", script)
    try:
        yield
    finally:
        cluster.on(node, "python3", "-c", script)


@contextlib.contextmanager
def another_libmpi(cluster: Cluster, node: str) -> Iterator[None]:
    """Have a node's ranks map a copy of the library from another folder."""
    real = cluster.on(node, "readlink", "-f", OPENMPI)
    cluster.on(node, "cp", "-a", real, f"{real}-other")
    cluster.on(node, "ln", "-sfn", f"{real}-other", OPENMPI)
    try:
        yield
    finally:
        cluster.on(node, "ln", "-sfn", Path(real).name, OPENMPI)
        cluster.on(node, "rm", "-r", f"{real}-other")


@contextlib.contextmanager
def damaged_artifact(cluster: Cluster, node: str) -> Iterator[None]:
    """Take one file away from the installed mpi4py."""
    path = cluster.on(node, "sh", "-c", "find -L /usr/local/mpi4py -name __init__.py -path '*/mpi4py/*' | head -n 1")
    with away(cluster, node, path):
        yield


@contextlib.contextmanager
def lost_in_a_collective(cluster: Cluster, node: str, program: str, *, back: str) -> Iterator[None]:
    """Have all others wait in a collective for a node that an event of the run kills or freezes; bring it back."""
    with cluster.in_every_python_of(node, program):
        try:
            yield
        finally:
            cluster.engine.run(back, cluster.box.node(node).container)
            if back == "start":
                cluster.on(node, "sh", "-c", "rm -rf /tmp/prted.* /tmp/ompi.* /dev/shm/*")  # nobody could sweep it


def foreign_mpirun(cluster: Cluster, node: str, folder: str) -> contextlib.AbstractContextManager[None]:
    """Put a folder first in PATH in which another program is called mpirun."""
    forth = (
        f"mkdir -p {folder} && printf '#!/bin/sh\\necho foreign\\n' > {folder}/mpirun && chmod 755 {folder}/mpirun && "
        f"cp -a ~cluster/.bashrc {folder}/bashrc && sed -i '1i PATH={folder}:$PATH' ~cluster/.bashrc"
    )
    return changed(cluster, node, forth, f"cat {folder}/bashrc > ~cluster/.bashrc; rm -r {folder}")


_DEAD = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
space = os.open(f"/proc/{sys.argv[1]}/ns/mnt", os.O_RDONLY)
folder = sys.argv[2].encode()
assert libc.setns(space, 0x20000) == 0, os.strerror(ctypes.get_errno())
os.makedirs(folder, exist_ok=True)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
assert libc.mount(b"dead", folder, b"fuse.dead", 0, options) == 0, os.strerror(ctypes.get_errno())
print("mounted", flush=True)
sys.stdin.read()
os.close(device)
libc.umount2(folder, 2)
os.rmdir(folder)
"""


@contextlib.contextmanager
def dead_file_system(cluster: Cluster, node: str, folder: str) -> Iterator[None]:
    """Mount a FUSE file system in a node that never answers, as one whose server is gone."""
    command = [*cluster.engine.prefix, "python3", "-c", _DEAD, cluster.first_process(node), folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout.readline() == "mounted\n"
        try:
            yield
        finally:
            server.stdin.close()
            server.wait(30)


_FREEZE = """
import os, pathlib, sys, time
node, rank = os.readlink(f"/proc/{sys.argv[1]}/ns/pid"), f"OMPI_COMM_WORLD_RANK={sys.argv[2]}".encode()
old = pathlib.Path("/sys/fs/cgroup/freezer")
group = (old if old.is_dir() else pathlib.Path("/sys/fs/cgroup")) / f"frozen-{os.getpid()}"
asked, frozen, free = ("freezer.state", "FROZEN", "THAWED") if old.is_dir() else ("cgroup.freeze", "1", "0")
group.mkdir()
homes = {}
for place in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if os.readlink(place / "ns/pid") == node and rank in (place / "environ").read_bytes().split(b"\\0"):
            lines = (place / "cgroup").read_text().splitlines()
            homes[place.name] = next(one for one in lines if (":freezer:" in one or not old.is_dir())).split(":")[2]
            (group / "cgroup.procs").write_text(place.name)
    except OSError:
        pass
assert homes
(group / asked).write_text(frozen)
print("frozen", flush=True)
sys.stdin.read()
(group / asked).write_text(free)
for pid, home in homes.items():
    try:
        (group.parent / home.strip("/") / "cgroup.procs").write_text(pid)
    except OSError:
        pass
for _ in range(100):
    try:
        group.rmdir()
        break
    except OSError:
        time.sleep(0.1)
"""


@contextlib.contextmanager
def frozen_rank(cluster: Cluster, node: str, rank: int) -> Iterator[None]:
    """Freeze a rank of a job by a control group of its own, as a manager of containers freezes one."""
    command = [*cluster.engine.prefix, "python3", "-c", _FREEZE, cluster.first_process(node), str(rank)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as freezer:
        assert freezer.stdin is not None
        assert freezer.stdout.readline() == "frozen\n"
        try:
            yield
        finally:
            freezer.stdin.close()
            freezer.wait(30)


@contextlib.contextmanager
def little_memory(cluster: Cluster, node: str, bound: int) -> Iterator[None]:
    """Let a node take so many bytes of memory; beyond them the kernel kills."""
    container = cluster.box.node(node).container
    cluster.engine.run("update", "--memory", str(bound), "--memory-swap", str(bound), container)
    try:
        yield
    finally:
        cluster.engine.run("update", "--memory", str(1 << 40), "--memory-swap", str(1 << 40), container)
