"""Schedule of the nights: when a night is due, and which nights were missed. Pure, with aware datetimes.

A night is due when the local clock shows the time of the job. As in systemd, a time that the clock shows twice counts
once, the first time; a day whose clock skips that time (the start of summer time) has no night.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone
from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date, tzinfo

_AT = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
WINDOW = timedelta(hours=1)  # a night without a run by then is missed, until a late run begins
EARLY = timedelta(seconds=30)  # clocks are adjusted, and timers are grouped


def parse_at(text: str) -> time:
    """Read the time of day that a user gave.

    Raises:
        ConfigError: the text is not a time of day.
    """
    found = _AT.fullmatch(text.strip(" "))
    if not found:
        raise ConfigError(
            f"--at {text!r} is not a time of day; give hours and minutes of the local clock, as in 02:00."
        )
    return time(int(found[1]), int(found[2]))


def slots(at: time, zone: tzinfo, after: datetime, until: datetime) -> list[datetime]:
    """Return the moments at which nights were due, oldest first, in UTC.

    Args:
        at: the job's time.
        zone: the time zone of the machine.
        after: only later moments.
        until: only moments up to this one.
    """
    days = _days(after.astimezone(zone).date() - timedelta(days=1), until.astimezone(zone).date() + timedelta(days=1))
    found = (moment(day, at, zone) for day in days)
    return [slot for slot in found if slot is not None and after < slot <= until]


def moment(day: date, at: time, zone: tzinfo) -> datetime | None:
    """Return when the clock of that day first shows the time, in UTC; None where it skips the time."""
    local = datetime.combine(day, at, tzinfo=zone)  # fold 0: the first of two
    there = local.astimezone(timezone.utc)
    return there if there.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None) else None


def next_after(at: time, zone: tzinfo, now: datetime) -> datetime:
    """Return when the next night is due, in UTC."""
    return slots(at, zone, now, now + timedelta(days=3))[0]  # at most one day in a row skips the time


def due(at: time, zone: tzinfo, since: datetime, started: datetime) -> datetime | None:
    """Return the night of a run with that start: the last night that was due; None before the first."""
    found = slots(at, zone, max(since, started - timedelta(days=3)), started + EARLY)
    return found[-1] if found else None


def missed(
    at: time, zone: tzinfo, since: datetime, now: datetime, runs: Iterable[datetime], keep_days: int
) -> tuple[datetime, ...]:
    """Return the nights without a run, newest first.

    A run that begins late, since the machine was off, still belongs to the night before it.

    Args:
        at: the job's time.
        zone: the time zone of the machine.
        since: when the job was enabled.
        now: the present; a night with an open window is not missed.
        runs: when runs began.
        keep_days: how many days to look back; earlier records are removed.
    """
    begun = sorted(runs)
    all_slots = slots(at, zone, max(since, now - timedelta(days=keep_days)), now)
    if not all_slots:
        return ()
    ends = [*all_slots[1:], now + EARLY + timedelta(seconds=1)]
    lost = [
        slot
        for slot, end in zip(all_slots, ends, strict=True)
        if now >= slot + WINDOW and not any(slot - EARLY <= run < end - EARLY for run in begun)
    ]
    return tuple(reversed(lost))


def skipped_nights(at: time, zone: tzinfo, now: datetime, days: int = 366) -> tuple[date, ...]:
    """Return the coming days whose clock skips the time."""
    first = now.astimezone(zone).date()
    return tuple(day for day in _days(first, first + timedelta(days=days)) if moment(day, at, zone) is None)


def on_calendar(at: time) -> str:
    """Return the time as systemd.time(7) writes a daily event."""
    return f"*-*-* {at:%H:%M}:00"


def cron_fields(at: time) -> str:
    """Return the time as crontab(5) writes a daily event."""
    return f"{at.minute} {at.hour} * * *"


def _days(first: date, last: date) -> Sequence[date]:
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]
