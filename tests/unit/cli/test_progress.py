"""What a run shows while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.cli import progress
from clusterctl.model.events import StageStarted

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
