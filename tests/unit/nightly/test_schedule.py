from __future__ import annotations

import os
import subprocess
from datetime import date, datetime, time
from zoneinfo import ZoneInfo

import pytest
from clusterctl.nightly import schedule
from clusterctl.support.errors import ConfigError
from nights import (
    UTC,
    utc,
)

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(("text", "expected"), [("02:00", time(2)), ("2:05", time(2, 5)), (" 23:59 ", time(23, 59))])
def test_a_time_of_day(text: str, expected: time) -> None:
    assert schedule.parse_at(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "24:00",
        "2",
        "02:60",
        "2:5",
        "02:00:00",
        "-1:00",
        "02:00\n",
        "\u0660\u0662:\u0660\u0660",
        "noon",
        "02:00 UTC",
        "*:00",
    ],
)
def test_what_is_no_time_of_day(text: str) -> None:
    with pytest.raises(ConfigError, match="--at"):
        schedule.parse_at(text)


def test_nights_around_midnight() -> None:
    found = schedule.slots(time(0, 0), UTC, utc("2026-03-01T00:00"), utc("2026-03-03T00:00"))
    assert found == [utc("2026-03-02T00:00"), utc("2026-03-03T00:00")]  # after, until and including
    assert schedule.next_after(time(23, 59), UTC, utc("2026-12-31T23:59")) == utc("2027-01-01T23:59")


def test_a_night_whose_clock_leaves_the_time_out_is_none() -> None:
    found = schedule.slots(time(2, 30), BERLIN, utc("2026-03-27T12:00"), utc("2026-03-30T12:00"))
    assert found == [utc("2026-03-28T01:30"), utc("2026-03-30T00:30")]
    assert schedule.skipped_nights(time(2, 30), BERLIN, utc("2026-01-01T00:00")) == (date(2026, 3, 29),)
    assert schedule.skipped_nights(time(3, 30), BERLIN, utc("2026-01-01T00:00")) == ()
    nights = schedule.missed(
        time(2, 30), BERLIN, utc("2026-03-27T12:00"), utc("2026-03-29T12:00"), [utc("2026-03-28T01:30")], 30
    )
    assert nights == ()


def test_a_time_that_the_clock_shows_twice_counts_the_first_time() -> None:
    found = schedule.slots(time(2, 30), BERLIN, utc("2026-10-24T12:00"), utc("2026-10-26T12:00"))
    assert found == [utc("2026-10-25T00:30"), utc("2026-10-26T01:30")]


@pytest.mark.parametrize("start", ["2026-03-27 12:00:00", "2026-10-23 12:00:00", "2026-12-30 12:00:00"])
@pytest.mark.parametrize("at", [time(2, 30), time(0, 0), time(23, 59), time(3, 0)], ids=str)
def test_nights_are_due_when_systemd_has_them(start: str, at: time) -> None:
    argv = ["systemd-analyze", "calendar", "--iterations=5", f"--base-time={start} UTC"]
    out = subprocess.run(
        [*argv, f"{schedule.on_calendar(at)} Europe/Berlin"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TZ": "UTC"},
    ).stdout
    lines = [line.partition(": ")[2].strip() for line in out.splitlines() if "Next elapse" in line or "Iter. #" in line]
    expected = [datetime.strptime(line[4:], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC) for line in lines]
    assert len(expected) == 5
    assert schedule.slots(at, BERLIN, utc(start), expected[-1]) == expected


def test_what_was_missed() -> None:
    since, at = utc("2026-05-01T12:00"), time(2)

    def missed(now: str, *runs: str) -> list[str]:
        found = schedule.missed(at, UTC, since, utc(now), map(utc, runs), 30)
        return [f"{slot:%d}" for slot in found]

    assert missed("2026-05-01T13:00") == []  # nothing was due yet
    assert missed("2026-05-02T02:30") == []  # its window is open
    assert missed("2026-05-02T03:00") == ["02"]
    assert missed("2026-05-02T03:00", "2026-05-02T01:59:45") == []  # a clock that was set
    assert missed("2026-05-02T18:00", "2026-05-02T17:00") == []  # late, as when the machine was off
    assert missed("2026-05-05T12:00", "2026-05-02T02:00", "2026-05-05T09:00") == ["04", "03"]
    assert missed("2026-07-01T12:00")[-1] == "02"  # no further back than nights are kept
    assert len(missed("2026-07-01T12:00")) == 30


def test_which_night_a_run_is_about() -> None:
    since = utc("2026-05-01T12:00")
    assert schedule.due(time(2), UTC, since, utc("2026-05-01T13:00")) is None
    assert schedule.due(time(2), UTC, since, utc("2026-05-02T02:00")) == utc("2026-05-02T02:00")
    assert schedule.due(time(2), UTC, since, utc("2026-05-02T23:00")) == utc("2026-05-02T02:00")
