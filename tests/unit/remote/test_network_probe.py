"""Connections between nodes with firewalls and small MTUs: addresses 127.1.0.0/16 of a network namespace are the nodes.

Each program that ssh would start runs in the namespace, which has the rules of nftables that a case gives it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model import fabric
from clusterctl.model.hosts import Host
from clusterctl.remote import network_probe

_SPACE = ["unshare", "--map-root-user", "--net"]
_TRY = """
import dataclasses, json, subprocess, sys
from clusterctl.diagnosis.rules import network
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model import fabric
from clusterctl.model.hosts import Host
from clusterctl.remote import network_probe

names, rules, seed = json.loads(sys.argv[1])
addresses = {name: f"127.1.0.{number}" for number, name in enumerate(names, 1)}
subprocess.run(["ip", "link", "set", "lo", "up", "mtu", "1500"], check=True)
for address in addresses.values():
    subprocess.run(["ip", "address", "add", f"{address}/16", "dev", "lo"], check=True)
chain = ["chain input {", "type filter hook input priority 0; policy accept;", *rules, "}"]
subprocess.run(["nft", "-f", "-"], input="\\n".join(["table inet f {", *chain, "}"]), text=True, check=True)
found = fabric.Candidates((fabric.Network(("127.1.0.0/16",), dict.fromkeys(names, "lo"), addresses),), ())
hosts = [Host(name, address, python=sys.executable) for name, address in addresses.items()]
limits = network_probe.TrialLimits(1.0, 40, seed=seed, ports=dict.fromkeys(names, ((1024, 256), (0, 0))))
first = network_probe.probe(hosts, found, limits)
pairs = network_probe.confirmed(hosts, found, limits, first)
view = View(hosts=tuple(hosts), nodes=dict.fromkeys(names), candidates=found, pairs=pairs)
wrong = [("node1", "node2", address) for address in ("127.1.0.2", "127.1.0.3", "10.9.9.9")]
called = [network_probe.called(hosts, found, limits, [name]) for name in wrong] if not rules else []
network._judged = lambda view: (found.networks[0], None)
print(json.dumps({
    "connections": sum(len(one.closed) + len(one.open) for one in first),
    "called": [(one.network, one.kind) for (one,) in called],
    "findings": [(one.severity, one.hosts, one.cause) for one in network.between(view)],
}))
"""
NODES = [f"node{number}" for number in range(1, 5)]


def tried(folder: Path, rules: list[str], names: list[str] = NODES, seed: int = 3) -> dict[str, Any]:
    """Return what is found with these rules of the input chain."""
    if shutil.which("nft", path="/usr/sbin:/sbin") is None or subprocess.run([*_SPACE, "true"], check=False).returncode:
        pytest.skip("needs nft and user namespaces")
    ssh = folder / "ssh"
    ssh.write_text('#!/bin/bash\nexec sh -c "${!#}"\n')
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    given = json.dumps([names, rules, seed])
    done = subprocess.run(
        [*_SPACE, sys.executable, "-c", _TRY, given],
        env={**os.environ, "PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def where(target: int, source: int | None = None) -> str:
    return f"ip daddr 127.1.0.{target}" + (f" ip saddr 127.1.0.{source}" if source else "")


LARGE = "meta length > 1400 drop"
PROHIBITED = "reject with icmp type host-prohibited"
IN = "in 127.1.0.0/16"


@pytest.mark.programs
@pytest.mark.parametrize(
    ("rules", "hosts", "cause"),
    [
        (
            [f"{where(3)} ct state new tcp dport != 22 {PROHIBITED}"],
            ["node3"],
            f"connections from node[1-2,4] to it {IN} are rejected (No route to host)",
        ),
        (
            [f"{where(3, 2)} ct state new {PROHIBITED}"],
            ["node2", "node3"],
            f"connections from node2 to node3 {IN} are rejected (No route to host)",
        ),
        (
            [f"{where(3, 2)} ct state new reject with icmp type net-unreachable"],
            ["node2", "node3"],
            f"connections from node2 to node3 {IN} are rejected (Network is unreachable)",
        ),
        (
            [f"{where(3, 2)} {LARGE}"],
            ["node2", "node3"],
            f"connections from node2 to node3 {IN} carry small packets and lose large ones",
        ),
        (
            [f"{where(3)} {LARGE}"],
            ["node3"],
            f"connections from node[1-2,4] to it {IN} carry small packets and lose large ones",
        ),
        (
            [f"{where(3)} tcp dport 45000-65535 ct state new drop"],
            ["node3"],
            f"connections from node[1-2,4] to it {IN} time out on ports ",
        ),
        (
            [f"{where(3)} tcp dport 1024-32767 ct state new drop"],
            ["node3"],
            f"connections from node[1-2,4] to it {IN} time out on port 1",
        ),
        (
            ["tcp dport 45000-65535 ct state new drop"],
            NODES,
            f"connections between them {IN} time out on 16 ports from ",
        ),
    ],
)
def test_what_a_firewall_or_a_small_mtu_stops_is_named(
    tmp_path: Path, rules: list[str], hosts: list[str], cause: str
) -> None:
    ((severity, found, words),) = tried(tmp_path, rules)["findings"]
    assert (severity, found) == ("error", hosts)
    assert words.startswith(cause)


@pytest.mark.programs
def test_healthy_nodes_have_no_finding_and_each_port_is_tried_by_someone(tmp_path: Path) -> None:
    found = tried(tmp_path, [])
    assert found["findings"] == []
    assert found["connections"] == 4 * 9  # 8 ports of each node, shared by 3 sources
    assert found["called"] == [["names", "ok"], ["names", "wrong_node"], ["names", "no_route"]]


def connections(count: int, before: int = 0) -> int:
    """Return how many connections a trial between so many nodes makes, each with 8 ports."""
    names = [f"node{number}" for number in range(count)]
    network = fabric.Network(("10.0.0.0/16",), dict.fromkeys(names, "eth0"), dict.fromkeys(names, "10.0.0.1"))
    peers = {name: network_probe._Peer(Host(name, name), network_probe.TrialLimits()) for name in names}  # noqa: SLF001
    for peer in peers.values():
        peer.ports = {network.key: list(range(40000, 40008))}
    failed = [fabric.PairResult(network.key, names[0], names[1], "", "timeout", (40001,), (40002,))] * before
    plan = fabric.pairs(names)
    found = network_probe._targets(fabric.Candidates((network,), ()), plan, peers, failed)  # noqa: SLF001
    tried_ports = {(one["name"], one["port"]) for its in found.values() for one in its}
    assert before or len(tried_ports) == 8 * count
    return sum(map(len, found.values()))


def test_the_number_of_connections_is_bounded() -> None:
    assert connections(2) == 2 * 8
    assert connections(8) == 56 * 2
    assert connections(32) == 32 * 31
    assert connections(512) < 512 * (10 + 8)
    assert connections(32, before=1) <= 32 * 64


def test_a_node_tells_of_the_connections_alone_that_it_was_to_try() -> None:
    names = ["node1", "node2", "node3"]
    network = fabric.Network(("10.0.0.0/16",), dict.fromkeys(names, "eth0"), dict.fromkeys(names, "10.0.0.1"))
    peers = {name: network_probe._Peer(Host(name, name), network_probe.TrialLimits()) for name in names}  # noqa: SLF001
    for key in (network.key, "10.9.0.0/16", fabric.NAMES):
        for target in ("node2", "node3", "node9"):
            peers["node1"].results[key, target].append(("cut_back", "", 40000))
    plan = (("node1", "node2"), ("node2", "node3"), ("node3", "node2"))
    found = network_probe._results(fabric.Candidates((network,), ()), plan, peers)  # noqa: SLF001
    assert [(one.network, one.source, one.target) for one in found if one.kind == "cut"] == [
        (network.key, "node2", "node1")
    ]
