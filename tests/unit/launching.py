"""A site for tests of launch lines: an inventory that needs no ansible, and nodes that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import factory
from clusterctl.inventory import ansible_inventory
from clusterctl.jobs import first_look
from clusterctl.model.hosts import Host, Inventory, InventoryOptions, InventorySources
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.remote import facts


class Site:
    """Stands in for the inventory and for the nodes that answer."""

    def __init__(self, monkeypatch: Any, names: Iterable[str], slots: int | None = 4, **changed: Any) -> None:
        self.hosts = factory.hosts(names, slots)
        self.nodes = {
            host.name: factory.provisioned(host.name, number, **changed) for number, host in enumerate(self.hosts, 1)
        }
        self.failures: dict[str, ProbeFailure] = {}
        monkeypatch.setattr(ansible_inventory, "load", self._load)
        monkeypatch.setattr(facts, "gather", self._gather)
        monkeypatch.setattr(first_look, "FirstLook", partial(_Looked, self._gather))

    def _load(self, _path: Path, options: InventoryOptions | None = None, **_: Any) -> Inventory:
        limit = options.limit.split(",") if options and options.limit else [host.name for host in self.hosts]
        return Inventory(InventorySources(("/inventory.ini",)), self.hosts, tuple(limit), "digest")

    def _gather(self, asked: Iterable[Host], **_: Any) -> Probe:
        names = [host.name for host in asked]
        there = {name: self.nodes[name] for name in names if name not in self.failures}
        return Probe(there, {name: self.failures[name] for name in names if name in self.failures})


class _Looked:
    """A first look that has ended."""

    def __init__(
        self,
        gather: Callable[[Iterable[Host]], Probe],
        cluster: Inventory,
        hosts: dict[str, Host],
        control: Path,
        wanted: Any = None,
    ) -> None:
        self.wanted = wanted
        self.cluster, self.hosts, self.control, self._gather = cluster, hosts, control, gather

    def probe(self) -> Probe:
        return self._gather(self.hosts.values())

    def close(self) -> None:
        """Nothing is under way."""
