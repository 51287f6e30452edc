from __future__ import annotations

from typing import Any

import pytest
from clusterctl.model.run_record import Finished, HostResult, Outcome, StageStarted
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
