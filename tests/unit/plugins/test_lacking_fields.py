"""A record without a field that the rules for all nodes take as given is refused by name, before they run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules, node_record_gate
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import existing_env, existing_openmpi

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
EXISTING: dict[str, dict[str, Any]] = {
    "existing_python": {
        "path": "/opt/x",
        "folder": "/opt/x",
        "problem": "",
        "cure": "",
        "kind": "venv",
        "machine": "x86_64",
        "interpreter": "/opt/x/bin/python",
        "real": "/usr/bin/python3.11",
        "version": "3.11.2",
        "base": "/usr",
        "headers": True,
        "shares": False,
        "folders": ["/opt/x/lib"],
        "packages": {"numpy": "2.3.1"},
        "cuda": {},
        "nccl": {"path": "", "version": ""},
        "mpi": {
            "mpi4py": {
                "folder": "/opt/env/lib/python3.11/site-packages",
                "library": "libmpi.so.40",
                "nccl": "",
                "framework": "",
            }
        },
    },
    "existing_openmpi": {
        "path": "/opt/x",
        "problem": "",
        "cure": "",
        "version": "4.1.7rc1",
        "machine": "",
        "library": "/opt/x/lib",
        "folders": ["/opt/x/lib"],
        "options": [],
        "components": {},
        "cuda": False,
        "fortran": True,
        "files": "0",
    },
}


def test_a_record_with_these_fields_is_taken() -> None:
    record = node_record_gate.passed(RECORD)
    fabric_rules.rdma(record)
    fabric_rules.candidates({"node1": record}, [], [], [])


@pytest.mark.parametrize(
    ("section", "software"),
    [("existing_python", existing_env.Existing), ("existing_openmpi", existing_openmpi.Existing)],
)
def test_software_of_the_user_that_can_be_used_has_all_that_its_recipe_reads(section: str, software: Any) -> None:
    usable = EXISTING[section]
    assert node_record_gate.passed({**RECORD, section: usable})[section] == usable
    for field in software.__dataclass_fields__:
        lacks = {name: value for name, value in usable.items() if name != field}
        with pytest.raises(node_record_gate.RecordError, match=rf"{section}\.{field} is None, which is not there"):
            node_record_gate.passed({**RECORD, section: lacks})
    unusable = {"path": "/opt/x", "folder": "/opt/x", "problem": "/opt/x does not exist", "cure": "make it"}
    node_record_gate.passed({**RECORD, section: unusable})
    with pytest.raises(node_record_gate.RecordError):
        node_record_gate.passed({**RECORD, section: {**unusable, "problem": "\n"}})


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("existing_openmpi", "folders", []),
        ("existing_openmpi", "version", "5"),
        ("existing_openmpi", "version", "5.0.x"),
        ("existing_python", "version", ""),
        ("existing_python", "version", "3.x"),
        ("existing_python", "version", "3.11:1"),
    ],
)
def test_software_of_the_user_has_numbers_and_folders(section: str, field: str, value: Any) -> None:
    with pytest.raises(node_record_gate.RecordError, match=rf"{section}\.{field} is "):
        node_record_gate.passed({**RECORD, section: {**EXISTING[section], field: value}})


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
