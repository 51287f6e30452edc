"""A record without a field that the rules for all nodes take as given is refused by name, before they run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules, node_record_gate

GID = {"index": 3, "gid": "::ffff:10.0.0.1", "type": "RoCE v2", "netdev": "eth0"}
RECORD: dict[str, Any] = {
    "hostname": "node1",
    "platform": "debian-12-x86_64-glibc2.36-py3.11",
    "time": 1.0,
    "distribution": {"id": "debian", "version_id": "12", "family": "Debian", "major": "12"},
    "routes": [{"family": 4, "destination": "0.0.0.0/0", "gateway": None, "interface": "eth0", "metric": 0}],
    "fabric": {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": "10.0.0.1", "proven": []},
    "disk": [{"path": "/var/tmp", "free_bytes": 1}],  # noqa: S108 - a name
    "interfaces": [
        {"name": "eth0", "kind": "physical", "up": True, "addresses": [{"address": "10.0.0.1", "prefix": 24}]}
    ],
    "rdma": [{"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "link_layer": "Ethernet", "gids": [GID]}]}],
}


def test_a_record_with_these_fields_is_taken() -> None:
    record = node_record_gate.passed(RECORD)
    fabric_rules.rdma(record)
    fabric_rules.candidates({"node1": record}, [], [], [])


@pytest.mark.parametrize(
    "place",
    [
        ("hostname",),
        ("platform",),
        ("time",),
        ("distribution", "id"),
        ("distribution", "family"),
        ("distribution", "major"),
        ("routes", 0, "family"),
        ("routes", 0, "destination"),
        ("routes", 0, "interface"),
        ("routes", 0, "metric"),
        ("fabric", "cidrs"),
        ("disk", 0, "path"),
        ("disk", 0, "free_bytes"),
        ("interfaces", 0, "name"),
        ("interfaces", 0, "kind"),
        ("interfaces", 0, "addresses", 0, "address"),
        ("interfaces", 0, "addresses", 0, "prefix"),
        ("rdma", 0, "name"),
        ("rdma", 0, "ports"),
        ("rdma", 0, "ports", 0, "number"),
        ("rdma", 0, "ports", 0, "gids", 0, "gid"),
        ("rdma", 0, "ports", 0, "gids", 0, "index"),
    ],
)
def test_a_field_that_lacks_is_named(place: tuple[Any, ...]) -> None:
    record = copy.deepcopy(RECORD)
    around: Any = record
    for step in place[:-1]:
        around = around[step]
    del around[place[-1]]
    with pytest.raises(node_record_gate.RecordError, match=str(place[-1])):
        node_record_gate.passed(record)
