from __future__ import annotations

import json
import time as clock
from pathlib import Path

import pytest
import waiting
from clusterctl.nightly import notify
from clusterctl.support.errors import ConfigError
from nights import (
    QUICK,
    command,
)

pytestmark = pytest.mark.programs


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
    assert all(waiting.ends(pid) for pid in pids)


def test_what_a_good_command_leaves_running_is_ended_too(tmp_path: Path, record: Path) -> None:
    program = "child = subprocess.Popen(['sleep', '600']); open('pid', 'w').write(str(child.pid))"
    result = notify.call(command(tmp_path, program), record, {}, tmp_path, QUICK)
    assert result.ok
    assert result.seconds < 5
    assert waiting.ends(int((tmp_path / "pid").read_text()))


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
