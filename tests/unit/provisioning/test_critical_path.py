"""The critical path of a run, as its events tell it."""

from __future__ import annotations

import pytest
from clusterctl.model.run_record import Event, Finished, HostResult, Outcome, PathStep, StageStarted
from clusterctl.provisioning.task_results import Stopwatch

BUILD = "Compile Open MPI once per platform"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def finder(clock: Clock) -> Stopwatch:
    return Stopwatch(clock)


def _result(at: float, host: str, outcome: Outcome = "ok", *changes: str) -> HostResult:
    return HostResult(at=at, host=host, stage="s", task="t", outcome=outcome, changes=changes)


def _take(finder: Stopwatch, *events: Event) -> None:
    for event in events:
        finder.take(event)


def test_the_host_whose_result_came_last_decides_and_the_others_wait_for_it(clock: Clock, finder: Stopwatch) -> None:
    finder.begin("reading the inventory", 0.0)
    _take(
        finder,
        StageStarted(10.0, "openmpi", "Load the names of packages"),
        _result(10.5, "node1"),
        _result(10.5, "node2"),
        StageStarted(11.0, "openmpi", BUILD),
        _result(259.0, "node1", "changed", "built openmpi 5.0.10", "another"),
        StageStarted(260.0, "openmpi", "Install Open MPI"),
        _result(265.0, "node1", "changed", "installed openmpi 5.0.10"),
        _result(272.0, "node2", "changed", "installed openmpi 5.0.10"),
        _result(273.0, "node3", "skipped"),
        Finished(273.0, "successful", 0),
    )
    clock.now = 274.0
    path = finder.path()
    assert path.steps == (
        PathStep(stage="reading the inventory", wall_s=10.0),
        PathStep(
            stage="openmpi", task=BUILD, host="node1", change="built openmpi 5.0.10", wall_s=249.0, waited_s=248.0
        ),
        PathStep(
            stage="openmpi",
            task="Install Open MPI",
            host="node2",
            change="installed openmpi 5.0.10",
            wall_s=13.0,
            waited_s=7.0,
        ),
    )
    assert (path.others, path.others_s) == (2, 2.0)


def test_the_steps_and_the_others_add_up_to_the_wall_time(clock: Clock, finder: Stopwatch) -> None:
    at = 0.0
    for number in range(200):
        finder.take(StageStarted(at, f"stage{number // 9}", f"task {number}"))
        at += 0.25 + number % 7
    finder.take(Finished(at, "successful", 0))
    clock.now = at + 1.5
    path = finder.path()
    assert sum(step.wall_s for step in path.steps) + path.others_s == pytest.approx(clock.now)
    assert sum(step.tasks for step in path.steps) + path.others == 201


def test_short_tasks_of_one_stage_in_a_row_are_one_step(clock: Clock, finder: Stopwatch) -> None:
    for at in range(100):
        finder.take(StageStarted(float(at), "mpi4py" if at < 60 else "nccl", f"task {at}"))
    clock.now = 100.0
    assert finder.path().steps == (
        PathStep(stage="mpi4py", tasks=60, wall_s=60.0),
        PathStep(stage="nccl", tasks=40, wall_s=40.0),
    )


def test_in_a_run_of_one_host_nobody_waits(clock: Clock, finder: Stopwatch) -> None:
    _take(finder, StageStarted(0.0, "openmpi", BUILD), _result(9.0, "node1"))
    clock.now = 10.0
    assert [(step.host, step.waited_s) for step in finder.path().steps] == [("node1", 0.0)]


def test_the_user_and_what_comes_between_two_blocks_are_no_step(clock: Clock, finder: Stopwatch) -> None:
    finder.begin("validation of the cluster", 0.0)
    finder.begin("", 5.0)
    clock.now = 50.0
    path = finder.path()
    assert [(step.stage, step.wall_s) for step in path.steps] == [("validation of the cluster", 5.0)]
    assert (path.others, path.others_s) == (0, 0.0)


def test_the_longest_steps_so_far_stand_in_the_order_of_the_run(clock: Clock, finder: Stopwatch) -> None:
    for at, stage in ((0.0, "hosts"), (8.0, "ssh_mesh"), (10.0, "openmpi"), (40.0, "python_env")):
        finder.take(StageStarted(at, stage, "task"))
    clock.now = 52.0
    assert [(step.stage, step.wall_s) for step in finder.longest(2, 1.0)] == [("openmpi", 30.0), ("python_env", 12.0)]
    assert [step.stage for step in finder.longest(4, 5.0)] == ["hosts", "openmpi", "python_env"]
