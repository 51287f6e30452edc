from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from clusterctl.model import run_record
from clusterctl.model.events import Note
from clusterctl.model.hosts import Host
from clusterctl.model.snapshot import Snapshot
from clusterctl.state import locks, paths, runs, snapshots
from clusterctl.support.errors import ConfigError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "clusterctl"


def start(inventory: str = "/srv/inventory.ini") -> runs.Run:
    return runs.start("provision", Path(inventory), ["clusterctl", "provision"], {"clusterctl": "1"})


def test_everything_is_the_users_alone(state: Path) -> None:
    before = os.umask(0o000)
    try:
        run = start()
        run.event(Note(at=1.0, host="node1", text="make"))
        run.facts({"node1": {"cores": 2}})
        run.update(outcome="done", exit_code=0)
        run.close()
        snapshots.write(run.record.cluster_id, Snapshot())
        with locks.HostLock([Host("node1", "192.0.2.1")], "x"):
            pass
    finally:
        os.umask(before)
    for path in [state, *state.rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_record_can_be_read_again() -> None:
    run = start()
    run.update(outcome="done", exit_code=0, hosts=[run_record.HostSummary(host="node1", outcome="ok")])
    run.close()
    (found,) = runs.read_runs(Path("/srv/inventory.ini"))
    assert found == run.record
    assert (run.folder.parent / "latest").resolve() == run.folder
    assert json.loads((run.folder / "run.json").read_text(encoding="utf-8"))["schema_version"] == 1


def test_the_oldest_runs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_RUNS", 3)
    run = start()
    run.close()
    for number in range(5):
        (run.folder.parent / f"20200101T00000{number}Z-provision-1").mkdir()
    again = start("/srv/inventory.ini")
    again.close()
    kept = sorted(path.name for path in run.folder.parent.iterdir() if path.name != "latest")
    assert len(kept) == 3
    assert run.folder.name in kept


def test_what_a_killed_run_left_is_tidied_up() -> None:
    run = start()
    run.close()
    dead = paths.ansible_dir(run.folder.parent / "20200101T000000Z-provision-99999999")
    alive = paths.ansible_dir(run.folder)
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    start("/srv/inventory.ini").close()
    assert (dead.exists(), alive.exists()) == (False, True)


def test_an_unwritable_state_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be written.*comes from \$XDG_STATE_HOME"):
        start()
