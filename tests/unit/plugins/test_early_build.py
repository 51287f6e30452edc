"""A build in the background, its result, and its end with the playbook."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import early_build

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The file for the result; at the end the work's process is reaped, as Ansible's worker leaves it to init."""
    before = children()
    yield tmp_path / "artifacts" / ".demo-1.0-0123456789abcdef.early-1"
    for child in children() - before:
        os.waitpid(child, 0)


def children() -> set[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return {int(number) for number in listed.split()}


def taken(place: Path) -> tuple[dict[str, Any] | None, list[str]]:
    notes: list[str] = []
    return early_build.result(place, "waiting for demo", notes.append), notes


def test_the_task_that_needs_it_takes_the_result_once(place: Path) -> None:
    early_build.begin(place, os.getpid(), lambda: {"changed": True, "by": os.getpid()})
    result, _unused = taken(place)
    assert result["by"] != os.getpid()
    assert not list(place.parent.iterdir())
    assert taken(place) == (None, [])


def test_it_waits_and_says_so(place: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def work() -> dict[str, Any]:
        while not go.exists():
            time.sleep(0.05)
        return {"changed": True}

    early_build.begin(place, os.getpid(), work)
    threading.Timer(0.5, go.touch).start()
    result, (words,) = taken(place)
    assert result == {"changed": True}
    assert re.fullmatch(r"waiting for demo \(process \d+\)", words)


def test_work_that_breaks_has_no_result(place: Path) -> None:
    def work() -> dict[str, Any]:
        raise ConnectionError("the host is gone")

    early_build.begin(place, os.getpid(), work)
    assert taken(place)[0] is None


def test_the_work_ends_with_the_playbook_and_cleans_up(place: Path, tmp_path: Path) -> None:
    playbook = subprocess.Popen(["sleep", "600"])
    busy, clean = tmp_path / "busy", tmp_path / "clean"

    def work() -> dict[str, Any]:
        try:
            ssh = subprocess.Popen(["sleep", "600"])
            busy.write_text(str(ssh.pid), encoding="utf-8")
            time.sleep(600)
        finally:
            clean.touch()
        return {}

    early_build.begin(place, playbook.pid, work)
    while not busy.exists() or not busy.read_text(encoding="utf-8"):
        time.sleep(0.05)
    playbook.kill()
    playbook.wait()
    assert taken(place)[0] is None
    assert clean.exists()
    ssh = Path("/proc", busy.read_text(encoding="utf-8"), "status")
    while ssh.exists() and "zombie" not in ssh.read_text(encoding="utf-8"):
        time.sleep(0.05)
