"""A node of a chain that says of itself that it goes on, and takes nothing, does not hold the others for ever."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.chain_head import ChainError, ChainHead

_SIZE = 64 << 20
_WHOLE, _PIECE = b"aaaaaaaa", 4


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


def _of_three(tmp_path: Path, content: bytes) -> ChainHead:
    """Return the head of a chain of three other nodes that all take, with its own copy in place."""
    sums = base64.b64encode(b"".join(hashlib.sha256(_WHOLE[at : at + _PIECE]).digest() for at in range(0, 8, _PIECE)))
    own = tmp_path / "pack"
    own.write_bytes(content)
    request = {"size": len(_WHOLE), "piece_bytes": _PIECE, "sums": sums.decode(), "bytes_per_s": 0.0, "ssh": []}
    nodes = [{"name": f"node{number}", "python": "p", "file": "f", "folders": ["/t"]} for number in (1, 2, 3)]
    head = ChainHead("head", [str(own)], {**request, "python": "p"}, nodes, b"")
    head._look_at_own_file(time.monotonic())  # noqa: SLF001 - as above
    for node in head._nodes.values():  # noqa: SLF001 - as above
        node.state, node.since = "taking", time.monotonic()
        head.plan.join(node.name)
    return head


def _says(head: ChainHead, name: str, **event: object) -> None:
    head._note(head._nodes[name], json.dumps(event).encode())  # noqa: SLF001 - as above


def _states(head: ChainHead) -> list[str]:
    return [node.state for node in head._nodes.values()]  # noqa: SLF001 - as above


def test_a_node_that_says_it_has_all_and_gives_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, began = _of_three(tmp_path, _WHOLE), time.monotonic()
    _says(head, "node1", event="done")
    monkeypatch.setattr(time, "monotonic", lambda: began + 40)
    head._give_up_the_silent(began + 40)  # noqa: SLF001 - as above
    assert head.plan.source["node2"] == "head"
    assert _states(head) == ["done", "taking", "taking"]


def test_a_node_that_takes_nothing_from_two_sources_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, began = _of_three(tmp_path, _WHOLE), time.monotonic()
    for name in ("node1", "node2"):
        _says(head, name, event="have", bytes=len(_WHOLE))
    for later in (40, 80):
        monkeypatch.setattr(time, "monotonic", lambda later=later: began + later)
        head._give_up_the_silent(began + later)  # noqa: SLF001 - as above
    assert _states(head)[2] == "failed"


def test_a_node_that_calls_the_whole_copy_of_the_head_damaged_is_left_out(tmp_path: Path) -> None:
    head = _of_three(tmp_path, _WHOLE)
    _says(head, "node1", event="damaged", source="head", why="piece 1 is not what the controller sent", bytes=_PIECE)
    assert _states(head) == ["failed", "taking", "taking"]
    assert head.plan.source["node2"] == "head"


@pytest.mark.parametrize("at", [-1, 1 << 40, "x", None])
def test_a_place_that_no_pack_has_is_no_damage(tmp_path: Path, at: object) -> None:
    head = _of_three(tmp_path, _WHOLE)
    _says(head, "node1", event="damaged", source="head", why="piece 1", bytes=at)
    assert _states(head) == ["failed", "taking", "taking"]


def test_a_copy_of_the_head_that_is_damaged_ends_the_chain(tmp_path: Path) -> None:
    head = _of_three(tmp_path, b"aaaaaxaa")
    with pytest.raises(ChainError, match="damaged"):
        _says(head, "node1", event="damaged", source="head", why="piece 1", bytes=_PIECE)


def test_a_node_whose_word_is_taken_once_accuses_no_second_source(tmp_path: Path) -> None:
    head = _of_three(tmp_path, _WHOLE)
    for source in ("node2", "node1"):
        _says(head, "node3", event="damaged", source=source, why="piece 0", bytes=0)
    assert _states(head) == ["taking", "taking", "failed"]


def test_a_piece_that_has_not_arrived_is_not_damaged(tmp_path: Path) -> None:
    head = _of_three(tmp_path, _WHOLE[: _PIECE + 1])
    _says(head, "node1", event="damaged", source="head", why="piece 1", bytes=_PIECE)
    assert _states(head) == ["failed", "taking", "taking"]
