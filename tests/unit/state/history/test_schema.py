from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from clusterctl.state import history as run_history
from clusterctl.state import paths
from clusterctl.state.history import file
from clusterctl.support.errors import ConfigError
from kept_runs import CLUSTER, key, record, remember


def first_schema(path: Path) -> None:
    """Make the file that the first schema had, with a run in it, by the present statements less what came later."""
    remember(record(1))
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TABLE baselines")
        raw.execute("ALTER TABLE results DROP COLUMN named")
        raw.execute("ALTER TABLE results DROP COLUMN apart")
        raw.execute("PRAGMA user_version = 1")
    raw.close()


def test_a_file_of_the_first_schema_is_brought_to_the_present_one() -> None:
    path = paths.history_file()
    first_schema(path)
    with run_history.open() as history:
        assert history.reference_values(CLUSTER, key(record(2)), 20) == (100,)
        history.accept(CLUSTER, "last")
        assert history.warnings == []
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (file.VERSION,)


def test_migrating_is_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    path = paths.history_file()
    first_schema(path)
    broken = (*file.MIGRATIONS[:1], "CREATE TABLE baselines (id); CREATE TABLE runs (id)")
    monkeypatch.setattr(file, "MIGRATIONS", broken)
    with pytest.raises(run_history.StoreError, match="table runs already exists"):
        run_history.open()
    monkeypatch.undo()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (1,)
        assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'baselines'").fetchone() == (0,)


def test_a_newer_schema_is_refused_and_nothing_is_touched(state: Path) -> None:
    path = paths.history_file()
    remember(record(1))
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {file.VERSION + 1}")
    raw.close()
    before = {one.name: one.read_bytes() for one in state.iterdir() if one.is_file()}
    with pytest.raises(ConfigError, match="was written by a newer clusterctl"):
        run_history.open()
    back, (note,) = run_history.remember(CLUSTER, record(2))
    assert back == record(2)
    assert "newer clusterctl" in note
    assert "its record is in its folder" in note
    assert {one.name: one.read_bytes() for one in state.iterdir() if one.is_file()} == before
