"""The typed face of the fabric's rules: what goes in and comes out are our own records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model import fabric
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host
from clusterctl.remote import network_probe
from clusterctl.support.errors import ConfigError

DATA = Path(__file__).resolve().parents[2] / "data"


def node(number: int, *, docker: bool = True) -> NodeFacts:
    record: dict[str, Any] = json.loads((DATA / "stack" / "node.json").read_text(encoding="utf-8"))
    record["interfaces"] = [interface("eth0", f"10.0.0.{number}"), *([interface("docker0", "172.17.0.1")] * docker)]
    record["routes"] = []
    record["rdma"] = [{"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand"}]}]
    return NodeFacts.model_validate(record)


def interface(name: str, address: str) -> dict[str, Any]:
    entry = {"family": 4, "address": address, "prefix": 24, "scope": "global"}
    return {"name": name, "kind": "physical", "up": True, "carrier": True, "mtu": 1500, "addresses": [entry]}


def test_facts_in_and_a_decision_out() -> None:
    nodes = {"a": node(1), "b": node(2)}
    found = fabric.candidates(nodes)
    assert [one.key for one in found.networks] == ["10.0.0.0/24"]
    assert found.networks[0].interfaces == {"a": "eth0", "b": "eth0"}
    assert found.rejected == (
        fabric.Rejection("docker0 172.17.0.0/24", ("a", "b"), "carries the same address 172.17.0.1 on a,b"),
    )
    assert fabric.pairs(["a", "b"]) == (("a", "b"), ("b", "a"))
    through = [fabric.PairResult("10.0.0.0/24", "a", "b"), fabric.PairResult("10.0.0.0/24", "b", "a")]
    decision = fabric.decide(found, through)
    assert decision.network == found.networks[0]
    assert fabric.matrix(found, through) == ("docker0 172.17.0.0/24  a,b  carries the same address 172.17.0.1 on a,b",)
    lost = fabric.PairResult("10.0.0.0/24", "a", "b", "timed out", "timeout")
    broken = fabric.decide(found, [lost, through[1]])
    assert (broken.network, broken.failures) == (None, (lost,))
    assert [one.device for one in fabric.rdma(nodes["a"])] == ["mlx5_0"]


def test_a_pin_that_cannot_be_kept_is_a_wrong_configuration() -> None:
    with pytest.raises(ConfigError, match="b has no address of its own there"):
        fabric.candidates({"a": node(1), "b": node(2, docker=False)}, interfaces=["docker0"])
    with pytest.raises(ConfigError, match="fabric_cidr has 'x'"):
        fabric.candidates({"a": node(1)}, cidrs=["x"])


def test_one_node_has_nothing_to_prove() -> None:
    found = fabric.candidates({"a": node(1)})
    assert network_probe.probe([Host(name="a", address="127.0.0.1")], found) == ()


def test_nodes_that_cannot_be_asked_fail_in_all_their_pairs() -> None:
    found = fabric.candidates({"a": node(1, docker=False), "b": node(2, docker=False)})
    hosts = [Host(name=name, address="127.0.0.1", port=1) for name in ("a", "b")]
    results = network_probe.probe(hosts, found)
    assert [(one.source, one.target, one.kind) for one in results] == [("a", "b", "error"), ("b", "a", "error")]
    assert "Connection refused" in results[0].problem


def test_only_the_pairs_that_are_asked_for_are_tried() -> None:
    found = fabric.candidates({name: node(at, docker=False) for at, name in enumerate("abc", 1)})
    hosts = [Host(name=name, address="127.0.0.1", port=1) for name in "abc"]
    results = network_probe.probe(hosts, found, only=[("a", "c"), ("a", "gone")])
    assert [(one.source, one.target) for one in results] == [("a", "c")]
