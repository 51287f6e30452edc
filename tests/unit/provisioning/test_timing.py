from __future__ import annotations

from typing import Any

import pytest
from clusterctl.model.run_record import Event, Finished, HostResult, Outcome, PathStep, StageStarted
from clusterctl.provisioning.task_results import Stopwatch, TimedObserver


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def passes(self, wall_s: float) -> None:
        self.now += wall_s


class Silent:
    """An observer whose user takes three seconds to agree."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.heard = clock, [""]

    def phase(self, text: str) -> None:
        self.heard.append(text)

    def event(self, event: Any) -> None:
        self.heard.append(type(event).__name__)

    def stopping(self, requests: int) -> None:
        self.heard.append(f"stopping {requests}")

    def confirm(self, _preview: str) -> bool:
        self.clock.passes(3)
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Stopwatch:
    return Stopwatch(lambda: clock.now)


def _result(host: str, stage: str, outcome: Outcome = "ok") -> HostResult:
    return HostResult(at=1.0, host=host, stage=stage, task="t", outcome=outcome)


def test_each_stage_has_what_passed_until_the_next_one_and_the_total_has_all(clock: Clock, watch: Stopwatch) -> None:
    observer = TimedObserver(Silent(clock), watch)
    observer.phase("looking at 2 hosts")
    clock.passes(2)
    assert observer.confirm("preview")
    clock.passes(1)
    observer.event(StageStarted(at=clock.now, stage="openmpi", task="a"))
    clock.passes(10)
    observer.event(StageStarted(at=clock.now, stage="validation", task="b"))
    clock.passes(1)
    observer.event(StageStarted(at=clock.now, stage="openmpi", task="c"))
    clock.passes(4)
    observer.event(Finished(at=clock.now, status="successful", rc=0))
    clock.passes(0.5)
    timing = watch.timing()
    assert [(stage.stage, stage.wall_s) for stage in timing.stages] == [
        ("looking at 2 hosts", 2.0),
        ("asking the user", 3.0),
        ("start of Ansible", 1.0),
        ("openmpi", 14.0),
        ("validation", 1.0),
        ("end of the run", 0.5),
    ]
    assert timing.total.wall_s == 21.5
    assert timing.critical_path is not None
    assert [(step.stage, step.task, step.wall_s) for step in timing.critical_path.steps] == [
        ("looking at 2 hosts", "", 2.0),
        ("asking the user", "", 3.0),
        ("start of Ansible", "", 1.0),
        ("openmpi", "a", 10.0),
        ("validation", "b", 1.0),
        ("openmpi", "c", 4.0),
        ("end of the run", "", 0.5),
    ]


def test_a_stage_counts_results_and_what_was_skipped(watch: Stopwatch) -> None:
    for stage, outcome in (("hosts", "ok"), ("openmpi", "changed"), ("openmpi", "skipped"), ("openmpi", "failed")):
        watch.take(_result("node1", stage, outcome))  # type: ignore[arg-type]
    assert [(stage.stage, stage.run, stage.skipped) for stage in watch.timing().stages] == [
        ("hosts", 1, 0),
        ("openmpi", 2, 1),
    ]
    assert (watch.timing().total.run, watch.timing().total.skipped) == (3, 1)


def test_time_outside_of_a_measured_block_is_no_stage(clock: Clock, watch: Stopwatch) -> None:
    with watch.stage("validation of the cluster"):
        clock.passes(1)
    clock.passes(9)
    assert watch.timing().total.wall_s == 1.0


def test_another_observer_hears_everything(clock: Clock, watch: Stopwatch) -> None:
    silent = Silent(clock)
    observer = TimedObserver(silent, watch)
    observer.phase("reading")
    observer.event(_result("node1", "hosts"))
    observer.stopping(1)
    assert silent.heard[1:] == ["reading", "HostResult", "stopping 1"]


# --- the critical path of a run, as its events tell it ---


BUILD = "Compile Open MPI once per platform"


class Ticks:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def finder(ticks: Ticks) -> Stopwatch:
    return Stopwatch(ticks)


def host_result(at: float, host: str, outcome: Outcome = "ok", *changes: str) -> HostResult:
    return HostResult(at=at, host=host, stage="s", task="t", outcome=outcome, changes=changes)


def _take(finder: Stopwatch, *events: Event) -> None:
    for event in events:
        finder.take(event)


def test_the_host_whose_result_came_last_decides_and_the_others_wait_for_it(ticks: Ticks, finder: Stopwatch) -> None:
    finder.begin("reading the inventory", 0.0)
    _take(
        finder,
        StageStarted(10.0, "openmpi", "Load the names of packages"),
        host_result(10.5, "node1"),
        host_result(10.5, "node2"),
        StageStarted(11.0, "openmpi", BUILD),
        host_result(259.0, "node1", "changed", "built openmpi 5.0.10", "another"),
        StageStarted(260.0, "openmpi", "Install Open MPI"),
        host_result(265.0, "node1", "changed", "installed openmpi 5.0.10"),
        host_result(272.0, "node2", "changed", "installed openmpi 5.0.10"),
        host_result(273.0, "node3", "skipped"),
        Finished(273.0, "successful", 0),
    )
    ticks.now = 274.0
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


def test_the_steps_and_the_others_add_up_to_the_wall_time(ticks: Ticks, finder: Stopwatch) -> None:
    at = 0.0
    for number in range(200):
        finder.take(StageStarted(at, f"stage{number // 9}", f"task {number}"))
        at += 0.25 + number % 7
    finder.take(Finished(at, "successful", 0))
    ticks.now = at + 1.5
    path = finder.path()
    assert sum(step.wall_s for step in path.steps) + path.others_s == pytest.approx(ticks.now)
    assert sum(step.tasks for step in path.steps) + path.others == 201


def test_short_tasks_of_one_stage_in_a_row_are_one_step(ticks: Ticks, finder: Stopwatch) -> None:
    for at in range(100):
        finder.take(StageStarted(float(at), "mpi4py" if at < 60 else "nccl", f"task {at}"))
    ticks.now = 100.0
    assert finder.path().steps == (
        PathStep(stage="mpi4py", tasks=60, wall_s=60.0),
        PathStep(stage="nccl", tasks=40, wall_s=40.0),
    )


def test_in_a_run_of_one_host_nobody_waits(ticks: Ticks, finder: Stopwatch) -> None:
    _take(finder, StageStarted(0.0, "openmpi", BUILD), host_result(9.0, "node1"))
    ticks.now = 10.0
    assert [(step.host, step.waited_s) for step in finder.path().steps] == [("node1", 0.0)]


def test_the_user_and_what_comes_between_two_blocks_are_no_step(ticks: Ticks, finder: Stopwatch) -> None:
    finder.begin("validation of the cluster", 0.0)
    finder.begin("", 5.0)
    ticks.now = 50.0
    path = finder.path()
    assert [(step.stage, step.wall_s) for step in path.steps] == [("validation of the cluster", 5.0)]
    assert (path.others, path.others_s) == (0, 0.0)


def test_the_longest_steps_so_far_stand_in_the_order_of_the_run(ticks: Ticks, finder: Stopwatch) -> None:
    for at, stage in ((0.0, "hosts"), (8.0, "ssh_mesh"), (10.0, "openmpi"), (40.0, "python_env")):
        finder.take(StageStarted(at, stage, "task"))
    ticks.now = 52.0
    assert [(step.stage, step.wall_s) for step in finder.longest(2, 1.0)] == [("openmpi", 30.0), ("python_env", 12.0)]
    assert [step.stage for step in finder.longest(4, 5.0)] == ["hosts", "openmpi", "python_env"]
