from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusterctl.model.snapshot import HostSnapshot, Snapshot
from clusterctl.state import paths, snapshots

if TYPE_CHECKING:
    from pathlib import Path


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
    snapshots.forget_hosts("c", ["node1"])
    assert set(snapshots.read("c").hosts) == {"node2"}
    paths.snapshot_file("c").write_text("{", encoding="utf-8")
    assert snapshots.read("c") == Snapshot()
