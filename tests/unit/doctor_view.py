"""A healthy cluster of four nodes as doctor sees it, for tests that change one thing of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model import fabric
from clusterctl.model.facts import NodeFacts
from clusterctl.model.findings import Diagnosis, Finding
from clusterctl.model.hosts import Host
from clusterctl.remote import login_probe
from clusterctl.remote.login_probe import LoginKind

Record = dict[str, Any]
Change = Callable[[Record], object]

CAPTURED = Path(__file__).resolve().parents[1] / "data" / "stack" / "node.json"
UCX = "0123456789abcdef"  # the key of the UCX of nodes with RDMA
NODES = ("node1", "node2", "node3", "node4")


def address(name: str) -> str:
    return f"10.0.0.{NODES.index(name) + 1}"


def record_of(name: str) -> Record:
    """Make a node of its own of the captured record: names, keys and addresses differ, nothing else does."""
    record: Record = json.loads(CAPTURED.read_text(encoding="utf-8"))
    entry = {"family": 4, "address": address(name), "prefix": 24, "scope": "global"}
    eth0 = {"name": "eth0", "kind": "physical", "mac": f"02:{name[-2:]}", "mtu": 1500, "up": True, "carrier": True}
    record |= {
        "hostname": name,
        "names": [{"name": other, "addresses": [address(other)]} for other in (name, *set(NODES) - {name})],
        "interfaces": [{**eth0, "speed_mbps": 10000, "addresses": [entry]}],
        "routes": [
            {"family": 4, "destination": "10.0.0.0/24", "gateway": None, "interface": "eth0", "metric": 0},
        ],
        "ssh": {"host_keys": [f"ssh-ed25519 AAAA{name:x<28}"], "port": 22},
    }
    return record


def seen(**changes: Change) -> View:
    nodes = {}
    for name in NODES:
        record = record_of(name)
        changes.get(name, lambda _record: None)(record)
        nodes[name] = NodeFacts.model_validate(record)
    return View(
        hosts=tuple(Host(name, address(name)) for name in NODES),
        nodes=nodes,
        logins={name: login_probe.LoginReport(mesh=True, passed=3) for name in NODES},
        slots=dict.fromkeys(NODES, 2),
        candidates=fabric.candidates(nodes),
    )


def failing(view: View, *failures: tuple[str, str, LoginKind]) -> View:
    reports = dict(view.logins)
    for source, target, kind in failures:
        one = login_probe.LoginFailure(target, kind, "ssh: it failed")
        reports[source] = dataclasses.replace(reports[source], failures=(*reports[source].failures, one))
    return dataclasses.replace(view, logins=reports)


def told(view: View) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.check, one.severity, one.hosts) for one in registry.diagnose(view)]


def diagnosis(*findings: Finding, **given: Any) -> Diagnosis:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return Diagnosis(
        clusterctl_version="0", inventory="i", started=now, finished=now, hosts=NODES, findings=findings, **given
    )


def with_ucx(record: Record) -> None:
    """Give a node the UCX that a cluster with RDMA has, and an Open MPI that was built with it."""
    (mpi,) = [one for one in record["artifacts"] if one["name"] == "openmpi"]
    tree = f"/usr/local/ucx-1.13.1-{UCX}"
    ucx = {"name": "ucx", "link": "/usr/local/ucx", "target": tree, "version": "1.13.1", "key": UCX, "inputs": {}}
    mpi["inputs"] = {**mpi.get("inputs", {}), "ucx": UCX}
    record["artifacts"] = [*record["artifacts"], {**mpi, **ucx}]


def rdma_port(**values: Any) -> Change:
    """Return what gives a node an Open MPI with UCX and one RDMA port, with these values beside the usual ones."""
    port = {"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "rate_gbps": 200.0, **values}

    def change(record: Record) -> None:
        record["rdma"] = [{"name": "mlx5_0", "ports": [port]}]
        with_ucx(record)
        record["limits"]["memlock"] = {"soft": None, "hard": None}

    return change
