"""Makes the collection importable by its own names: what nodes answer is made by the probe itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.provisioning import node_claims
from clusterctl.provisioning.node_claims import ClaimAnswer
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.hosts import Host

sys.path.insert(0, str(content.collections_path()))


class Claims:
    """What nodes answer to claims, and what they were asked."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}  # a node without an answer is free
        self.asked: list[dict[str, dict[str, Any]]] = []

    def ask(
        self, requests: Mapping[Host, Mapping[str, Any]], _timeout_s: float = 0
    ) -> tuple[dict[str, ClaimAnswer], dict[str, Any]]:
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


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    """Let the nodes of the tests say that no other run has them."""
    found = Claims()
    monkeypatch.setattr(node_claims, "ask", found.ask)
    return found
