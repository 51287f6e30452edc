"""A node of a chain that says of itself that it goes on, and takes nothing, does not hold the others for ever."""

from __future__ import annotations

import json
import time

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.chain_head import ChainHead

_SIZE = 64 << 20


def _taking(bytes_per_s: float = 0.0) -> ChainHead:
    request = {"size": _SIZE, "piece_bytes": 1 << 20, "sums": "", "bytes_per_s": bytes_per_s, "ssh": [], "python": "p"}
    head = ChainHead("head", [], request, [{"name": "node1", "python": "p", "file": "f", "folders": ["/t"]}], b"")
    head._nodes["node1"].state = "taking"  # noqa: SLF001 - without a connection
    head.plan.join("node1")
    return head


def _end_of(head: ChainHead, monkeypatch: pytest.MonkeyPatch, rate: float) -> tuple[str, float]:
    """Let a node report once a second what it has; returns its state, and when that was decided."""
    node, began = head._nodes["node1"], time.monotonic()  # noqa: SLF001 - as above
    for second in range(10_000):
        now = began + second
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        head.plan.progress("head", _SIZE, now)
        event = {"event": "have", "bytes": int(second * rate)} if second * rate < _SIZE else {"event": "done"}
        head._note(node, json.dumps(event).encode())  # noqa: SLF001 - as above
        head._give_up_the_silent(now)  # noqa: SLF001 - as above
        if node.state != "taking":
            return node.state, second
    return node.state, 10_000


@pytest.mark.parametrize("rate", [0.0, 1.0, 1000.0])
def test_a_node_that_reports_and_takes_next_to_nothing_is_given_up(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, seconds = _end_of(_taking(), monkeypatch, rate)
    assert state == "failed"
    assert seconds < 300


@pytest.mark.parametrize("limit", [0.0, 200e3])
def test_a_slow_node_is_not_given_up(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _end_of(_taking(limit), monkeypatch, limit or 1e6)[0] == "done"
