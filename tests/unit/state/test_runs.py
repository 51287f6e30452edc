from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
from clusterctl.model import run_record
from clusterctl.model.hosts import Host
from clusterctl.model.run_record import Note
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


@pytest.mark.parametrize(
    ("record", "is_unfinished"),
    [
        (None, True),
        ('{"outcome": "killed"}', True),
        ('{"outcome": "unreachable"}', True),
        ('{"outcome": "interrupted"}', True),
        ('{"outcome": "done", "hosts": [{"outcome": "failed"}]}', True),
        ('{"outcome": "done"}', False),
        ('{"outcome": "running"', False),
    ],
)
def test_a_run_is_unfinished_where_its_record_says_so_or_was_never_written(
    record: str | None, is_unfinished: bool
) -> None:
    run = start()
    run.close()
    folder = run.folder.parent / "20200101T000000Z-provision-99999999"
    folder.mkdir()
    if record is not None:
        paths.run_record(folder).write_text(record, encoding="utf-8")
    again = start()
    again.close()
    assert again.unfinished == ((folder.name,) if is_unfinished else ())


@pytest.mark.programs
def test_the_workers_and_files_of_a_killed_run_end_with_the_next_run() -> None:
    run = start()
    run.close()
    private = paths.ansible_dir(run.folder)
    private.mkdir()
    place = rewritten(run.folder, started_ticks=0)
    private = paths.ansible_dir(place.parent)
    staged = [place.with_name(f".facts.json.{os.getpid()}"), place.parents[2] / ".snapshot.json.99999999"]
    for path in staged:
        path.write_text("half", encoding="utf-8")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "ANSIBLE_LOCAL_TEMP": str(private)}) as worker:
        again = start()
        again.close()
        assert worker.wait(timeout=10) == -signal.SIGTERM
    assert again.unfinished == (place.parent.name,)
    assert [path.exists() for path in (private, *staged)] == [False] * 3
    assert start().unfinished == (place.parent.name,)


def test_a_clock_that_is_set_back_keeps_the_order_of_runs_and_the_run_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_RUNS", 2)
    for year in (2090, 2091, 2092):
        (paths.runs_dir(start().record.cluster_id) / f"{year}0101T000000Z-provision-99999999").mkdir(exist_ok=True)
    run = start()
    run.update(finished=datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert run.folder.name.startswith("20920101T000001Z-provision-")
    assert run.record.started.year < 2090
    assert run.record.finished == run.record.started
    assert (run.folder.parent / "latest").resolve() == max(run.folder.parent.glob("2*"))


def test_two_runs_of_one_process_in_one_second_have_a_record_each() -> None:
    folders = [start().folder for _ in range(3)]
    assert sorted(folders) == folders
    assert len(set(folders)) == len(folders)


def test_an_unwritable_state_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be written.*comes from \$XDG_STATE_HOME"):
        start()


def rewritten(folder: Path, **process: object) -> Path:
    """Change what the record of a run says of its process, and make it older than a run that starts now."""
    earlier = folder.with_name(f"20200101T000000Z-provision-{os.getpid()}")
    place = folder.rename(earlier) / "run.json"
    record = json.loads(place.read_text(encoding="utf-8"))
    record["process"].update(process)
    place.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return place


def test_a_run_of_this_process_is_running() -> None:
    run = start()
    run.close()
    assert runs.settled(run.folder).outcome == "running"


def test_a_killed_run_is_marked_with_the_time_of_its_last_event() -> None:
    run = start()
    run.event(Note(at=1_700_000_000.0, host="node1", text="make"))
    run.close()
    with (run.folder / "events.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"event": "Note", "at": 17000')  # the kill cut it off
    place = rewritten(run.folder, started_ticks=1)
    again = start()
    again.close()
    kept = json.loads(place.read_text(encoding="utf-8"))
    assert (kept["outcome"], kept["exit_code"], kept["finished"]) == ("killed", None, "2023-11-14T22:13:20Z")
    assert "2023-11-14T22:13:20Z" in kept["message"]
    assert [found.outcome for found in runs.read_runs(Path("/srv/inventory.ini"))].count("killed") == 1


def test_a_killed_run_without_an_event_was_last_seen_when_it_wrote_a_file() -> None:
    run = start()
    run.close()
    folder = rewritten(run.folder, boot_id="another").parent
    for path in folder.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    found = runs.settled(folder)
    assert (found.outcome, found.finished) == ("killed", datetime.fromtimestamp(1_700_000_000, timezone.utc))


def test_a_run_of_another_machine_stays_as_it_is() -> None:
    run = start()
    run.close()
    private = paths.ansible_dir(run.folder)
    private.mkdir()
    place = rewritten(run.folder, host="elsewhere", boot_id="another", started_ticks=1)
    before = place.read_bytes()
    start().close()
    assert place.read_bytes() == before
    assert paths.ansible_dir(place.parent).exists()


def test_a_run_that_ends_while_it_is_looked_at_keeps_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    run.close()

    def ended(*_given: object) -> bool:
        run.update(outcome="done", exit_code=0)
        return True

    monkeypatch.setattr("clusterctl.state.processes.has_ended", ended)
    assert runs.settled(run.folder).outcome == "done"


@pytest.mark.parametrize(
    ("verb", "raised", "message"),
    [
        ("validate", OSError(28, "No space left on device", "/x"), "[Errno 28] No space left on device: '/x'"),
        ("validate", ValueError(), "ValueError"),
        ("provision", OSError(28, "No space left on device", "/x"), "No space left on device: /x"),
        ("provision", OSError(28, "No space left on device"), "No space left on device"),
        ("provision", ValueError("a secret"), "ValueError"),
    ],
)
def test_a_record_has_the_text_of_an_unexpected_error_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, raised: Exception, message: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(type(raised)), runs.recorded(verb, tmp_path / "i.ini", ()) as run:
        raise raised
    assert run.record.message == message
