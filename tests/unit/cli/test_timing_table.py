from __future__ import annotations

from typing import TYPE_CHECKING

import factory
from clusterctl.cli import summary
from clusterctl.model.run_record import CriticalPath, PathStep, RunTiming, StageTiming

if TYPE_CHECKING:
    import pytest

OPENMPI = StageTiming(stage="openmpi", wall_s=12.34, run=10, skipped=2)


def test_a_stage_is_a_row_of_words() -> None:
    assert summary.stage_row(OPENMPI) == ("openmpi", "12.3", "10", "2")
    assert summary.stage_row(StageTiming(stage="reading the inventory", wall_s=0.5))[1:] == ("0.5", "", "")


def test_a_stage_of_an_older_release_is_read() -> None:
    old = {"stage": "openmpi", "wall_s": 12.34, "run": 10, "skipped": 2, "controller_cpu_s": 3.4, "node_cpu_s": None}
    assert StageTiming.model_validate(old) == OPENMPI


def test_the_table_leaves_out_what_took_no_time_and_ends_with_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    total = OPENMPI.model_copy(update={"stage": "total"})
    short = StageTiming(stage="asking the user", wall_s=0.01, skipped=3)
    summary.show_timing(factory.run_record(timing=RunTiming(stages=(short, OPENMPI), total=total)))
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["Seconds", "STAGE", "openmpi", "total"]


def test_a_run_without_timing_shows_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    summary.show_timing(factory.run_record())
    assert capsys.readouterr().err == ""


def test_the_critical_path_names_the_builds_and_who_waited(capsys: pytest.CaptureFixture[str]) -> None:
    build = PathStep(
        stage="openmpi", task="Compile", host="node1", change="built openmpi 5.0.10", wall_s=249, waited_s=248
    )
    short = PathStep(stage="mpi4py", tasks=6, wall_s=9.04)
    assert summary.path_row(build) == ("openmpi: Compile (built openmpi 5.0.10)", "node1", "249.0", "248.0")
    assert summary.path_row(short) == ("mpi4py: 6 short tasks", "", "9.0", "")
    path = CriticalPath(steps=(build, short), others=7, others_s=2.25)
    summary.show_timing(factory.run_record(timing=RunTiming(stages=(OPENMPI,), total=OPENMPI, critical_path=path)))
    said = capsys.readouterr().err.split("Critical path")[1].splitlines()
    assert [line.split()[0] for line in said[1:]] == ["STEP", "openmpi:", "mpi4py:", "7"]
