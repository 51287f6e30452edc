"""Busy nodes are left out of a validation by ssh, by name and with their jobs."""

from __future__ import annotations

from typing import Any

import factory
import pytest
from clusterctl.model.facts import Probe, ProbeFailure
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError
from clusterctl.validation import idle_part

RANK = {"pid": 7, "user": "alice", "command": "./solve", "rank": True}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    lost = {"node3": ProbeFailure("node3", "unreachable", "it is silent")}

    def gather(_hosts: Any, **asked: Any) -> Probe:
        assert asked["busy"]
        assert asked["leftovers"]
        return Probe(facts, lost)

    monkeypatch.setattr(idle_part.facts, "gather", gather)
    return facts


def test_idle_and_silent_hosts_stay_and_busy_ones_are_named(found: dict[str, Any]) -> None:
    found.update(node1=factory.node("node1"), node2=factory.node("node2", busy=[RANK]))
    cluster, left_out = idle_part.of(factory.inventory(["node1", "node2", "node3"]))
    assert cluster.selected == ("node1", "node3")
    assert left_out == {"node2": "jobs run there: rank 7 of alice: ./solve"}


def test_a_cluster_without_an_idle_node_cannot_be_proved(found: dict[str, Any]) -> None:
    found.update(node1=factory.node("node1", busy=[RANK]))
    with pytest.raises(ValidationCouldNotRunError, match=r"No node is idle.*node1 \(jobs run there: rank 7") as caught:
        idle_part.of(factory.inventory(["node1"]))
    assert caught.value.exit_code is ExitCode.VALIDATION_ERROR
