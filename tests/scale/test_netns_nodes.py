"""Nodes out of namespaces are machines of their own, and nothing of them stays."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import netns_nodes
import pytest

NAME = f"test-netns-{os.getpid()}"
SETTINGS = Path("/proc/sys/net/ipv4/neigh/default")


def of_this_machine() -> list[str]:
    """Return what a cluster adds to the machine: interfaces, mounts, control groups, limits of neighbours."""
    links = subprocess.run(["ip", "-brief", "link"], check=True, capture_output=True, text=True).stdout
    mark = netns_nodes.mark_of(NAME)
    folder = netns_nodes.folder_of(NAME)
    found = [line.split()[0] for line in links.splitlines() if line.startswith(mark)]
    found += [line for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines() if str(folder) in line]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{folder.name}")]
    found += [str(folder)] if folder.exists() else []
    return [*found, *(path.read_text(encoding="ascii") for path in sorted(SETTINGS.glob("gc_thresh*")))]


def test_each_is_a_machine_of_its_own_and_none_stays() -> None:
    before = of_this_machine()
    try:
        nodes = netns_nodes.up(NAME, 3)
        own = [(nodes.on(name, "hostname").strip(), nodes.on(name, "ip", "-br", "a")) for name in ("node1", "node3")]
        assert [name for name, _ in own] == ["node1", "node3"]
        assert all(node.address in text for node, (_, text) in zip(nodes.box.nodes[::2], own, strict=True))
        keys = nodes.box.known_hosts.read_text(encoding="utf-8").splitlines()
        assert len({line.split()[2] for line in keys}) == 3
        nodes.on("node1", "sh", "-c", "echo mine >/etc/mine")
        with pytest.raises(subprocess.CalledProcessError):
            nodes.on("node2", "cat", "/etc/mine")
        assert not Path("/etc/mine").exists()
        assert not (nodes.folder / "image/etc/mine").exists()
        with pytest.raises(subprocess.CalledProcessError):  # settings of the machine
            nodes.on("node1", "sh", "-c", "echo 1 >/proc/sys/kernel/panic")
        processes = nodes.processes()
        assert len(processes) == 3
    finally:
        netns_nodes.down(NAME)
    assert of_this_machine() == before
    assert [process for process in processes.values() if Path(f"/proc/{process}").exists()] == []


def test_a_maker_that_dies_leaves_what_down_removes() -> None:
    before = of_this_machine()
    script = f"import netns_nodes, os; netns_nodes._wait = lambda *_: os._exit(9); netns_nodes.up({NAME!r}, 2)"
    folder = str(Path(netns_nodes.__file__).parent)
    died = subprocess.run(
        [netns_nodes.sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": folder}, check=False
    )
    assert died.returncode == 9
    netns_nodes.down(NAME)
    assert of_this_machine() == before
