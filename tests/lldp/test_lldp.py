"""Which switch each node hangs on, as real lldpd daemons tell: two leaves with two nodes each, in network namespaces.

Its own make target, since it installs packages and makes namespaces as root.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.analysis import culprit_words, outliers, robust_stats
from clusterctl.support import content
from clusterctl.validation import team
from noisy_links import of_all

WAIT_S = 60.0
LEAVES = {"leaf1": ("node1", "node2"), "leaf2": ("node3", "node4")}
NODES = tuple(itertools.chain(*LEAVES.values()))
DAEMON = """
hostname "$1"
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$1" > "$2/hosts.$1"
mount --bind "$2/hosts.$1" /etc/hosts
mount -t tmpfs none /run
mkdir /run/lldpd
exec lldpd -d -u "$2/$1.socket" -p /run/lldpd.pid
"""
LOOK = """
mount -t tmpfs none /run
ln -s "$1" /run/lldpd.socket
exec "$2" -c "$3"
"""
PROBE = """
import json, os, resource, sys
sys.path.append(%r)
from node_look import network
who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
used = lambda: sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, who))
%s
begin = used()
found = network.switch_ports()
print(json.dumps({**found, "cpu_s": used() - begin}))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Wires:
    """Namespaces of the leaves and the nodes, with a daemon in each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, dict[str, Any]] = {}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def space(self, name: str) -> str:
        return f"lldp-{os.getpid()}-{name}"

    def up(self) -> None:
        for leaf, nodes in LEAVES.items():
            ip("netns", "add", self.space(leaf))
            ip("-n", self.space(leaf), "link", "add", "br0", "type", "bridge")
            ip("-n", self.space(leaf), "link", "set", "br0", "up")
            for number, node in enumerate(nodes, start=1):
                ip("netns", "add", self.space(node))
                other = ("peer", "name", f"swp{number}", "netns", self.space(leaf))
                ip("link", "add", "eth0", "netns", self.space(node), "type", "veth", *other)
                ip("-n", self.space(node), "link", "add", "br1", "type", "bridge")  # as a host of containers has one
                ip("-n", self.space(node), "link", "set", "eth0", "master", "br1", "up")
                ip("-n", self.space(node), "link", "set", "br1", "up")
                ip("-n", self.space(leaf), "link", "set", f"swp{number}", "master", "br0", "up")
        for name in (*LEAVES, *NODES):
            argv = ["ip", "netns", "exec", self.space(name), "unshare", "--uts", "sh", "-c", DAEMON, "sh"]
            with (self.folder / f"{name}.log").open("wb") as log:
                self._daemons.append(
                    subprocess.Popen([*argv, name, str(self.folder)], stdout=log, stderr=subprocess.STDOUT)
                )

    def down(self) -> None:
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait()
        for name in (*LEAVES, *NODES):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", self.space(name))

    def look(self, node: str, first: str = "") -> dict[str, Any]:
        """Look at the switches of a node, after a first statement."""
        argv = ["ip", "netns", "exec", self.space(node), "sh", "-c", LOOK, "sh", str(self.folder / f"{node}.socket")]
        program = PROBE % (str(content.root() / "plugins" / "module_utils"), first)
        answer = subprocess.run([*argv, sys.executable, program], capture_output=True, check=True, text=True)
        found: dict[str, Any] = json.loads(answer.stdout)
        return found


@pytest.fixture(scope="module")
def wires() -> Iterator[Wires]:
    """Make the namespaces; lldpd drops root before it opens its socket, so pytest's own folder is closed to it."""
    if os.geteuid():
        pytest.skip("network namespaces need root")
    with tempfile.TemporaryDirectory(prefix="lldp-") as folder:
        one = Wires(Path(folder))
        one.folder.chmod(0o755)
        try:
            one.up()
            yield one
        finally:
            one.down()


def heard(wires: Wires) -> dict[str, dict[str, Any]]:
    """Return what each node says, once each has heard its leaf."""
    deadline = time.monotonic() + WAIT_S
    while missing := [node for node in NODES if not wires.found.get(node, {}).get("switch_ports")]:
        assert time.monotonic() < deadline, wires.found
        for leaf in LEAVES:  # by itself a daemon tells at its start, and then every 30 seconds
            tell = ["lldpcli", "-u", str(wires.folder / f"{leaf}.socket"), "update"]
            subprocess.run(tell, capture_output=True, check=False)
        time.sleep(0.5)
        wires.found.update({node: wires.look(node) for node in missing})
    return wires.found


def test_each_node_names_the_leaf_and_the_port_that_it_hangs_on(wires: Wires) -> None:
    found = heard(wires)
    told = {
        node: [(one["interface"], one["above"], one["switch"], one["port"], one["source"]) for one in each]
        for node, each in ((node, found[node]["switch_ports"]) for node in NODES)
    }
    assert told == {
        node: [("eth0", ["br1"], leaf, f"swp{number}", "lldpd")]
        for leaf, nodes in LEAVES.items()
        for number, node in enumerate(nodes, start=1)
    }
    print(f"CPU of a node: {max(one['cpu_s'] for one in found.values()) * 1000:.1f} ms")  # noqa: T201 - for docs


def test_the_words_of_a_boundary_name_both_leaves(wires: Wires) -> None:
    fabric = {"cidrs": ["10.0.0.0/24"], "interface": "br1", "address": "10.0.0.1"}
    facts = {
        node: factory.node(node, fabric=fabric, switch_ports=found["switch_ports"])
        for node, found in heard(wires).items()
    }
    known = team.of_nodes(facts, {})
    assert known == {node: (leaf,) for leaf, nodes in LEAVES.items() for node in nodes}
    groups = tuple(LEAVES.values())
    assert culprit_words.between(groups, culprit_words.apart(groups, known)) == (
        "between node[1-2] on leaf1 and node[3-4] on leaf2"
    )
    racks = {**known, **{f"node{number}": ("leaf1",) for number in (5, 6)}, "node7": ("leaf2",), "node8": ("leaf2",)}
    links = list(itertools.combinations(sorted(racks), 2))
    matrix = of_all(8, [1e9 if racks[one] == racks[other] else 0.8e9 for one, other in links])
    (culprit,) = outliers.among_links(matrix.model_copy(update={"switches": racks}), robust_stats.OutlierPolicy())
    assert culprit.words.startswith("between node[1-2,5-6] on leaf1 and node[3-4,7-8] on leaf2: ")


def test_a_login_that_may_not_ask_lldpd_tells_nothing_and_has_no_problem(wires: Wires) -> None:
    assert heard(wires)["node1"]["switch_ports"]
    assert wires.look("node1", "os.setgroups([]); os.setuid(65534)")["switch_ports"] == []
