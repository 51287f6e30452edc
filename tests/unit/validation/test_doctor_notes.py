"""What doctor finds in the gate's facts stands in the record of a validation as notes."""

from __future__ import annotations

from typing import Any

import factory
from clusterctl.model.facts import NodeFacts
from clusterctl.model.probe import Probe
from clusterctl.validation import gate

OWN = "its own name leads to 127.0.1.1, at which no other node finds it"


def node(name: str, own: str, mtu: int = 1500) -> NodeFacts:
    number = int(name[-1])
    address = {"family": 4, "address": f"10.0.0.{number}", "prefix": 24, "scope": "global"}
    link: dict[str, Any] = {"name": "eth0", "kind": "physical", "mac": f"02:{number}", "up": True, "carrier": True}
    return factory.provisioned(
        name,
        number,
        stack=False,
        shm_bytes=1 << 30,
        interfaces=[{**link, "mtu": mtu, "addresses": [address]}],
        names=[{"name": name, "addresses": [own]}],
    )


def probe(own: str, mtu: int = 1500) -> Probe:
    healthy = {name: node(name, f"10.0.0.{name[-1]}") for name in ("node1", "node2")}
    return Probe({**healthy, "node3": node("node3", own, mtu)})


def test_errors_and_warnings_about_the_network_are_notes_with_node_and_cure() -> None:
    cluster = factory.inventory(["node1", "node2", "node3"])
    assert gate.of(cluster, probe("10.0.0.3"), ()) == ()
    name, mtu = gate.of(cluster, probe("127.0.1.1", 9000), ())
    assert name.startswith(f"Doctor finds on node3: {OWN}; run 'clusterctl provision' again")
    assert "MTU" in mtu
    assert "node3" in mtu


def test_what_the_gate_says_already_is_left_out() -> None:
    cluster = factory.inventory(["node1", "node2", "node3"])
    said = factory.check("provisioned", "FAIL", evidence=(f"node3: {OWN}",))
    assert gate.of(cluster, probe("127.0.1.1"), (said,)) == ()
