from __future__ import annotations

import fcntl
import os
import threading
import time as clock
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.results import Verdict
from clusterctl.nightly import install, scheduler, storage
from clusterctl.nightly import run as night
from clusterctl.nightly.records import Drift, HookResult, HookTarget, HostDrift, Job, Night, Told
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError, LockedError
from nights import UTC, World, a_job, a_night, a_record, utc
from prometheus_client.parser import text_string_to_metric_families


def test_names_of_jobs_are_safe_everywhere(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = tmp_path / "a b%'\"$\n;.ini"
    name = storage.job_name(hostile)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert name == storage.job_name(hostile)
    others = {storage.job_name(tmp_path / "x" / hostile.name), storage.job_name(tmp_path / "a b.ini")}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert len({name, *others, storage.job_name(hostile)}) == 4
    assert state.name == "state"


def test_a_job_comes_back_and_is_private(state: Path) -> None:
    job = a_job(hook=HookTarget(url="https://h/SECRET"))
    storage.write_job(job)
    assert storage.read_job(storage.job_file(job.job)) == job
    assert storage.jobs() == [job]
    path = state / "clusterctl" / "nightly" / job.job / "job.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid JSON"),
        ("[]", "damaged"),
        ('{"schema_version": 1', "invalid JSON"),
        ('{"schema_version": 2}', "newer"),
        ('{"schema_version": 1, "job": 3}', "damaged"),
    ],
)
@pytest.mark.usefixtures("state")
def test_a_damaged_job_is_a_sentence(text: str, says: str) -> None:
    storage.write_job(a_job())
    storage.job_file("inv-1").write_text(text)
    with pytest.raises(ConfigError, match=says):
        storage.read_job(storage.job_file("inv-1"))
    with pytest.raises(ConfigError, match="does not exist; 'clusterctl nightly enable"):
        storage.read_job(storage.job_file("other"))


@pytest.mark.usefixtures("state")
def test_one_night_of_a_job_at_a_time() -> None:
    with storage.lock("inv-1"):
        assert storage.is_running("inv-1")
        with pytest.raises(LockedError, match=str(os.getpid())), storage.lock("inv-1"):
            pass
    assert not storage.is_running("inv-1")
    assert not storage.is_running("never")


@pytest.mark.usefixtures("state")
def test_looking_whether_a_night_runs_keeps_none_from_beginning() -> None:
    with storage.lock("inv-1"):
        pass
    with paths.nightly_lock(storage.folder_of("inv-1")).open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with storage.lock("inv-1"):
            assert storage.is_running("inv-1")
        clock.sleep(0.3)


@pytest.mark.usefixtures("state")
def test_the_last_notification_is_kept() -> None:
    storage.write_job(a_job())
    assert storage.told("inv-1") is None
    storage.write_told("inv-1", Told(night="n", state=("PASS",)))
    assert storage.told("inv-1") == Told(night="n", state=("PASS",))
    paths.nightly_notification(storage.folder_of("inv-1")).write_text("{")
    assert storage.told("inv-1") is None


# --- status ---


@pytest.fixture
def standing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state
    monkeypatch.setattr(scheduler, "problem", lambda *_given: "")
    monkeypatch.setattr(scheduler, "zone", lambda: UTC)


def keep(job: Job, started: str, **fields: Any) -> Night:
    name = f"{utc(started):%Y%m%dT%H%M%SZ}-1"
    folder = paths.private_folder(paths.nights_dir(storage.folder_of(job.job)) / name)
    kept = a_night(started=utc(started), folder=str(folder), **fields).model_copy(
        update={"job": job.job, "night": name}
    )
    storage.write_night(kept)
    return kept


@pytest.mark.usefixtures("standing")
def test_status_of_a_good_job() -> None:
    job = a_job(hook=HookTarget(url="https://me:pw@host:8443/SECRET?t=1"))
    keep(
        job, "2026-05-02T02:00", hook=HookResult(at=utc("2026-05-02T02:09"), ok=False, attempts=4, seconds=9, words="x")
    )
    keep(job, "2026-05-03T02:00")
    found = install.status(job, utc("2026-05-03T12:00"))
    assert (found.bad, found.missed, found.last_missed, found.running) == (False, (), False, False)
    assert found.next == utc("2026-05-04T02:00")
    assert [night.started.day for night in found.nights] == [3, 2]
    assert found.hook == "https://host:8443/…"
    assert found.hook_result is not None
    assert "SECRET" not in found.model_dump_json()


@pytest.mark.usefixtures("standing")
def test_status_of_a_night_that_never_came() -> None:
    job = a_job()
    keep(job, "2026-05-02T02:00")
    assert not install.status(job, utc("2026-05-03T02:30")).bad
    found = install.status(job, utc("2026-05-03T03:30"))
    assert (found.bad, found.last_missed, found.missed) == (True, True, (utc("2026-05-03T02:00"),))
    keep(job, "2026-05-03T09:00")
    assert not install.status(job, utc("2026-05-03T09:30")).bad
    keep(job, "2026-05-05T02:00")
    later = install.status(job, utc("2026-05-05T12:00"))
    assert (later.bad, later.missed) == (False, (utc("2026-05-04T02:00"),))  # told, and over


@pytest.mark.usefixtures("standing")
@pytest.mark.parametrize(
    ("fields", "is_bad"),
    [
        ({"verdict": Verdict.FAIL}, True),
        ({"verdict": Verdict.ERROR, "outcome": "failed"}, True),
        ({"verdict": None, "outcome": "missed", "message": "n1 is held"}, True),
        ({"verdict": None, "outcome": "interrupted"}, True),
        ({"verdict": None, "outcome": "running"}, True),  # nobody holds its lock: broken off
        ({}, False),
    ],
    ids=["fail", "error", "held", "interrupted", "broken off", "pass"],
)
def test_status_of_the_last_night(fields: dict[str, Any], is_bad: bool) -> None:
    job = a_job()
    keep(job, "2026-05-02T02:00", **fields)
    assert install.status(job, utc("2026-05-02T02:30")).bad is is_bad


@pytest.mark.usefixtures("state")
def test_a_schedule_that_is_gone_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "problem", lambda *_given: "its line is gone")
    found = install.status(a_job(), utc("2026-05-01T12:30"))
    assert (found.bad, found.scheduled, found.problem) == (True, False, "its line is gone")


# --- reports ---


def test_reports_elsewhere_and_what_is_pruned_there(world: World, tmp_path: Path) -> None:
    place = tmp_path / "reports"
    place.mkdir(mode=0o755)
    textfile = tmp_path / "node.prom"
    job = a_job(reports=str(place), prometheus=str(textfile), keep_days=1)
    old = night.run(job, timing=world.timing())
    (place / "mine.txt").write_text("mine")
    (place / old.night / "notes.txt").write_text("mine")
    assert Path(old.reports["junit"]).parent == place / old.night
    assert textfile.stat().st_mode & 0o777 == 0o644
    assert "clusterctl_night_missed" in textfile.read_text()
    storage.write_night(old.model_copy(update={"started": old.started - timedelta(days=9)}))
    clock.sleep(1.1)  # nights are named by the second
    new = night.run(job, timing=world.timing())
    assert not Path(old.folder).exists()
    assert {path.name for path in place.iterdir()} == {"mine.txt", old.night, new.night}
    assert [path.name for path in (place / old.night).iterdir()] == ["notes.txt"]
    assert Path(new.reports["junit"]).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user")
def test_a_folder_of_reports_in_which_others_write_leads_nowhere(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where a link has the name of the night before it, nor where one takes it before the night is removed."""
    place, victim = tmp_path / "reports", tmp_path / "victim"
    place.mkdir()
    victim.mkdir(mode=0o700)
    place.chmod(0o777)
    (victim / "report.html").write_text("precious")
    job = a_job(reports=str(place))
    made = storage.new_night

    def planted(name: str, started: datetime) -> tuple[str, Path]:
        night_name, folder = made(name, started)
        (place / night_name).symlink_to(victim)
        os.lchown(place / night_name, 65534, 65534)
        return night_name, folder

    with monkeypatch.context() as patch:
        patch.setattr(storage, "new_night", planted)
        came = night.run(job, timing=world.timing())
    assert came.reports == {}
    assert "is a link that another user can change" in came.problems[0]
    clock.sleep(1.1)  # nights are named by the second
    later = night.run(job, timing=world.timing())
    folder = Path(later.reports["html"]).parent
    assert folder.stat().st_mode & 0o777 == 0o755
    folder.rename(place / "moved")
    folder.symlink_to(victim)
    os.lchown(folder, 65534, 65534)
    storage.remove_night(later)
    assert (victim / "report.html").read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o700


def test_reports_that_cannot_be_written_cost_a_sentence(world: World, tmp_path: Path) -> None:
    came = night.run(a_job(reports=str(tmp_path / "gone")), timing=world.timing())
    assert came.verdict is Verdict.PASS
    assert came.reports == {}
    assert "gone cannot be written: No such file" in came.problems[0]


def test_metrics_of_a_night_are_read_back_whatever_the_inventory_is_called() -> None:
    hostile = 'in "v\\ \n\r\ud800.ini'
    drift = Drift(hosts=(HostDrift(host="n1"), HostDrift(host="n2")))
    one = a_night(verdict=Verdict.FAIL, drift=drift, missed=(utc("2026-05-01T02:00"),))
    text = night.metrics(one, a_record(Verdict.FAIL).model_copy(update={"inventory": hostile}))
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    (missed,) = found["clusterctl_night_missed"]
    assert (missed.value, missed.labels) == (1.0, {"inventory": 'in "v\\ \n ?.ini'})
    assert found["clusterctl_night_drifted_nodes"][0].value == 2.0
    verdicts = {sample.labels["verdict"]: sample.value for sample in found["clusterctl_night_verdict"]}
    assert verdicts == {"PASS": 0.0, "FAIL": 1.0, "ERROR": 0.0, "SKIP": 0.0}
    assert found["clusterctl_night_start_timestamp_seconds"][0].value == one.started.timestamp()
    assert "clusterctl_validation_verdict" in found
