"""Makes the collection importable by its own names: what nodes answer is made by the probe itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import Host, InventorySources
from clusterctl.provisioning import node_ownership
from clusterctl.provisioning.node_ownership import ClaimAnswer
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))


class Claims:
    """What nodes answer to claims, and what they were asked."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}  # a node without an answer is free
        self.asked: list[dict[str, dict[str, Any]]] = []
        self.connections: set[Path | None] = set()

    def ask(
        self, requests: Mapping[Host, Mapping[str, Any]], _timeout_s: float = 0, control_dir: Path | None = None
    ) -> tuple[dict[str, ClaimAnswer], dict[str, Any]]:
        assert control_dir is None or control_dir.is_dir(), "it is there until the last question"
        self.connections.add(control_dir)
        self.asked.append({host.name: dict(request) for host, request in requests.items()})
        return {
            host.name: ClaimAnswer.model_validate(
                {
                    "taken": bool(request.get("lock") and host.name not in self.answers),
                    **self.answers.get(host.name, {}),
                }
            )
            for host, request in requests.items()
        }, {}

    @property
    def released(self) -> list[str]:
        return [name for asked in self.asked for name, request in asked.items() if "release" in request]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory of node1 and node2 and a state of its own; inventories of bare names are read without Ansible."""

    def listing(sources: InventorySources, _options: object, limit: str | None) -> dict[str, Any]:
        names = Path(sources.words[0]).read_text(encoding="utf-8").split()
        selected = [name for name in names if limit in {None, name}]
        return {"all": {"children": ["ungrouped"]}, "ungrouped": {"hosts": selected}, "_meta": {"hostvars": {}}}

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(ansible_inventory, "_listing", listing)
    place = tmp_path / "lab.ini"
    place.write_text("node1\nnode2\n", encoding="utf-8")
    return place


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    """Let the nodes of the tests say that no other run has them."""
    found = Claims()
    monkeypatch.setattr(node_ownership, "ask", found.ask)
    return found
