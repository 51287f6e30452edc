"""When a night is due, and which nights went by without a run; pure, with aware datetimes throughout.

A night is due when the clock on the wall shows the time of the job. As systemd has it, a time that a night's clock
shows twice counts the first time, and a night whose clock leaves that time out (the begin of summer time) is none.
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
WINDOW = timedelta(hours=1)  # a night in which nothing has begun by then is missed, until something begins after all
EARLY = timedelta(seconds=30)  # clocks are set, and timers are coalesced


def parse_at(text: str) -> time:
    """Read the time of day that a user gave.

    Raises:
        ConfigError: it is none.
    """
    found = _AT.fullmatch(text.strip(" "))
    if not found:
        raise ConfigError(f"--at {text!r} is no time of day; give hours and minutes of the local clock, such as 02:00.")
    return time(int(found[1]), int(found[2]))


def slots(at: time, zone: tzinfo, after: datetime, until: datetime) -> list[datetime]:
    """Return the moments at which nights were due, oldest first, in UTC.

    Args:
        at: the job's time.
        zone: what the machine's clock shows.
        after: only what comes later than this.
        until: and not later than this.
    """
    days = _days(after.astimezone(zone).date() - timedelta(days=1), until.astimezone(zone).date() + timedelta(days=1))
    found = (moment(day, at, zone) for day in days)
    return [slot for slot in found if slot is not None and after < slot <= until]


def moment(day: date, at: time, zone: tzinfo) -> datetime | None:
    """Return when that day's clock shows the time first, in UTC; None where it never does."""
    local = datetime.combine(day, at, tzinfo=zone)  # fold 0: the first of two
    there = local.astimezone(timezone.utc)
    return there if there.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None) else None


def next_after(at: time, zone: tzinfo, now: datetime) -> datetime:
    """Return when the next night is due, in UTC."""
    return slots(at, zone, now, now + timedelta(days=3))[0]  # one day at most has no such time


def due(at: time, zone: tzinfo, since: datetime, started: datetime) -> datetime | None:
    """Return the night that a run which started then is about: the last that was due; None before the first."""
    found = slots(at, zone, max(since, started - timedelta(days=3)), started + EARLY)
    return found[-1] if found else None


def missed(
    at: time, zone: tzinfo, since: datetime, now: datetime, runs: Iterable[datetime], keep_days: int
) -> tuple[datetime, ...]:
    """Return the nights in which nothing began, newest first.

    A run that begins late (the machine was off at the time) still belongs to the night before it.

    Args:
        at: the job's time.
        zone: what the machine's clock shows.
        since: when the job was enabled.
        now: the present; a night whose window is still open is not missed.
        runs: when runs began.
        keep_days: how far back to look, for what began earlier is forgotten.
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
    """Return the coming days whose clock never shows the time."""
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
