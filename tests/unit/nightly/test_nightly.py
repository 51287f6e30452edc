"""The nights: when they are due, what is written where, what changed, and hooks that fail, hang and flood."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time as clock
from datetime import date, datetime, time, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from clusterctl.model import run_record as model_run_record
from clusterctl.model.results import CheckResult, Culprit, RankReport, ValidationRecord, Verdict, WrongAnswer
from clusterctl.nightly import (
    cron as crontab,
)
from clusterctl.nightly import (
    install,
    notify,
    policy,
    schedule,
    scheduler,
    status,
    storage,
    systemd,
)
from clusterctl.nightly import (
    run as night,
)
from clusterctl.nightly.records import (
    BadCheck,
    Drift,
    HookResult,
    HookTarget,
    HostDrift,
    Job,
    Night,
    Proof,
    SchedulePlace,
    Told,
)
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError, LockedError
from clusterctl.validation import suites

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl import suite
    from clusterctl.validation.run import ValidationOptions

BERLIN = ZoneInfo("Europe/Berlin")
UTC = timezone.utc
SPACE = '/opt/my tools/100%/it\'s "$HOME" `id` ;&|<>*/clusterctl'


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- when ---


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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
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


# --- units ---


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


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@needs_systemd
@pytest.mark.parametrize("scope", ["user", "system"])
def test_systemd_takes_the_units(tmp_path: Path, scope: Any) -> None:
    hostile = tmp_path / "with space %h ü"
    hostile.mkdir()
    program = hostile / "clusterctl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    argv = [str(program), "nightly", "run", "--job", "/x/$HOME ${y} %n \"d\" 's' \\/job.json"]
    done = verify(tmp_path, systemd.service("x", argv, scope), systemd.timer("x", time(2)))
    assert (done.returncode, done.stderr) == (0, "")
    broken = verify(tmp_path, systemd.service("x", argv, scope).replace("%%h", "%h"), systemd.timer("x", time(2)))
    assert broken.returncode != 0  # so the verification sees the program's path


def test_a_word_of_a_unit_is_quoted_by_systemds_rules() -> None:
    assert systemd.quoted('a b%c$d"e\\f') == '"a b%%c$$d\\"e\\\\f"'


@pytest.mark.parametrize("word", ["/a\nb", "/a\tb", "/a\x00b", "/a\x7f"], ids=["newline", "tab", "nul", "delete"])
def test_a_control_character_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="control character"):
        systemd.service("x", ["/bin/true", word], "user")
    with pytest.raises(ConfigError, match="control character"):
        crontab.line(["/bin/true", word], time(2))


@pytest.mark.parametrize("program", ["clusterctl", "/opt/$x/clusterctl", "/opt/it's/clusterctl"])
def test_a_program_that_systemd_cannot_start_is_refused(program: str) -> None:
    with pytest.raises(ConfigError, match="systemd cannot start"):
        systemd.service("x", [program], "user")


# --- crontab ---


def test_a_cron_line_says_the_same_to_cron_and_the_shell() -> None:
    argv = [SPACE, "nightly", "run", "--job", "/state %d/job.json"]
    line = crontab.line(argv, time(23, 5))
    assert line.startswith("5 23 * * * ")
    command = line.removeprefix("5 23 * * * ")
    assert "%" not in command.replace("\\%", "")
    assert shlex.split(command.replace("\\%", "%")) == argv  # what cron hands to sh
    with pytest.raises(ConfigError, match="backslash"):
        crontab.line(["/a\\b"], time(2))


@pytest.mark.parametrize(
    "before",
    ["", "MAILTO=me\n# mine\n0 1 * * * true % stdin\n", "0 1 * * * x\n\n\n", "é \udcff\n"],
    ids=["empty", "others", "blank lines", "no utf-8"],
)
def test_a_block_comes_and_goes_and_leaves_the_rest(before: str) -> None:
    once = crontab.with_block(before, "a-1", "0 2 * * * one")
    both = crontab.with_block(once, "b-2", "0 3 * * * two")
    again = crontab.with_block(both, "a-1", "0 4 * * * three")
    assert "one" not in again
    assert again.count("three") == 1
    assert "two" in again
    assert crontab.without_block(crontab.without_block(again, "a-1"), "b-2") == before
    assert crontab.has_block(both, "a-1")
    assert not crontab.has_block(both, "a")


def test_a_line_without_its_end_keeps_its_text() -> None:
    assert crontab.without_block(crontab.with_block("0 1 * * * x", "a", "y"), "a") == "0 1 * * * x\n"


@pytest.mark.parametrize("cut", ["begin", "end"])
def test_a_damaged_block_is_left_to_its_owner(cut: str) -> None:
    text = crontab.with_block("0 1 * * * mine\n", "a", "0 2 * * * x")
    damaged = "".join(line for line in text.splitlines(keepends=True) if f": {cut}" not in line)
    with pytest.raises(ConfigError, match="crontab -e"):
        crontab.without_block(damaged, "a")


# --- verdict, change, retention ---


def a_night(**fields: Any) -> Night:
    given = {"verdict": Verdict.PASS, "outcome": "done", "started": utc("2026-05-02T02:00"), **fields}
    return Night(job="j", night="n", inventory="/i", suite="nightly", **given)


def proof(verdict: Verdict = Verdict.PASS, *bad: BadCheck, culprits: tuple[Culprit, ...] = ()) -> Proof:
    return Proof(run_id="r", folder="/f", verdict=verdict, bad=bad, culprits=culprits)


@pytest.mark.parametrize(
    ("found", "drift", "verdict"),
    [
        (proof(), Drift(), Verdict.PASS),
        (proof(), Drift(hosts=(HostDrift(host="n1"),)), Verdict.FAIL),
        (proof(), Drift(problem="held"), Verdict.ERROR),
        (proof(), None, Verdict.ERROR),
        (proof(Verdict.SKIP), Drift(), Verdict.ERROR),
        (proof(Verdict.ERROR), Drift(), Verdict.ERROR),
        (proof(Verdict.ERROR), Drift(hosts=(HostDrift(host="n1"),)), Verdict.FAIL),
        (proof(Verdict.FAIL), None, Verdict.FAIL),
        (None, None, Verdict.ERROR),
    ],
)
def test_the_verdict_of_a_night(found: Proof | None, drift: Drift | None, verdict: Verdict) -> None:
    assert policy.verdict_of(found, drift) is verdict


def bad(*hosts: str, check: str = "allreduce", reason: str = "wrong") -> BadCheck:
    return BadCheck(check=check, verdict=Verdict.FAIL, reason=reason, hosts=hosts, certain=hosts)


def culprit(*nodes: str, ratio: float = 0.1) -> Culprit:
    kind: Any = "node" if len(nodes) == 1 else "pair"
    return Culprit(kind=kind, nodes=nodes, quantity="bandwidth", ratio=ratio, words=f"{nodes} at {ratio}")


def test_what_is_news_and_what_is_not() -> None:
    good = policy.state_of(a_night(proof=proof(), drift=Drift()))
    assert policy.change((), good) == ""  # nobody is told of a first good night
    first = policy.state_of(
        a_night(verdict=Verdict.FAIL, proof=proof(Verdict.FAIL, bad("n3"), culprits=(culprit("n3"),)))
    )
    same = policy.state_of(
        a_night(
            verdict=Verdict.FAIL,
            proof=proof(Verdict.FAIL, bad("n3", reason="other figures"), culprits=(culprit("n3", ratio=0.12),)),
        )
    )
    other = policy.state_of(
        a_night(verdict=Verdict.FAIL, proof=proof(Verdict.FAIL, bad("n4"), culprits=(culprit("n4"),)))
    )
    drifted = policy.state_of(a_night(verdict=Verdict.FAIL, proof=proof(), drift=Drift(hosts=(HostDrift(host="n1"),))))
    assert policy.change((), first) == "PASS -> FAIL; new: allreduce FAIL n3, node n3 bandwidth"
    assert policy.change(good, first) == policy.change((), first)
    assert policy.change(first, same) == ""
    assert policy.change(first, other).startswith("still FAIL; new: allreduce FAIL n4, node n4 bandwidth; gone: ")
    assert policy.change(first, good).startswith("FAIL -> PASS; gone: ")
    assert policy.change(good, drifted) == "PASS -> FAIL; new: drift n1"


def test_of_whom_a_check_is_certain() -> None:
    wrong = WrongAnswer(what="sum", expected="1", got="2")
    ranks = (
        RankReport(rank=0, host="n1"),
        RankReport(rank=1, host="n2", ok=False, compared=9, wrong=1, problems=(wrong,)),
    )
    checks = (
        CheckResult(check="reachable", verdict=Verdict.FAIL, reason="n3 is off", hosts=("n3",)),
        CheckResult(check="hello", verdict=Verdict.FAIL, reason="crashed", hosts=("n1", "n2")),
        CheckResult(check="allreduce", verdict=Verdict.FAIL, reason="wrong", hosts=("n2",), ranks=ranks),
        CheckResult(check="reduce", verdict=Verdict.PASS, reason="right"),
    )
    found = policy.proof_of(a_record(Verdict.FAIL, *checks))
    assert [(bad.check, bad.certain) for bad in found.bad] == [
        ("reachable", ("n3",)),
        ("hello", ()),
        ("allreduce", ("n2",)),
    ]


def run_record(**fields: Any) -> model_run_record.RunRecord:
    given: dict[str, Any] = {
        "verb": "provision",
        "run_id": "r",
        "argv": (),
        "inventory": "/i",
        "cluster_id": "c",
        "versions": {},
        "user": "u",
        "pid": 1,
        "started": utc("2026-05-02T02:00"),
        "outcome": "done",
        "exit_code": 0,
    }
    return model_run_record.RunRecord(**{**given, **fields})


def test_what_has_drifted() -> None:
    hosts = (
        model_run_record.HostSummary(host="n1", outcome="changed", changes=("/etc/nccl.conf",)),
        model_run_record.HostSummary(host="n2", outcome="ok"),
        model_run_record.HostSummary(host="n3", outcome="ok"),
    )
    found = policy.drift_of(
        run_record(hosts=hosts, reasons={"n2": "the inventory changed"}, drifted={"n3": "/etc/x differs"})
    )
    assert [(host.host, host.why, host.changes) for host in found.hosts] == [
        ("n1", "", ("/etc/nccl.conf",)),
        ("n3", "/etc/x differs", ()),
    ]
    assert policy.words_of(found) == "n1: provision would change /etc/nccl.conf; n3: /etc/x differs"
    assert policy.drift_of(run_record(outcome="nothing to do")) == Drift(run_id="r")


def test_drift_that_nobody_could_look_for_is_no_peace() -> None:
    lost = run_record(
        outcome="unreachable",
        exit_code=4,
        problems=(
            model_run_record.Problem(host="n2", subject="timeout", problem="n2 did not answer", kind="unreachable"),
        ),
    )
    found = policy.drift_of(lost)
    assert found.problem == "n2: n2 did not answer"
    assert policy.verdict_of(proof(), found) is Verdict.ERROR


def test_old_nights_go_and_the_newest_stays() -> None:
    now = utc("2026-05-31T12:00")
    nights = [(f"n{days}", now - timedelta(days=days)) for days in (40, 31.5, 30.5, 1)]
    assert policy.to_prune(nights, now, 30) == ("n40", "n31.5")
    assert policy.to_prune([("only", utc("2020-01-01T00:00"))], now, 30) == ()
    assert policy.to_prune([], now, 30) == ()


# --- hooks ---

QUICK = notify.RetryPolicy(attempts=3, attempt_s=1.0, pause_s=0.01, deadline_s=60, grace_s=0.5)  # for a busy machine


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "night.json"
    path.write_text(json.dumps({"verdict": "FAIL", "large": "x" * 300_000}))
    return path


def command(tmp_path: Path, program: str, *arguments: str) -> HookTarget:
    path = tmp_path / "hook of mine.py"
    path.write_text(f"#!{sys.executable}\nimport json, os, subprocess, sys, time\n{program}\n")
    path.chmod(0o755)
    return notify.parse(shlex.join([str(path), *arguments]))


def test_a_command_gets_the_record_and_its_arguments_without_a_shell(tmp_path: Path, record: Path) -> None:
    target = command(
        tmp_path,
        "json.dump([json.load(sys.stdin)['verdict'], sys.argv[1:], os.environ['CLUSTERCTL_NIGHT'], "
        "os.environ['CLUSTERCTL_VALIDATION'], os.getcwd()], open('got.json', 'w'))",
        "$(touch pwned)",
        "; touch pwned",
    )
    result = notify.call(target, record, {notify.VALIDATION: "/v.json"}, tmp_path, QUICK)
    assert (result.ok, result.attempts) == (True, 1), result
    got = json.loads((tmp_path / "got.json").read_text())
    assert got == ["FAIL", ["$(touch pwned)", "; touch pwned"], str(record), "/v.json", str(tmp_path)]
    assert not (tmp_path / "pwned").exists()
    assert "touch" not in result.words


def test_a_command_that_does_not_read_is_no_trouble(tmp_path: Path, record: Path) -> None:
    assert notify.call(command(tmp_path, "pass"), record, {}, tmp_path, QUICK).ok


def test_a_command_that_fails_is_tried_again(tmp_path: Path, record: Path) -> None:
    program = "n = len(open('tries', 'a+').read()); open('tries', 'a').write('x')\nprint('no luck')\nsys.exit(3)"
    pauses: list[float] = []
    result = notify.call(command(tmp_path, program), record, {}, tmp_path, QUICK, pauses.append)
    assert (result.ok, result.attempts) == (False, 3)
    assert pauses == [0.01, 0.02]
    assert "ended with 3" in result.words
    assert (tmp_path / "hook.log").read_text() == "no luck\n"
    assert (tmp_path / "hook.log").stat().st_mode & 0o777 == 0o600


def test_a_command_that_succeeds_at_last(tmp_path: Path, record: Path) -> None:
    program = "n = os.path.exists('once'); open('once', 'w').close(); sys.exit(0 if n else 1)"
    result = notify.call(command(tmp_path, program), record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts) == (True, 2)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("deaf", [False, True], ids=["hangs", "ignores SIGTERM"])
def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path, record: Path, deaf: bool) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""
    program = (
        f"{ignore}child = subprocess.Popen(['sleep', '600'])\n"
        "open('pids', 'a').write(f'{child.pid} {os.getpid()} ')\n"
        "time.sleep(600)"
    )
    began = clock.monotonic()
    result = notify.call(command(tmp_path, program), record, {}, tmp_path, notify.RetryPolicy(2, 1.5, 0.01, 20, 0.5))
    assert clock.monotonic() - began < 15
    assert not result.ok
    assert "did not end within 2 s" in result.words
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    assert not any(alive(pid) for pid in pids)


def test_what_a_good_command_leaves_running_is_ended_too(tmp_path: Path, record: Path) -> None:
    program = "child = subprocess.Popen(['sleep', '600']); open('pid', 'w').write(str(child.pid))"
    result = notify.call(command(tmp_path, program), record, {}, tmp_path, QUICK)
    assert result.ok
    assert result.seconds < 5
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_command_that_floods_is_cut(tmp_path: Path, record: Path) -> None:
    program = "while True: sys.stdout.write('x' * 100000)"
    began = clock.monotonic()
    result = notify.call(command(tmp_path, program), record, {}, tmp_path, notify.RetryPolicy(1, 20, 0.01, 30, 0.5))
    assert not result.ok
    assert clock.monotonic() - began < 15
    assert (tmp_path / "hook.log").stat().st_size <= 64 * 1024


def test_a_command_that_is_gone_is_said_once(tmp_path: Path, record: Path) -> None:
    target = command(tmp_path, "pass")
    Path(target.command[0]).unlink()
    result = notify.call(target, record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts) == (False, 1)
    assert "could not be started: No such file" in result.words


class Server(BaseHTTPRequestHandler):
    answers: list[int]
    slow_s = 0.0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        code = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if self.slow_s:
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                for _ in range(100):  # alive, and never done
                    self.wfile.write(b"X-A: b\r\n")
                    self.wfile.flush()
                    clock.sleep(self.slow_s)
            except OSError:
                return
        self.send_response(code)
        if code in range(300, 400):
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        """Quiet."""


@contextlib.contextmanager
def serving(*answers: int, slow_s: float = 0.0) -> Iterator[tuple[str, list[Any]]]:
    handler = type("Handler", (Server,), {"answers": list(answers), "slow_s": slow_s})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.got = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", server.got  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


def test_a_post_carries_the_record_and_keeps_its_secrets(tmp_path: Path, record: Path) -> None:
    with serving(204) as (place, got):
        target = notify.parse(f"http://me:pass%20word@{place}/services/T0KEN?key=S3CRET#frag")
        result = notify.call(target, record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts, result.words) == (True, 1, f"http://{place}/… answered 204")
    path, headers, body = got[0]
    assert path == "/services/T0KEN?key=S3CRET"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert body == record.read_bytes()


@pytest.mark.parametrize(
    ("answers", "attempts", "ok", "words"),
    [
        ((503, 503, 200), 3, True, "answered 200"),
        ((500,), 3, False, "answered 500"),
        ((429, 200), 2, True, "answered 200"),
        ((404,), 1, False, "answered 404"),
        ((302,), 1, False, "redirect, which is not followed"),
    ],
    ids=["busy", "broken", "too many", "not there", "redirect"],
)
def test_answers_to_a_post(
    tmp_path: Path, record: Path, answers: tuple[int, ...], attempts: int, ok: bool, words: str
) -> None:
    with serving(*answers) as (place, got):
        result = notify.call(notify.parse(f"http://{place}/x"), record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts, len(got)) == (ok, attempts, attempts)
    assert words in result.words


def test_a_server_that_dribbles_is_given_up(tmp_path: Path, record: Path) -> None:
    began = clock.monotonic()
    with serving(200, slow_s=0.2) as (place, _):
        result = notify.call(
            notify.parse(f"http://{place}/SECRET"), record, {}, tmp_path, notify.RetryPolicy(1, 1, 0.01, 10, 0.5)
        )
    assert not result.ok
    assert clock.monotonic() - began < 6
    assert "did not answer within 1 s" in result.words
    assert "SECRET" not in result.words


def test_a_server_that_is_not_there(tmp_path: Path, record: Path) -> None:
    result = notify.call(notify.parse("http://127.0.0.1:1/SECRET"), record, {}, tmp_path, QUICK)
    assert (result.ok, result.attempts) == (False, 3)
    assert result.words == "http://127.0.0.1:1/… Connection refused"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "'unbalanced",
        "/no/such/program x",
        "ftp://host/x",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "https://host:port/",
        "http://host/a b",
        "http://host/a\nb",
    ],
)
def test_a_hook_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        notify.parse(text)
    assert "passwd" not in str(caught.value)


# --- the files ---


def a_job(name: str = "inv-1", **fields: Any) -> Job:
    given: dict[str, Any] = {
        "inventory": "/nowhere/inventory.ini",
        "since": utc("2026-05-01T12:00"),
        "at": "02:00",
        "suite": "nightly",
        "folder": "/",
        "place": SchedulePlace(method="cron", scope="user", name="crontab of me"),
    }
    return Job(job=name, **{**given, **fields})


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


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
        ("", "no JSON"),
        ("[]", "damaged"),
        ('{"schema_version": 1', "no JSON"),
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
    with pytest.raises(ConfigError, match="no job"):
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
    with (storage.folder_of("inv-1") / "lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with storage.lock("inv-1"):
            assert storage.is_running("inv-1")
        clock.sleep(0.3)


@pytest.mark.parametrize("module", [schedule, systemd, crontab, policy], ids=lambda module: module.__name__)
def test_what_decides_touches_nothing(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names & {"os", "subprocess", "pathlib", "shutil", "fcntl", "socket", "clusterctl.nightly.storage"} == set()


# --- a whole night, around a validation and a provision of the test's own ---


def a_record(verdict: Verdict = Verdict.PASS, *checks: CheckResult) -> ValidationRecord:
    return ValidationRecord(
        clusterctl_version="1",
        run_id="run",
        inventory="/nowhere/inventory.ini",
        started=utc("2026-05-02T02:00"),
        finished=utc("2026-05-02T02:01"),
        launch_node="n1",
        hosts=("n1", "n2"),
        slots={"n1": 1, "n2": 1},
        folder="/f",
        verdict=verdict,
        checks=checks or (CheckResult(check="hello", verdict=verdict, reason="2 ranks", hosts=("n2",)),),
    )


class World:
    """What validate and provision say tonight."""

    def __init__(self) -> None:
        self.record: ValidationRecord | Exception = a_record()
        self.run: model_run_record.RunRecord | Exception = run_record(outcome="nothing to do")
        self.waits: list[float] = []
        self.suite: suite.Suite | None = None

    def validate(self, _inventory: Path, options: ValidationOptions, *_given: Any) -> ValidationRecord:
        self.suite = options.suite
        if isinstance(self.record, Exception):
            raise self.record
        return self.record

    def provision(self, *_given: Any) -> model_run_record.RunRecord:
        if isinstance(self.run, Exception):
            raise self.run
        return self.run

    def hands(self) -> night.Hands:
        return night.Hands(policy=QUICK, sleep=self.waits.append, zone=lambda: UTC, ask_again_s=1.0)


@pytest.fixture
def world(state: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    assert state
    world = World()
    monkeypatch.setattr(night.validation, "validate", world.validate)
    monkeypatch.setattr(night.provisioning, "provision", world.provision)
    return world


def test_a_good_night_writes_its_reports_and_tells_nobody(world: World, tmp_path: Path) -> None:
    job = a_job(hook=command(tmp_path, "open('called', 'a').write('x')"), folder=str(tmp_path), suite="smoke")
    storage.write_job(job)
    came = night.run(job, hands=world.hands())
    assert (came.outcome, came.verdict, came.change, came.hook) == ("done", Verdict.PASS, "", None), came
    assert night.exit_code(came) == 0
    assert set(came.reports) == {"html", "junit", "jsonl", "prometheus", "record"}
    assert all(Path(path).stat().st_size for path in came.reports.values())
    assert (
        'clusterctl_night_verdict{inventory="/nowhere/inventory.ini",verdict="PASS"} 1.0'
        in Path(came.reports["prometheus"]).read_text()
    )
    assert came.problems == ()
    assert not (tmp_path / "called").exists()


def test_a_fault_is_told_once_and_again_when_it_is_another_or_gone(world: World, tmp_path: Path) -> None:
    program = "open('calls', 'a').write(json.load(sys.stdin)['change'] + '\\n')"
    job = a_job(hook=command(tmp_path, program), folder=str(tmp_path))
    calls = tmp_path / "calls"
    world.record = a_record(Verdict.FAIL)
    first = night.run(job, hands=world.hands())
    assert first.hook is not None
    assert first.hook.ok
    assert night.exit_code(first) == 10
    assert night.run(job, hands=world.hands()).hook is None
    world.run = run_record(
        drifted={"n1": "/etc/x differs"}, hosts=(model_run_record.HostSummary(host="n1", outcome="changed"),)
    )
    assert night.run(job, hands=world.hands()).hook is not None
    world.record, world.run = a_record(), run_record(outcome="nothing to do")
    assert night.run(job, hands=world.hands()).hook is not None
    assert night.run(job, hands=world.hands()).hook is None
    assert [line.partition(";")[0] for line in calls.read_text().splitlines()] == [
        "PASS -> FAIL",
        "still FAIL",
        "FAIL -> PASS",
    ]


def test_a_hook_that_failed_is_called_again_the_next_night(world: World, tmp_path: Path) -> None:
    job = a_job(hook=command(tmp_path, "sys.exit(0 if os.path.exists('mended') else 1)"), folder=str(tmp_path))
    world.record = a_record(Verdict.FAIL)
    failed = night.run(job, hands=world.hands())
    assert failed.hook is not None
    assert not failed.hook.ok
    assert failed.verdict is Verdict.FAIL
    (tmp_path / "mended").touch()
    again = night.run(job, hands=world.hands())
    assert again.hook is not None
    assert again.hook.ok
    assert again.change == failed.change


def test_what_the_validation_found_outlives_a_look_for_drift_that_broke(world: World) -> None:
    world.record, world.run = a_record(Verdict.FAIL), KeyError("x")
    came = night.run(a_job(), hands=world.hands())
    assert (came.outcome, came.verdict) == ("done", Verdict.FAIL), came
    assert came.drift is not None
    assert came.drift.problem == "KeyError: 'x'"


def test_a_validation_yml_beside_the_inventory_speaks_at_night(world: World, tmp_path: Path) -> None:
    references = "references: [{check: pairs, quantity: bandwidth, value: 1 GB/s, lower: -10%}]\n"
    (tmp_path / "validation.yml").write_text(f"extends: smoke\n{references}")
    night.run(a_job(inventory=str(tmp_path / "inventory.ini")), hands=world.hands())
    assert world.suite is not None
    assert (world.suite.name, world.suite.checks) == ("nightly", suites.builtin("nightly").checks)
    assert [entry.value for entry in world.suite.references] == [1e9]


def test_a_host_that_is_held_is_waited_for_and_then_missed(world: World) -> None:
    job = a_job(wait_s=0.0)
    world.record = LockedError("n1 is held by me's 'clusterctl provision' (process 7, since noon); wait for it.")
    told: list[str] = []
    came = night.run(job, told.append, world.hands())
    assert (came.outcome, came.verdict) == ("missed", None)
    assert "process 7" in came.message
    assert night.exit_code(came) == 10
    assert world.waits == []

    patient = a_job(wait_s=1e6)

    def let_go(seconds: float) -> None:
        world.waits.append(seconds)
        if len(world.waits) == 3:
            world.record = a_record()

    hands = night.Hands(sleep=let_go, zone=lambda: UTC)
    assert night.run(patient, told.append, hands).verdict is Verdict.PASS
    assert world.waits == [10.0] * 3
    assert sum("waiting: n1 is held" in text for text in told) == 1


def test_drift_that_waits_in_vain_leaves_the_verdict_of_the_validation(world: World) -> None:
    world.run = LockedError("n1 is held by somebody")
    world.record = a_record(Verdict.FAIL)
    came = night.run(a_job(wait_s=0.0), hands=world.hands())
    assert (came.outcome, came.verdict) == ("done", Verdict.FAIL)
    assert came.drift is not None
    assert "held by somebody" in came.drift.problem


@pytest.mark.parametrize(
    "error", [ConfigError("The inventory /x does not exist."), RuntimeError("boom")], ids=["ours", "unexpected"]
)
def test_a_night_that_cannot_run_is_an_error_and_told(world: World, tmp_path: Path, error: Exception) -> None:
    job = a_job(hook=command(tmp_path, "open('got', 'w').write(sys.stdin.read())"), folder=str(tmp_path))
    world.record = error
    came = night.run(job, hands=world.hands())
    assert (came.outcome, came.verdict) == ("failed", Verdict.ERROR)
    assert str(error) in came.message
    assert night.exit_code(came) == 11
    assert json.loads((tmp_path / "got").read_text())["message"] == came.message
    assert night.run(job, hands=world.hands()).hook is None


def test_an_interrupted_night_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_given: Any) -> ValidationRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(night.validation, "validate", stop)
    job = a_job()
    with pytest.raises(KeyboardInterrupt):
        night.run(job, hands=world.hands())
    assert storage.nights(job.job)[0].outcome == "interrupted"


@pytest.mark.usefixtures("world")
def test_a_second_night_beside_the_first_is_missed(world: World) -> None:
    job = a_job()
    with storage.lock(job.job):
        came = night.run(job, hands=world.hands())
    assert came.outcome == "missed"
    assert "still running" in came.message


def test_missed_nights_are_said_by_the_next(world: World) -> None:
    now = datetime.now(UTC)
    at = (now - timedelta(hours=2)).strftime("%H:%M")
    job = a_job(at=at, since=now - timedelta(days=3, hours=1))
    told: list[str] = []
    came = night.run(job, told.append, world.hands())
    assert len(came.missed) == 2  # the third is this one, late
    assert sum("was missed" in text for text in told) == 2
    assert "was missed" in told[0]
    again = night.run(job, told.append, world.hands())
    assert again.missed == ()


def test_reports_elsewhere_and_what_is_pruned_there(world: World, tmp_path: Path) -> None:
    place = tmp_path / "reports"
    place.mkdir(mode=0o755)
    textfile = tmp_path / "node.prom"
    job = a_job(reports=str(place), prometheus=str(textfile), keep_days=1)
    old = night.run(job, hands=world.hands())
    (place / "mine.txt").write_text("mine")
    (place / old.night / "notes.txt").write_text("mine")
    assert Path(old.reports["junit"]).parent == place / old.night
    assert textfile.stat().st_mode & 0o777 == 0o644
    assert "clusterctl_night_missed" in textfile.read_text()
    storage.write_night(old.model_copy(update={"started": old.started - timedelta(days=9)}))
    clock.sleep(1.1)  # nights are named by the second
    new = night.run(job, hands=world.hands())
    assert not Path(old.folder).exists()
    assert {path.name for path in place.iterdir()} == {"mine.txt", old.night, new.night}
    assert [path.name for path in (place / old.night).iterdir()] == ["notes.txt"]
    assert Path(new.reports["junit"]).exists()


def test_reports_that_cannot_be_written_cost_a_sentence(world: World, tmp_path: Path) -> None:
    came = night.run(a_job(reports=str(tmp_path / "gone")), hands=world.hands())
    assert came.verdict is Verdict.PASS
    assert came.reports == {}
    assert "gone cannot be written: No such file" in came.problems[0]


# --- status ---


@pytest.fixture
def standing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state
    monkeypatch.setattr(scheduler, "problem", lambda *_given: "")
    monkeypatch.setattr(scheduler, "zone", lambda: UTC)


def keep(job: Job, started: str, **fields: Any) -> Night:
    name = f"{utc(started):%Y%m%dT%H%M%SZ}-1"
    folder = paths.private_folder(storage.folder_of(job.job) / "nights" / name)
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
    found = status.status(job, utc("2026-05-03T12:00"))
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
    assert not status.status(job, utc("2026-05-03T02:30")).bad
    found = status.status(job, utc("2026-05-03T03:30"))
    assert (found.bad, found.last_missed, found.missed) == (True, True, (utc("2026-05-03T02:00"),))
    keep(job, "2026-05-03T09:00")
    assert not status.status(job, utc("2026-05-03T09:30")).bad
    keep(job, "2026-05-05T02:00")
    later = status.status(job, utc("2026-05-05T12:00"))
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
    assert status.status(job, utc("2026-05-02T02:30")).bad is is_bad


@pytest.mark.usefixtures("state")
def test_a_schedule_that_is_gone_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "problem", lambda *_given: "its line is gone")
    found = status.status(a_job(), utc("2026-05-01T12:30"))
    assert (found.bad, found.scheduled, found.problem) == (True, False, "its line is gone")


# --- enable ---


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "my hosts 100%.ini"
    path.write_text("[nodes]\nn1 ansible_host=192.0.2.1\n")
    return path


@pytest.fixture
def cron(state: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for the user's crontab, and for a machine without systemd."""
    assert state
    table = ["0 1 * * * mine\n"]
    monkeypatch.setattr(scheduler, "no_systemd", lambda _scope: "systemctl is not installed")
    monkeypatch.setattr(scheduler, "_crontab", lambda: table[0])
    monkeypatch.setattr(scheduler, "_write_crontab", lambda text: table.__setitem__(0, text))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return table


def test_enable_twice_and_disable(cron: list[str], inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inventory.parent)
    password = inventory.with_name("pw")
    password.write_text("secret")
    inventory.with_name("vars.yml").write_text("a: 1\n")
    relative = Path(inventory.name)
    options = install.InventoryOptions(vault_password_files=("pw",), vault_ids=("lab@pw",), extra_vars=("@vars.yml",))
    one = install.enable(install.EnableRequest(relative, "02:00", options=options))
    two = install.enable(install.EnableRequest(relative, "03:30", on_fail="/bin/true --token SECRET", suite="smoke"))
    other = inventory.with_name("other.ini")
    other.write_text("n9\n")
    third = install.enable(install.EnableRequest(other, "04:00"))
    assert one.job.job == two.job.job != third.job.job
    assert one.job.vault_ids == (f"lab@{password}",)
    assert one.job.vault_password_files == (str(password),)
    assert one.job.extra_vars == (f"@{inventory.parent}/vars.yml",)
    assert one.job.inventory == str(inventory)
    assert "systemd is not used" in one.notes[0]
    lines = [line for line in cron[0].splitlines() if not line.startswith("#")]
    assert [line[:5] for line in lines] == ["0 1 *", "30 3 ", "0 4 *"]
    assert "SECRET" not in cron[0]
    assert str(storage.job_file(two.job.job)) in lines[1].replace("\\%", "%")
    assert storage.read_job(storage.job_file(two.job.job)) == two.job
    install.disable(two.job.job)
    install.disable(third.job.job)
    assert cron[0] == "0 1 * * * mine\n"
    with pytest.raises(ConfigError, match="no job"):
        install.disable(two.job.job)


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


@pytest.mark.usefixtures("cron")
def test_a_suite_beside_the_inventory_is_taken_unless_another_is_asked_for(inventory: Path) -> None:
    assert install.enable(install.EnableRequest(inventory, "02:00")).job.suite == "nightly"
    inventory.with_name("validation.yml").write_text("name: mine\nextends: full\n")
    assert install.enable(install.EnableRequest(inventory, "02:00")).job.suite == "mine"
    assert install.enable(install.EnableRequest(inventory, "02:00", suite="smoke")).job.suite == "smoke"
    inventory.with_name("validation.yml").write_text("checks: {pear: true}\n")
    with pytest.raises(ConfigError, match="no check named 'pear'"):
        install.enable(install.EnableRequest(inventory, "02:00"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"at": "25:00"}, "--at"),
        ({"suite": "nigthly"}, "nightly"),
        ({"on_fail": "ftp://x/y"}, "--on-fail"),
        ({"options": install.InventoryOptions(vault_ids=("lab@prompt",))}, "Nobody is there at night"),
        ({"options": install.InventoryOptions(extra_vars=("token=1",))}, "files alone"),
        ({"options": install.InventoryOptions(vault_password_files=("/no/pw",))}, "/no/pw"),
        ({"options": install.InventoryOptions(private_key="/no/key")}, "--private-key"),
        ({"reports": Path("/no/reports")}, "/no/reports"),
        ({"prometheus": Path("/no/where/x.prom")}, "/no/where"),
        ({"inventory": Path("/no/inventory.ini")}, "does not exist"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_while_somebody_listens(
    cron: list[str], inventory: Path, fields: dict[str, Any], says: str
) -> None:
    given: dict[str, Any] = {"inventory": inventory, "at": "02:00", **fields}
    with pytest.raises(ConfigError, match=says):
        install.enable(install.EnableRequest(**given))
    assert cron[0] == "0 1 * * * mine\n"
    assert storage.jobs() == []


def test_a_schedule_that_cannot_be_written_leaves_what_was_before(
    cron: list[str], inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = install.enable(install.EnableRequest(inventory, "02:00")).job

    def refuse(_text: str) -> None:
        raise ConfigError("The crontab cannot be written: full")

    monkeypatch.setattr(scheduler, "_write_crontab", refuse)
    with pytest.raises(ConfigError, match="full"):
        install.enable(install.EnableRequest(inventory, "03:00"))
    assert storage.jobs() == [before]
    assert cron[0].count("0 2 * * *") == 1


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


def test_told_is_kept(state: Path) -> None:
    storage.write_job(a_job())
    assert storage.told("inv-1") is None
    storage.write_told("inv-1", Told(night="n", state=("PASS",)))
    assert storage.told("inv-1") == Told(night="n", state=("PASS",))
    (state / "clusterctl/nightly/inv-1/told.json").write_text("{")
    assert storage.told("inv-1") is None
