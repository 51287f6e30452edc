"""Nodes for tests of launch lines: their facts, and an inventory that needs no ansible."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.inventory import ansible_inventory
from clusterctl.model import hosts as model_hosts
from clusterctl.model.facts import NodeFacts, Probe, ProbeFailure
from clusterctl.remote import facts, supervised_job

if TYPE_CHECKING:
    from collections.abc import Iterable


def artifact(name: str, version: str, **inputs: Any) -> dict[str, Any]:
    link = f"/usr/local/{name}"
    return {"name": name, "link": link, "target": f"{link}-{version}", "version": version, "key": "0123456789abcdef",
            "ok": True, "inputs": inputs}  # fmt: skip


def node(name: str, number: int = 1, *, version: str = "5.0.7", stack: bool = True, **changed: Any) -> NodeFacts:
    artifacts = [artifact("openmpi", version, configure=["./configure", "--without-ucx"]), artifact("mpi4py", "4.1.2")]
    if stack:
        framework = {"name": "pytorch", "version": "2.8.0", "cuda": ""}
        artifacts += [
            artifact("python_env", "1", framework=framework),
            artifact("horovod", "0.28.1", framework=framework, gpu_operations="none"),
        ]
    told: dict[str, Any] = {
        "schema_version": 1, "hostname": name, "fqdn": name, "time": 0.0, "kernel": "6.1", "machine": "x86_64",
        "distribution": {"id": "debian", "version_id": "12", "name": "Debian 12", "family": "Debian", "major": "12"},
        "glibc": "2.36", "python": {"version": "3.11.2", "executable": "/usr/bin/python3", "has_packaging": True},
        "platform": "debian-12-x86_64", "cores": 4, "threads": 4, "memory_bytes": 2**34,
        "user": {"name": "alice", "uid": 1000, "home": "/home/alice"},
        "environment": {"PATH": "/usr/local/openmpi/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/local/openmpi/lib"},
        "artifacts": artifacts,
        "fabric": {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": f"10.0.0.{number}"},
        "watch": [
            {"path": path, "kind": "file", "sha256": digest}
            for path, digest in supervised_job.digests(supervised_job.SUPERVISOR_FILES).items()
        ],
        **changed,
    }  # fmt: skip
    return NodeFacts.model_validate(told)


def hosts(names: Iterable[str], slots: int | None = 4) -> tuple[model_hosts.Host, ...]:
    return tuple(model_hosts.Host(name=name, address=name, slots=slots) for name in names)


class Site:
    """Stands in for the inventory and for the nodes that answer."""

    def __init__(self, monkeypatch: Any, names: Iterable[str], slots: int | None = 4, **changed: Any) -> None:
        self.hosts = hosts(names, slots)
        self.nodes = {host.name: node(host.name, number, **changed) for number, host in enumerate(self.hosts, 1)}
        self.failures: dict[str, ProbeFailure] = {}
        monkeypatch.setattr(ansible_inventory, "load", self._load)
        monkeypatch.setattr(facts, "gather", self._gather)

    def _load(
        self, _path: Path, options: model_hosts.InventoryOptions | None = None, **_: Any
    ) -> model_hosts.Inventory:
        limit = options.limit.split(",") if options and options.limit else [host.name for host in self.hosts]
        return model_hosts.Inventory(Path("/inventory.ini"), self.hosts, tuple(limit), "digest")

    def _gather(self, asked: Iterable[model_hosts.Host], **_: Any) -> Probe:
        names = [host.name for host in asked]
        there = {name: self.nodes[name] for name in names if name not in self.failures}
        return Probe(there, {name: self.failures[name] for name in names if name in self.failures})
