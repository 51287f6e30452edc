from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.snapshot import HostSnapshot, Snapshot
from clusterctl.state import paths, snapshots


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "clusterctl"


def test_an_unreadable_snapshot_counts_as_missing() -> None:
    host = HostSnapshot(
        run_id="r", inputs={"a": "b"}, members="m", platform="p", host_keys=(), user="u", watch=({"path": "/x"},)
    )
    snapshots.write("c", Snapshot(hosts={"node1": host, "node2": host}))
    assert set(snapshots.read("c").hosts) == {"node1", "node2"}
    assert snapshots.forget_hosts("c", ["node1"]) == {"node1": host}
    assert snapshots.forget_hosts("c", ["node1", "node3"]) == {}
    assert set(snapshots.read("c").hosts) == {"node2"}
    paths.snapshot_file("c").write_text("{", encoding="utf-8")
    assert snapshots.read("c") == Snapshot()


@pytest.mark.parametrize(
    "field",
    [
        {"watch": [{"path": 5}]},
        {"watch": [{"kind": "file"}]},
        {"watch": [{"path": "etc/hosts"}]},
        {"watch": [{"path": "/x", "kind": ["file"]}]},
        {"watch": [{"path": "/x", "sha256": {"deep": {}}}]},
        {"watch": [{"path": "/x\u001b[2J"}]},
        {"watch": [{"path": "/x", "target": "a" * 200_000}]},
        {"traits": {"its host name": "\u009b31m"}},
        {"address": "192.0.2.1\n192.0.2.2"},
        {"damaged": [{"subject": "/x", "words": "\u001b[2J"}]},
    ],
)
def test_a_snapshot_that_no_gate_would_have_let_pass_counts_as_missing(field: dict[str, Any]) -> None:
    host = {"run_id": "r", "inputs": {}, "members": "m", "platform": "p", "host_keys": [], "user": "u", "watch": []}
    place = paths.snapshot_file("c")
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"hosts": {"node1": host}}), encoding="utf-8")
    assert set(snapshots.read("c").hosts) == {"node1"}
    place.write_text(json.dumps({"hosts": {"node1": {**host, **field}}}), encoding="utf-8")
    assert snapshots.read("c") == Snapshot()
