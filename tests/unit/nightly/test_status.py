from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.model.results import Verdict
from clusterctl.nightly import install, scheduler, storage
from clusterctl.nightly.records import HookResult, HookTarget, Job, Night
from clusterctl.state import paths
from nights import (
    UTC,
    a_job,
    a_night,
    utc,
)

if TYPE_CHECKING:
    from pathlib import Path


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
