from __future__ import annotations

from typing import Any

import pytest
from clusterctl.model.events import Finished, HostResult, Outcome, StageStarted
from clusterctl.provisioning.stopwatch import Stopwatch, TimedObserver


class Clock:
    """A clock and a meter of processors that stand still."""

    def __init__(self) -> None:
        self.now, self.cpu_s = 100.0, 5.0

    def passes(self, wall_s: float, cpu_s: float) -> None:
        self.now, self.cpu_s = self.now + wall_s, self.cpu_s + cpu_s


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
        self.clock.passes(3, 0.25)
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Stopwatch:
    return Stopwatch(lambda: clock.cpu_s, lambda: clock.now)


def _result(host: str, stage: str, outcome: Outcome = "ok", **cpu: float) -> HostResult:
    return HostResult(at=1.0, host=host, stage=stage, task="t", outcome=outcome, cpu=cpu)


def test_each_stage_has_what_passed_until_the_next_one_and_the_total_has_all(clock: Clock, watch: Stopwatch) -> None:
    observer = TimedObserver(Silent(clock), watch)
    observer.phase("looking at 2 hosts")
    clock.passes(2, 0.5)
    assert observer.confirm("preview")
    clock.passes(1, 0.75)
    observer.event(StageStarted(at=clock.now, stage="openmpi", task="a"))
    clock.passes(10, 4)
    observer.event(StageStarted(at=clock.now, stage="validation", task="b"))
    clock.passes(1, 0.25)
    observer.event(StageStarted(at=clock.now, stage="openmpi", task="c"))
    clock.passes(4, 1)
    observer.event(Finished(at=clock.now, status="successful", rc=0))
    clock.passes(0.5, 0.25)
    timing = watch.timing()
    assert [(stage.stage, stage.wall_s, stage.controller_cpu_s) for stage in timing.stages] == [
        ("looking at 2 hosts", 2.0, 0.5),
        ("asking the user", 3.0, 0.25),
        ("start of Ansible", 1.0, 0.75),
        ("openmpi", 14.0, 5.0),
        ("validation", 1.0, 0.25),
        ("end of the run", 0.5, 0.25),
    ]
    assert (timing.total.wall_s, timing.total.controller_cpu_s) == (21.5, 7.0)
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


def test_a_node_counts_what_its_connection_used_since_it_told_last(watch: Stopwatch) -> None:
    watch.take(_result("node1", "hosts", a=1.0))
    watch.take(_result("node2", "hosts", a=0.5))  # another node's connection of the same name
    watch.take(_result("node1", "openmpi", a=1.0))
    watch.take(_result("node2", "openmpi"))  # a module of Ansible's own tells nothing
    watch.take(_result("node2", "openmpi", "changed", a=4.0))
    watch.take(_result("node1", "openmpi", "skipped"))
    watch.take(_result("node2", "nccl", "failed", b=0.25))  # a new connection begins at zero
    watch.take(_result("node2", "nccl", a=3.9))  # told late: no time is taken back
    hosts, openmpi, nccl = watch.timing().stages
    assert (hosts.node_cpu_s, hosts.largest_node, hosts.largest_node_cpu_s) == (1.5, "node1", 1.0)
    assert (openmpi.node_cpu_s, openmpi.largest_node, openmpi.largest_node_cpu_s) == (3.5, "node2", 3.5)
    assert (openmpi.run, openmpi.skipped) == (3, 1)
    assert (nccl.node_cpu_s, nccl.run) == (0.25, 2)
    total = watch.timing().total
    assert (total.node_cpu_s, total.largest_node, total.largest_node_cpu_s) == (5.25, "node2", 4.25)


def test_what_is_not_measured_is_told_as_such(clock: Clock) -> None:
    watch = Stopwatch(lambda: None, lambda: clock.now)
    with watch.stage("validation of the cluster"):
        clock.passes(1, 1)
    timing = watch.timing()
    for stage in (*timing.stages, timing.total):
        assert (stage.wall_s, stage.controller_cpu_s, stage.node_cpu_s) == (1.0, None, None)


def test_time_outside_of_a_measured_block_is_no_stage(clock: Clock, watch: Stopwatch) -> None:
    with watch.stage("validation of the cluster"):
        clock.passes(1, 1)
    clock.passes(9, 9)
    assert watch.timing().total.wall_s == 1.0


def test_another_observer_hears_everything(clock: Clock, watch: Stopwatch) -> None:
    silent = Silent(clock)
    observer = TimedObserver(silent, watch)
    observer.phase("reading")
    observer.event(_result("node1", "hosts"))
    observer.stopping(1)
    assert silent.heard[1:] == ["reading", "HostResult", "stopping 1"]
