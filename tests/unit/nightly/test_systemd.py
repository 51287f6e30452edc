from __future__ import annotations

import subprocess
from datetime import time
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.nightly import schedule as crontab
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


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
    done = verify(tmp_path, crontab.service("x", argv, scope), crontab.timer("x", time(2)))
    assert (done.returncode, done.stderr) == (0, "")
    broken = verify(tmp_path, crontab.service("x", argv, scope).replace("%%h", "%h"), crontab.timer("x", time(2)))
    assert broken.returncode != 0  # so the verification sees the program's path


def test_a_word_of_a_unit_is_quoted_by_systemds_rules() -> None:
    assert crontab.quoted('a b%c$d"e\\f') == '"a b%%c$$d\\"e\\\\f"'


@pytest.mark.parametrize("word", ["/a\nb", "/a\tb", "/a\x00b", "/a\x7f"], ids=["newline", "tab", "nul", "delete"])
def test_a_control_character_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="control character"):
        crontab.service("x", ["/bin/true", word], "user")
    with pytest.raises(ConfigError, match="control character"):
        crontab.cron_line(["/bin/true", word], time(2))


@pytest.mark.parametrize("program", ["clusterctl", "/opt/$x/clusterctl", "/opt/it's/clusterctl"])
def test_a_program_that_systemd_cannot_start_is_refused(program: str) -> None:
    with pytest.raises(ConfigError, match="systemd cannot start"):
        crontab.service("x", [program], "user")
