"""``nightly status``: the next night, the past nights and the missed ones."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from clusterctl.nightly import notify, schedule, scheduler, storage
from clusterctl.nightly.records import JobStatus

if TYPE_CHECKING:
    from clusterctl.nightly.records import Job, Night

_BROKEN_OFF = "It did not end: the machine or the process was stopped."


def status(job: Job, now: datetime | None = None, *, most: int = 14) -> JobStatus:
    """Return the status of a job.

    Args:
        job: the job.
        now: the present; None means the real one.
        most: how many nights to return.
    """
    now = now or datetime.now(timezone.utc)
    at, zone = schedule.parse_at(job.at), scheduler.zone()
    running = storage.is_running(job.job)
    nights = tuple(
        _settled(night, running=running and not number) for number, night in enumerate(storage.nights(job.job))
    )
    begun = [night.started for night in nights if night.outcome != "missed"]
    missed = schedule.missed(at, zone, job.since, now, begun, job.keep_days)
    due = schedule.due(at, zone, job.since, now)
    last_missed = bool(missed) and missed[0] == due
    problem = scheduler.problem(job.place, job.job)
    newest = next((night for night in nights if night.outcome != "running"), None)
    gave_up = newest is not None and newest.outcome == "missed" and not _began_after(nights, newest)
    called = next((night.hook for night in nights if night.hook is not None), None)
    return JobStatus(
        job=job.job,
        inventory=job.inventory,
        at=job.at,
        suite=job.suite,
        place=job.place,
        scheduled=not problem,
        problem=problem,
        next=schedule.next_after(at, zone, now),
        running=running,
        nights=nights[:most],
        missed=missed,
        last_missed=last_missed or gave_up,
        hook=notify.shown(job.hook) if job.hook else "",
        hook_result=called,
        bad=last_missed or gave_up or bool(problem) or (newest is not None and newest.is_bad),
    )


def _settled(night: Night, *, running: bool) -> Night:
    """Return a night with its true outcome: a night that is recorded as running and does not run was interrupted."""
    if night.outcome != "running" or running:
        return night
    return night.model_copy(update={"outcome": "interrupted", "message": _BROKEN_OFF})


def _began_after(nights: tuple[Night, ...], night: Night) -> bool:
    return any(other.outcome != "missed" and other.started > night.started for other in nights)
