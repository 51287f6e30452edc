"""What a run shows while it goes on."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

from clusterctl.cli import progress
from clusterctl.model.run_record import HostResult, Note, StageStarted, TaskStartedOnHost
from rich.console import Console

if TYPE_CHECKING:
    import pytest


def test_a_play_with_roles_in_its_middle_is_one_stage(capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Lines()
    stages = ("horovod", "Switch to the software", "nccl", "openmpi", "nccl", "Switch to the software", "validation")
    for batch in ("batch 1 of 2", "batch 2 of 2"):
        shown.phase(batch)
        for at, stage in enumerate(stages):
            shown.event(StageStarted(at=float(at), stage=stage, task="t"))
    lines = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    one = ["horovod", "Switch to the software", "nccl", "openmpi", "nccl", "validation"]
    assert lines == ["batch 1 of 2", *one, "batch 2 of 2", *one]


def test_the_page_shows_the_longest_steps_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    written, now = io.StringIO(), time.time()
    monkeypatch.setattr(progress.output, "console", lambda: Console(file=written, force_terminal=True, width=120))
    built = HostResult(now - 11, "node1", "openmpi", "Compile", "changed", changes=("built openmpi 5.0.10",))
    with progress.Page(ask=False) as page:
        page.event(StageStarted(at=now - 60, stage="hosts", task="a"))
        page.event(StageStarted(at=now - 59, stage="openmpi", task="Compile"))
        page.event(built)
        page.event(StageStarted(at=now - 10, stage="mpi4py", task="b"))
    assert "longest: built openmpi 5.0.10 on node1 49s → mpi4py 1" in written.getvalue()


def test_a_note_of_the_background_is_told_without_the_time_of_a_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    lines = progress.Lines()
    lines.event(StageStarted(now, "openmpi", "Compile"))
    lines.event(TaskStartedOnHost(now, "node1", "openmpi", "Compile"))
    lines.event(Note(now + 60, "node1", "make: 31 files"))
    lines.event(Note(now + 61, "node2", "packages: Resolved"))
    assert capsys.readouterr().err.splitlines()[1:] == [
        "[ 0:00]   node1: make: 31 files (1m00s)",
        "[ 0:00]   node2: packages: Resolved",
    ]
    written = io.StringIO()
    monkeypatch.setattr(progress.output, "console", lambda: Console(file=written, force_terminal=True, width=120))
    with progress.Page(ask=False) as page:
        page.event(TaskStartedOnHost(now, "node1", "openmpi", "Compile"))
        page.event(Note(now, "node2", "packages: Resolved"))
    assert "packages: Resolved" in written.getvalue()
