from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from datetime import date, datetime, time
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from clusterctl.nightly import schedule, scheduler
from clusterctl.support.errors import ConfigError
from nights import UTC, utc

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


# --- cron ---


SPACE = '/opt/my tools/100%/it\'s "$HOME" `id` ;&|<>*/clusterctl'


def test_a_cron_line_says_the_same_to_cron_and_the_shell() -> None:
    argv = [SPACE, "nightly", "run", "--job", "/state %d/job.json"]
    line = schedule.cron_line(argv, time(23, 5))
    assert line.startswith("5 23 * * * ")
    command = line.removeprefix("5 23 * * * ")
    assert "%" not in command.replace("\\%", "")
    assert shlex.split(command.replace("\\%", "%")) == argv  # what cron hands to sh
    with pytest.raises(ConfigError, match="backslash"):
        schedule.cron_line(["/a\\b"], time(2))


@pytest.mark.parametrize(
    "before",
    ["", "MAILTO=me\n# mine\n0 1 * * * true % stdin\n", "0 1 * * * x\n\n\n", "é \udcff\n"],
    ids=["empty", "others", "blank lines", "no utf-8"],
)
def test_a_block_comes_and_goes_and_leaves_the_rest(before: str) -> None:
    once = schedule.with_block(before, "a-1", "0 2 * * * one")
    both = schedule.with_block(once, "b-2", "0 3 * * * two")
    again = schedule.with_block(both, "a-1", "0 4 * * * three")
    assert "one" not in again
    assert again.count("three") == 1
    assert "two" in again
    assert schedule.without_block(schedule.without_block(again, "a-1"), "b-2") == before
    assert schedule.has_block(both, "a-1")
    assert not schedule.has_block(both, "a")


def test_a_line_without_its_end_keeps_its_text() -> None:
    assert schedule.without_block(schedule.with_block("0 1 * * * x", "a", "y"), "a") == "0 1 * * * x\n"


@pytest.mark.parametrize("cut", ["begin", "end"])
def test_a_damaged_block_is_left_to_its_owner(cut: str) -> None:
    text = schedule.with_block("0 1 * * * mine\n", "a", "0 2 * * * x")
    damaged = "".join(line for line in text.splitlines(keepends=True) if f": {cut}" not in line)
    with pytest.raises(ConfigError, match="crontab -e"):
        schedule.without_block(damaged, "a")


# --- systemd ---


def verify(tmp_path: Path, service: str, timer: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "x.service").write_text(service)
    (tmp_path / "x.timer").write_text(timer)
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "./x.timer", "./x.service"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("scope", ["user", "system"])
def test_systemd_takes_the_units(tmp_path: Path, scope: Any) -> None:
    hostile = tmp_path / "with space %h ü"
    hostile.mkdir()
    program = hostile / "clusterctl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    argv = [str(program), "nightly", "run", "--job", "/x/$HOME ${y} %n \"d\" 's' \\/job.json"]
    done = verify(tmp_path, schedule.service("x", argv, scope), schedule.timer("x", time(2)))
    assert (done.returncode, done.stderr) == (0, "")
    broken = verify(tmp_path, schedule.service("x", argv, scope).replace("%%h", "%h"), schedule.timer("x", time(2)))
    assert broken.returncode != 0  # so the verification sees the program's path


def test_a_word_of_a_unit_is_quoted_by_systemds_rules() -> None:
    assert schedule.quoted('a b%c$d"e\\f') == '"a b%%c$$d\\"e\\\\f"'


@pytest.mark.parametrize("word", ["/a\nb", "/a\tb", "/a\x00b", "/a\x7f"], ids=["newline", "tab", "nul", "delete"])
def test_a_control_character_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="control character"):
        schedule.service("x", ["/bin/true", word], "user")
    with pytest.raises(ConfigError, match="control character"):
        schedule.cron_line(["/bin/true", word], time(2))


@pytest.mark.parametrize("program", ["clusterctl", "/opt/$x/clusterctl", "/opt/it's/clusterctl"])
def test_a_program_that_systemd_cannot_start_is_refused(program: str) -> None:
    with pytest.raises(ConfigError, match="systemd cannot start"):
        schedule.service("x", [program], "user")


# --- scheduler ---


@pytest.mark.parametrize(
    ("rc", "err", "empty"),
    [
        (1, "no crontab for me", True),
        (1, "crontab: can't open 'root': No such file or directory", True),  # busybox
        (1, "", True),
        (-9, "", False),
        (1, "must be privileged", False),
    ],
)
def test_a_crontab_that_was_not_read_is_not_taken_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, rc: int, err: str, empty: bool
) -> None:
    written: list[str] = []

    def crontab_program(argv: list[str], **given: Any) -> subprocess.CompletedProcess[bytes]:
        if argv[-1] == "-l":
            return subprocess.CompletedProcess(argv, rc, b"", err.encode())
        written.append(given["input"].decode())
        return subprocess.CompletedProcess(argv, 0, b"", b"")

    monkeypatch.setattr(scheduler.subprocess, "run", crontab_program)
    monkeypatch.setattr(scheduler.shutil, "which", lambda name: f"/usr/bin/{name}")
    with contextlib.nullcontext() if empty else pytest.raises(ConfigError, match="cannot be read"):
        scheduler.with_cron("inv-1", ["/bin/true"], time(2))
    assert len(written) == empty


def test_the_zone_is_the_machines_not_the_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    assert str(scheduler.zone()) != "Pacific/Kiritimati"
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    done = subprocess.run(
        ["date", "-d", "@1767225600", "+%z"],
        env={k: v for k, v in os.environ.items() if k != "TZ"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert moment.astimezone(scheduler.zone()).strftime("%z") == done.stdout.strip()
