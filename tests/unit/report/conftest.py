from __future__ import annotations

from pathlib import Path

import pytest
from past_runs import SLOW, check, figure, record, remember


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("clusterctl.state.history.database.KEEP_DAYS", 100_000)  # these nights are long ago


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Return an inventory whose cluster has not run yet."""
    path = tmp_path / "inventory.ini"
    path.write_text("node1\nnode2\n", encoding="utf-8")
    return path


@pytest.fixture
def nights(inventory: Path) -> Path:
    remember(inventory, *(record(night) for night in range(6)))
    remember(inventory, record(6, check("pairs", "FAIL", figure(50), figure(50, "node2"), culprits=(SLOW,))))
    return inventory
