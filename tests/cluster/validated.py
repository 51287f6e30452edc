"""Provisioned nodes under validation: what can be asked of them, and the faults that can be planted in them."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.results import CheckResult, ValidationEvent, ValidationRecord
from clusterctl.sandbox import Sandbox, container_engine
from clusterctl.validation import run as validation

CLUSTERCTL = [sys.executable, "-m", "clusterctl"]
PYTHON = "^/usr/local/python_env[^ ]*/bin/python"
NODES = ("node1", "node2", "node3", "node4")

# What a test may leave another way than it was and the next one would stumble over. Fetched by root in the node.
STATE = r"""
cd /usr/local && stat -c '%N' * etc/*
find /etc ! -name ld.so.cache -type f -exec sha256sum {} +
find /usr/local/etc /usr/local/libexec -type f -exec sha256sum {} +
find /usr/local/python_env/lib/python3*/site-packages -maxdepth 1 -name '*.pth'
find /root /home -mindepth 1 \( -name .ansible -o -name .cache -o -name .bash_history \) -prune -o -print
"""
NETWORK = (["ip", "-4", "-brief", "address"], ["ip", "-4", "route"], ["nft", "list", "ruleset"], ["tc", "qdisc"])
ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=xterm")


# Finding out how podman works here takes a container's start, which would be paid dozens of times.
engine = functools.cache(container_engine.find)


def mpi_alone(box: Sandbox) -> None:
    """Have a sandbox provisioned without NCCL, a framework and Horovod, which are gigabytes."""
    variables = box.inventory.parent / "group_vars" / "all.yml"
    variables.parent.mkdir(exist_ok=True)
    wanted = {"python_env_framework": "none", "nccl_install": "never", "horovod_install": "never"}
    variables.write_text(json.dumps(wanted), encoding="utf-8")


def started_at(pid: str) -> str:
    """Return when a process of this machine was started, in the kernel's ticks; empty when it is gone."""
    try:
        return Path("/proc", pid, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class Cluster:
    """Four provisioned nodes, and the faults that can be planted in them."""

    first_s = 0.0  # what the first provision took
    last: tuple[dict[str, Any], float]  # of a shared cluster: the record of the provision that made it, and its time

    def __init__(self, box: Sandbox) -> None:
        self.box, self.engine = box, engine()
        self._first_processes: dict[str, tuple[str, str]] = {}

    def run(self, *command: str) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run a verb of the command line on the cluster's inventory; how it ended, and after how many seconds."""
        began = time.monotonic()
        argv = [*CLUSTERCTL, *command, str(self.box.inventory)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done, time.monotonic() - began

    def provision(self) -> tuple[dict[str, Any], float]:
        done, seconds = self.run("provision", "--yes", "--no-validate", "--format", "json")
        assert done.returncode == 0, done.stderr + done.stdout
        self.first_s = self.first_s or seconds
        record: dict[str, Any] = json.loads(done.stdout)
        return record, seconds

    def in_network_of(self, node: str, *argv: str) -> str:
        """Run a program of this machine as root in the network of a node."""
        command = [*self.engine.prefix, "nsenter", "--target", self.first_process(node), "--net", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def first_process(self, node: str) -> str:
        """Return the pid that a node's first process has on this machine; a node that starts again has another."""
        container = self.box.node(node).container
        known = self._first_processes.get(container)
        if known is None or known[1] != started_at(known[0]):
            pid = self.engine.text("inspect", "--format", "{{.State.Pid}}", container)
            known = self._first_processes[container] = (pid, started_at(pid))
        return known[0]

    def everywhere(self, ask: Callable[[str], list[str]], nodes: tuple[str, ...]) -> list[str]:
        """Ask nodes, all at once, and return their lines in the order of the nodes."""
        with ThreadPoolExecutor(len(nodes)) as pool:
            return [line for lines in pool.map(ask, nodes) for line in lines]

    @contextlib.contextmanager
    def second_network(
        self, interface: str, cidr: str, nodes: tuple[str, ...] = NODES, *, mtu: int = 1500
    ) -> Iterator[None]:
        """Join nodes by a bridge on this machine: each gets one more interface with an address of that network."""
        addresses = ipaddress.ip_network(cidr).hosts()
        bridge = f"br-{interface}-{os.getpid()}"[:15]
        ends = [f"{number}-{interface}-{os.getpid()}"[:15] for number in range(len(nodes))]

        def ip(*argv: str) -> None:
            subprocess.run([*self.engine.prefix, "ip", *argv], capture_output=True, check=True)

        made = []
        try:
            for name, link in (
                (bridge, ["bridge"]),
                *((end, ["veth", "peer", "name", f"{end[:14]}p"]) for end in ends),
            ):
                ip("link", "add", name, "type", *link)
                made.append(name)
            for node, end in zip(nodes, ends, strict=True):
                pid = self.engine.text("inspect", "--format", "{{.State.Pid}}", self.box.node(node).container)
                ip("link", "set", f"{end[:14]}p", "netns", pid, "name", interface)
                ip("link", "set", end, "master", bridge, "up")
                address = f"{next(addresses)}/{cidr.partition('/')[2]}"
                self.in_network_of(node, "ip", "address", "add", address, "dev", interface)
                self.in_network_of(node, "ip", "link", "set", interface, "up", "mtu", str(mtu))
                ip("link", "set", end, "mtu", str(mtu))
            ip("link", "set", bridge, "up")
            yield
        finally:
            for name in made:
                with contextlib.suppress(subprocess.CalledProcessError):  # it was never made
                    ip("link", "delete", name)

    @contextlib.contextmanager
    def cable(self, ends: dict[str, str], cidr: str, *, mtu: int = 9000) -> Iterator[None]:
        """Join two nodes directly: by node the name of its interface, with the first two addresses of the network."""
        names = [f"cable{side}{os.getpid()}"[:15] for side in "ab"]
        ip = [*self.engine.prefix, "ip", "link"]
        addresses = ipaddress.ip_network(cidr).hosts()
        subprocess.run(
            [*ip, "add", names[0], "type", "veth", "peer", "name", names[1]], capture_output=True, check=True
        )
        placed = []
        try:
            for (node, interface), name in zip(ends.items(), names, strict=True):
                pid = self.engine.text("inspect", "--format", "{{.State.Pid}}", self.box.node(node).container)
                subprocess.run([*ip, "set", name, "netns", pid, "name", interface], capture_output=True, check=True)
                placed.append((node, interface))
                address = f"{next(addresses)}/{cidr.partition('/')[2]}"
                self.in_network_of(node, "ip", "address", "add", address, "dev", interface)
                self.in_network_of(node, "ip", "link", "set", interface, "up", "mtu", str(mtu))
            yield
        finally:
            for node, interface in placed[:1]:  # the other end goes with it
                self.in_network_of(node, "ip", "link", "delete", interface)
            subprocess.run([*ip, "delete", names[0]], capture_output=True, check=False)  # where no end was placed

    @contextlib.contextmanager
    def with_file(self, path: str, text: str, *, owner: str = "root", nodes: tuple[str, ...] = NODES) -> Iterator[None]:
        """Give nodes a file with this text for a while; one that is there is put aside."""
        aside = f"{path}.before-{time.monotonic_ns()}"
        put = 'test ! -e "$1" || mv "$1" "$2"; mkdir -p "$(dirname "$1")"; printf %s "$3" > "$1"; chown "$4" "$1"'
        back = 'rm "$1"; test ! -e "$2" || mv "$2" "$1"; rmdir --ignore-fail-on-non-empty "$(dirname "$1")"'
        for node in nodes:
            self.on(node, "sh", "-c", put, "sh", path, aside, text, owner)
        try:
            yield
        finally:
            for node in nodes:
                self.on(node, "sh", "-c", back, "sh", path, aside)

    def state(self) -> list[str]:
        """Return lines that tell how the nodes are made: links, settings, files of users, networks and their rules."""
        return self.everywhere(self._state_of, tuple(node.name for node in self.box.nodes))

    def _state_of(self, node: str) -> list[str]:
        lines = self.on(node, "sh", "-c", STATE).splitlines()
        for command in NETWORK:
            lines += re.sub(r"@if\d+", "", self.in_network_of(node, *command)).splitlines()
        return [f"{node}: {' '.join(line.split())}" for line in sorted(lines)]

    def on(self, node: str, *argv: str) -> str:
        """Run a program as root in a node and return its output; ten times cheaper than ``podman exec``."""
        inside = ["--target", self.first_process(node), "--mount", "--uts", "--ipc", "--net", "--pid"]
        command = [*self.engine.prefix, "nsenter", *inside, "--", "env", "-i", *ENVIRONMENT, *argv]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0:
            raise container_engine.failure(f"{argv[0]} on {node}", done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace").strip()

    def validate(
        self, *checks: str, on_event: Callable[[ValidationEvent], None] | None = None, **options: Any
    ) -> ValidationRecord:
        """Validate with ``ValidationOptions``; no test's verdict depends on what other tests measured before it."""
        given = validation.ValidationOptions(checks=checks or None, **{"remembered": False, **options})
        return validation.validate(self.box.inventory, given, on_event)

    def command(self, *options: str) -> list[str]:
        return [*CLUSTERCTL, "validate", str(self.box.inventory), *options]

    def left_behind(self, nodes: tuple[str, ...] = NODES) -> list[str]:
        """Return processes of the cluster's user, and files of Open MPI with all that is in them, by node."""
        script = (
            "ps -u cluster -o pid=,ppid=,stat=,etimes=,comm=,args= | awk '$5 !~ /^(sshd|ps)$/'; "
            "find /tmp /dev/shm -mindepth 1 -maxdepth 1 -user cluster "
            "-exec find {} -printf '%p %s bytes, %t\\n' \\;; true"
        )
        return self.everywhere(
            lambda node: [f"{node}: {line}" for line in self.on(node, "sh", "-c", script).splitlines()], nodes
        )

    def remove_torch_litter(self) -> None:
        """Remove what PyTorch itself leaves in /tmp wherever it is started: torchrun's logs, the compiler's cache."""
        for node in self.box.nodes:
            self.on(node.name, "sh", "-c", "rm -rf /tmp/torchelastic_* /tmp/torchinductor_*")

    def is_clean(self, nodes: tuple[str, ...] = NODES, within_s: float = 15) -> bool:
        """Wait until nothing of a job is left on the nodes; fail with what it is and how old it is."""
        began = time.monotonic()
        while (left := self.left_behind(nodes)) and time.monotonic() < began + within_s:
            time.sleep(0.5)
        if left:
            found = "\n  ".join(left)
            pytest.fail(f"After {time.monotonic() - began:.0f} s this is left on the nodes:\n  {found}")
        return True

    def when_a_rank_runs(self, node: str, check: str, act: str, after_s: float = 0) -> None:
        """Have the node itself do something to one of its ranks as soon as it has one, or so much later."""
        self.when_there_is(node, f"{PYTHON}.*_checks.py --check {check}", act, after_s)

    def when_there_is(self, node: str, pattern: str, act: str, after_s: float = 0) -> None:
        """Have the node itself do something to the newest process whose command line is like that."""
        found = f"rank=$(pgrep -n -f '{pattern}')"
        script = f"for try in $(seq 3000); do {found} && break; sleep 0.02; done; sleep {after_s}; {found}; {act}"
        self.engine.run("exec", "-d", self.box.node(node).container, "bash", "-c", script)

    @contextlib.contextmanager
    def in_every_python_of(self, node: str, program: str) -> Iterator[None]:
        """Have the cluster's Python on a node run a program of ours at its start, as a broken environment might."""
        site = self.on(node, "sh", "-c", "echo /usr/local/python_env/lib/python3*/site-packages")
        self.on(
            node,
            "sh",
            "-c",
            'printf %s "$1" > "$2/planted.py"; echo import planted > "$2/planted.pth"',
            "sh",
            program,
            site,
        )
        try:
            yield
        finally:
            self.on(node, "rm", f"{site}/planted.py", f"{site}/planted.pth")


def patient(folder: Path, extends: str, more: str = "") -> Path:
    """Write a suite that blames nobody for speed: other tests share the cores, so healthy nodes wait for each other.

    Lost packets are named all the same.
    """
    path = folder / "validation.yml"
    path.write_text(f"extends: {extends}\noutliers: {{floor: 99 %}}\n{more}", encoding="utf-8")
    return path


def result(record: ValidationRecord, check: str) -> CheckResult:
    return next(found for found in record.checks if found.check == check)
