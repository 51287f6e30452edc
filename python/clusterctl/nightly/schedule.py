"""Schedule of the nights: when a night is due, and which nights were missed. Pure, with aware datetimes.

A night is due when the local clock shows the time of the job. As in systemd, a time that the clock shows twice counts
once, the first time; a day whose clock skips that time (the start of summer time) has no night.
"""

from __future__ import annotations

import io
import re
import shlex
from datetime import datetime, time, timedelta, timezone
from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date, tzinfo

    from clusterctl.nightly.records import Scope


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

    ``after`` itself is left out, ``until`` is not.
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

    A run that begins late, since the machine was off, still belongs to the night before it. A night with an open window
    is not missed. Earlier records than those of ``keep_days`` are removed.
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


# --- The marked block of a job in a crontab; every other line stays as it is ------------------------------------------


def cron_line(argv: Sequence[str], at: time) -> str:
    """Return the crontab line that runs a night.

    The shell's quoting comes first, then cron's own: an unescaped ``%`` ends the command there (crontab(5)).

    Raises:
        ConfigError: a word does not fit into a crontab line.
    """
    for word in argv:
        refuse_control_characters(word)
        if "\\" in word:
            raise ConfigError(f"{word!r} holds a backslash, which cron programs read in different ways; rename it.")
    command = shlex.join(argv).replace("%", "\\%")
    return f"{cron_fields(at)} {command}"


def with_block(text: str, job: str, entry: str) -> str:
    """Return a crontab with this job's block, in place of an earlier one or at its end."""
    kept = without_block(text, job)
    kept += "" if kept.endswith("\n") or not kept else "\n"
    return f"{kept}{_first(job)}\n{entry}\n{_last(job)}\n"


def without_block(text: str, job: str) -> str:
    """Return a crontab without this job's block; every other byte stays.

    Raises:
        ConfigError: the block lacks an end, or there are several blocks.
    """
    first, last = _first(job), _last(job)
    lines = list(io.StringIO(text))  # str.splitlines also ends a line elsewhere
    bare = [each.rstrip("\n") for each in lines]
    if first not in bare and last not in bare:
        return text
    if bare.count(first) != 1 or bare.count(last) != 1 or bare.index(first) > bare.index(last):
        raise ConfigError(
            f"The crontab's lines between '{first}' and '{last}' are damaged; repair them with 'crontab -e'."
        )
    return "".join(lines[: bare.index(first)] + lines[bare.index(last) + 1 :])


def has_block(text: str, job: str) -> bool:
    """Whether this job has a block with a line in it."""
    return without_block(text, job) != text


def _first(job: str) -> str:
    return f"# clusterctl nightly {job}: begin (written by 'clusterctl nightly enable')"


def _last(job: str) -> str:
    return f"# clusterctl nightly {job}: end"


# --- The timer and the service of a job, quoted by the rules of systemd -----------------------------------------------
#
# The rules are those of systemd.syntax(7) ("Quoting"), systemd.service(5) ("Command lines") and systemd.unit(5)
# ("Specifiers").

MARK = "# Written by 'clusterctl nightly enable'; 'clusterctl nightly disable' removes it. Job: "
_NOT_IN_A_PROGRAM = frozenset("'\"\\$")  # systemd refuses them in the path of the program, even quoted
_LONGEST_NIGHT = "20h"  # a night that hangs must not cost the next night


def unit_name(job: str) -> str:
    """Return the name of a job's units, without the suffix."""
    return f"clusterctl-nightly-{job}"


def quoted(word: str) -> str:
    """Quote one word of a command line."""
    refuse_control_characters(word)
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def service(job: str, argv: Sequence[str], scope: Scope) -> str:
    """Return the service that runs a night.

    Only the system manager knows when the network is up.
    """
    if not argv[0].startswith("/") or _NOT_IN_A_PROGRAM & set(argv[0]):
        raise ConfigError(
            f"systemd cannot start {argv[0]!r}: a unit names its program by an absolute path without quotes, '\\\\' "
            "and '$'; install clusterctl elsewhere."
        )
    network = "Wants=network-online.target\nAfter=network-online.target\n" if scope == "system" else ""
    return (
        f"{MARK}{job}\n"
        "[Unit]\n"
        f"Description=clusterctl night of {job}\n"
        f"{network}"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"ExecStart={' '.join(map(quoted, argv))}\n"
        f"TimeoutStartSec={_LONGEST_NIGHT}\n"
        "UMask=0077\n"
    )


def timer(job: str, at: time) -> str:
    """Return the timer that starts the service, and starts it late where the machine was off."""
    return (
        f"{MARK}{job}\n"
        "[Unit]\n"
        f"Description=clusterctl nights of {job}\n"
        "\n"
        "[Timer]\n"
        f"OnCalendar={on_calendar(at)}\n"
        "Persistent=true\n"
        "AccuracySec=1s\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )


def is_ours(text: str, job: str) -> bool:
    """Whether a unit file was written for this job."""
    return text.startswith(f"{MARK}{job}\n")


def refuse_control_characters(word: str) -> None:
    """Refuse a control character: units, crontab lines and file names cannot hold one."""
    if any(ord(letter) < ord(" ") or letter == "\x7f" for letter in word):
        raise ConfigError(f"{word!r} holds a control character, which a schedule cannot carry; rename it.")
