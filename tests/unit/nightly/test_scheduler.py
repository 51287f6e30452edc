from __future__ import annotations

import contextlib
import os
import subprocess
from datetime import datetime, time
from typing import Any

import pytest
from clusterctl.nightly import scheduler
from clusterctl.support.errors import ConfigError
from nights import (
    UTC,
)


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
