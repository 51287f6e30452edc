from __future__ import annotations

import fcntl
import os
import threading
import time as clock
from typing import TYPE_CHECKING

import pytest
from clusterctl.nightly import storage
from clusterctl.nightly.records import HookTarget, Told
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError, LockedError
from nights import (
    a_job,
)

if TYPE_CHECKING:
    from pathlib import Path


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
