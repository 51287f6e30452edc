"""Hundreds of nodes on one machine: each has an address, processes, an sshd and files of its own over a shared image.

    python tests/scale/netns_nodes.py up NAME COUNT
    python tests/scale/netns_nodes.py down NAME

Needs root. All that a cluster is made of lies in one folder, whose record names every process by id and start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import TypedDict

from clusterctl.sandbox import container_engine, images, lifecycle
from clusterctl.sandbox.model import (
    Sandbox,
    SandboxNode,
    check_name,
    hardware_address,
    hosts_text,
    inventory_text,
    known_hosts_text,
    used_networks,
)
from netns_meter import Group

IMAGE = "debian12"
_BASE = Path("/var/tmp")  # noqa: S108 - a folder of root's own is made below it, on a disk and not in memory
_INIT = Path(__file__).with_name("netns_init.sh")
_POOL = IPv4Network("10.88.0.0/13")
_FIRST_HOST = 10
_NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default")
_PATIENCE_S = 300
_CHUNK = 32
_POLL_S = 0.05


class Record(TypedDict):
    """What a cluster is made of beside its folder."""

    bridge: str
    processes: dict[str, tuple[int, str]]  # by node: its process on this machine, and when that was started
    settings: dict[str, tuple[str, str]]  # by setting of the machine: its value before, and ours


@dataclass(frozen=True)
class Nodes:
    """A cluster of nodes that run."""

    box: Sandbox
    folder: Path
    group: Group  # all processes of all nodes
    bridge: str

    def inventory(self, count: int, more: str = "") -> Path:
        """Write the inventory of the first nodes, and return its path."""
        path = self.box.inventory
        few = self.box.model_copy(update={"nodes": self.box.nodes[:count]})
        path.write_text(inventory_text(few) + more, encoding="utf-8")
        return path

    def processes(self) -> dict[str, int]:
        """Return by node the process on this machine that all of the node ends with."""
        record: Record = json.loads((self.folder / "record.json").read_text(encoding="utf-8"))
        return {name: process for name, (process, _) in record["processes"].items()}

    def on(self, name: str, *argv: str) -> str:
        """Run a program as root on a node, and return its output."""
        outer = self.processes()[name]
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text(encoding="ascii").split()[0]
        inside = ["nsenter", "--target", inner, "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wdns=/"]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run([*inside, "env", "-i", path, *argv], check=True, capture_output=True, text=True)
        return done.stdout

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that this machine has sent to the nodes, and those that it has received."""
        counters = Path("/sys/class/net", self.bridge, "statistics")
        sent, received = (int((counters / f"{way}_bytes").read_text(encoding="ascii")) for way in ("tx", "rx"))
        return sent, received


def folder_of(name: str) -> Path:
    check_name(name)
    return _BASE / f"clusterctl-scale-{name}"


def mark_of(name: str) -> str:
    """Return the name of the bridge, which also begins the names of the other interfaces on this machine."""
    return f"cs{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def up(name: str, count: int) -> Nodes:
    """Make a cluster; one of that name is removed first."""
    down(name)
    folder = folder_of(name)
    folder.mkdir(mode=0o700)
    record: Record = {"bridge": mark_of(name), "processes": {}, "settings": {}}
    try:
        box = _describe(name, count, folder)
        _keep(folder, record)
        _image(box, folder)
        group = Group(folder.name)
        group.make()
        _network(box, record, folder)
        for start in range(0, count, _CHUNK):  # each waits for the last one's sshd, so that no start is given up
            _start(box.nodes[start : start + _CHUNK], box, record, folder, group)
        keys = {node.address: _host_key(folder / node.name) for node in box.nodes}
        box.known_hosts.write_text(known_hosts_text(keys), encoding="utf-8")
        nodes = Nodes(box, folder, group, record["bridge"])
        nodes.inventory(count)
    except BaseException:
        down(name)
        raise
    return nodes


def down(name: str) -> None:
    """Remove a cluster: its processes by id, its bridge by name, its folder and its group."""
    folder = folder_of(name)
    with contextlib.suppress(FileNotFoundError):
        record: Record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        for process, start in record["processes"].values():
            if _started(process) == start:
                os.kill(process, signal.SIGKILL)
        for process, start in record["processes"].values():
            _gone(process, start)
        subprocess.run(["ip", "link", "delete", record["bridge"]], capture_output=True, check=False)
        for setting, (before, ours) in record["settings"].items():
            if (_NEIGHBOURS / setting).read_text(encoding="ascii").strip() == ours:
                (_NEIGHBOURS / setting).write_text(before, encoding="ascii")
    if folder.exists():
        shutil.rmtree(folder)
    Group(folder.name).remove()


def _describe(name: str, count: int, folder: Path) -> Sandbox:
    length = 32 - math.ceil(math.log2(count + _FIRST_HOST + 3))
    used = used_networks(Path("/proc/net/route").read_text(encoding="ascii"))
    subnet = next(one for one in list(_POOL.subnets(new_prefix=length))[::-1] if not any(map(one.overlaps, used)))
    nodes = tuple(
        SandboxNode(
            name=f"node{number}",
            container=f"{folder.name}-node{number}",
            address=str(subnet[_FIRST_HOST + number]),
            image=IMAGE,
            state="running",
        )
        for number in range(1, count + 1)
    )
    return Sandbox(
        name=name, network=folder.name, subnet=str(subnet), images=(IMAGE,), nodes=nodes,
        inventory=folder / "site" / "inventory.ini", private_key=folder / "id_ed25519",
        known_hosts=folder / "known_hosts",
    )  # fmt: skip


def _image(box: Sandbox, folder: Path) -> None:
    """Lay out the sandbox's own image once, with the login key, certificates and settings that its nodes have."""
    box.inventory.parent.mkdir()
    engine = container_engine.find()

    def report(text: str) -> None:
        print(text, file=sys.stderr)  # noqa: T201 - what is awaited

    reference = images.ensure(engine, IMAGE, report)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", box.network, "-f", str(box.private_key)]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    lower = folder / "image"
    lower.mkdir(mode=0o755)
    engine.run("create", "--pull", "never", "--name", box.network, reference)
    try:
        with subprocess.Popen(engine.argv("export", box.network), stdout=subprocess.PIPE) as exporting:
            subprocess.run(["tar", "-x", "-p", "-C", str(lower)], stdin=exporting.stdout, check=True)
    finally:
        engine.run("rm", "--force", "--time", "0", box.network)
    outfit = lifecycle.outfit_of(engine, box, IMAGE, reference, report)
    subprocess.run(["tar", "-x", "-p", "-C", str(lower)], input=outfit, check=True)


def _network(box: Sandbox, record: Record, folder: Path) -> None:
    """Make the bridge, with room for the neighbours of all nodes: the kernel counts them over all namespaces."""
    subnet = IPv4Network(box.subnet)
    bridge, gateway = record["bridge"], str(subnet[1])
    wanted = str(max(1024, 2 * len(box.nodes) ** 2))
    for setting in ("gc_thresh3", "gc_thresh2"):
        before = (_NEIGHBOURS / setting).read_text(encoding="ascii").strip()
        if int(before) < int(wanted):
            record["settings"][setting] = (before, wanted)
            _keep(folder, record)
            (_NEIGHBOURS / setting).write_text(wanted, encoding="ascii")
    _ip(
        f"link add {bridge} address {hardware_address(gateway)} type bridge",
        f"address add {gateway}/{subnet.prefixlen} dev {bridge}",
        f"link set {bridge} up",
    )


def _start(chosen: tuple[SandboxNode, ...], box: Sandbox, record: Record, folder: Path, group: Group) -> None:
    """Start nodes, give each its interface, let all go on, and wait for their sshd."""
    subnet = IPv4Network(box.subnet)
    started: dict[str, subprocess.Popen[str]] = {}
    for node in chosen:
        own = folder / node.name
        for part in ("", "upper", "upper/etc", "work", "root"):
            (own / part).mkdir(mode=0o755)
        (own / "upper" / "etc" / "hosts").write_text(hosts_text(node), encoding="ascii")
        (own / "upper" / "etc" / "hostname").write_text(f"{node.name}\n", encoding="ascii")
        address = f"{node.address}/{subnet.prefixlen}"
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
        init = [str(_INIT), str(own), str(folder / "image"), node.name, address, str(subnet[1])]
        pipe = subprocess.PIPE
        within = group.enter(["unshare", *spaces, "sh", *init])  # before the fork, or a node's processes count nowhere
        process = subprocess.Popen(within, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        record["processes"][node.name] = (process.pid, _started(process.pid))
        started[node.name] = process
    _keep(folder, record)
    for name, process in started.items():
        if process.stdout is None or process.stdout.readline() != "ready\n":
            sys.exit(f"{name} did not get namespaces of its own")
    first = len(record["processes"]) - len(started)
    lines = []
    for number, node in enumerate(chosen, first):
        end, process = f"{record['bridge']}n{number}", started[node.name]
        peer = f"name eth0 address {node.hardware_address} netns {process.pid}"
        lines += [f"link add {end} type veth peer {peer}", f"link set {end} master {record['bridge']} up"]
    _ip(*lines)
    for process in started.values():
        _go(process)
    for node in chosen:
        _wait(node, folder / node.name)


def _go(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None and process.stdout is not None:
        process.stdin.write("go\n")
        process.stdin.close()
        process.stdout.close()


def _wait(node: SandboxNode, own: Path) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection((node.address, 22), timeout=2) as connection:
            if connection.recv(15, socket.MSG_WAITALL) == b"SSH-2.0-OpenSSH":
                return
        if time.monotonic() > end:
            sys.exit(f"{node.name} has no sshd after {_PATIENCE_S} s: {(own / 'log').read_text(encoding='utf-8')}")
        time.sleep(_POLL_S)


def _host_key(own: Path) -> str:
    return (own / "upper/etc/ssh/ssh_host_ed25519_key.pub").read_text(encoding="ascii")


def _ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def _keep(folder: Path, record: Record) -> None:
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")


def _started(process: int) -> str:
    """Return when a process was started, in the kernel's ticks; empty when it is gone or has only to be waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _gone(process: int, start: str) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)
    while _started(process) == start:
        time.sleep(_POLL_S)


def main() -> None:
    match sys.argv[1:]:
        case ["up", name, count]:
            print(up(name, int(count)).box.inventory)  # noqa: T201 - what the command is for
        case ["down", name]:
            down(name)
        case _:
            sys.exit((__doc__ or "").strip())


if __name__ == "__main__":
    main()
