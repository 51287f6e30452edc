from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusterctl.nightly import run as night
from nights import World


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "night.json"
    path.write_text(json.dumps({"verdict": "FAIL", "large": "x" * 300_000}))
    return path


@pytest.fixture
def world(state: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    assert state
    world = World()
    monkeypatch.setattr(night.validation, "validate", world.validate)
    monkeypatch.setattr(night.provisioning, "provision", world.provision)
    return world
