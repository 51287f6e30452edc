"""Repeating until a median is known, what its interval promises, and the way of the samples from rank to figure."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from clusterctl.analysis import robust_stats
from clusterctl.model.job_outcome import OutputLine
from clusterctl.validation.checks import rank_output
from node_programs import load

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    return load("measure")


class Clock:
    """Seconds that pass only when a sample is taken."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s, self.taken = 100.0, step_s, 0

    def __call__(self) -> float:
        return self.now

    def take(self, value: float = 1.0) -> float:
        self.now += self.step_s
        self.taken += 1
        return value


def taken(measure: ModuleType, clock: Clock, values: Any, **options: Any) -> Any:
    usual = {"at_least": 5, "at_most": 100, "budget_s": 60.0, "confidence": 0.95, "precision": 0.05, "deadline": 1e6}
    sampling = measure.Sampling(**{**usual, **options}, clock=clock)
    while sampling.more():
        sampling.add(clock.take(next(values)))
    return sampling.samples


def ones() -> Any:
    while True:
        yield 1.0


def uniform(spread: float) -> Any:
    source = random.Random(7)  # noqa: S311 - no secret
    while True:
        yield source.uniform(1 - spread, 1 + spread)


def test_it_stops_as_soon_as_the_median_is_known(measure: ModuleType) -> None:
    steady = taken(measure, Clock(0.1), ones())
    assert (steady.ended, len(steady.values)) == ("sure", 6)  # 95 % takes six
    noisy = taken(measure, Clock(0.1), uniform(0.15))
    assert noisy.ended == "sure"
    assert len(noisy.values) > 20
    low, high = noisy.interval
    assert max(noisy.median - low, high - noisy.median) <= 0.05 * noisy.median
    assert taken(measure, Clock(0.001), uniform(0.9), at_most=50).ended == "most"


def test_the_warm_up_is_not_kept(measure: ModuleType) -> None:
    values = iter([50.0, 40.0, *[1.0] * 50])
    found = taken(measure, Clock(0.1), values, warmup=2)
    assert set(found.values) == {1.0}
    assert taken(measure, Clock(30.0), iter([7.0]), warmup=2, budget_s=1.0).values == (7.0,)


def test_it_keeps_its_budget_and_never_passes_the_deadline(measure: ModuleType) -> None:
    clock = Clock(1.0)
    found = taken(measure, clock, uniform(0.9), budget_s=10.5)
    assert (found.ended, clock.now) == ("budget", 110.0)
    clock = Clock(3.0)
    found = taken(measure, clock, uniform(0.9), deadline=110.0)
    assert (found.ended, clock.now) == ("deadline", 109.0)
    assert taken(measure, Clock(3.0), ones(), deadline=99.0).values == ()
    slow = taken(measure, Clock(30.0), ones(), budget_s=1.0)
    assert (slow.ended, slow.values) == ("budget", (1.0,))  # one at least, for there is a deadline as well


def test_the_budget_waits_a_while_for_the_least_number_of_samples(measure: ModuleType) -> None:
    assert len(taken(measure, Clock(1.0), uniform(0.9), budget_s=2.5).values) == 2
    assert len(taken(measure, Clock(1.0), uniform(0.9), budget_s=2.5, patience=4).values) == 5
    assert len(taken(measure, Clock(4.0), uniform(0.9), budget_s=2.5, patience=4).values) == 2


def test_until_sure_takes_real_samples(measure: ModuleType) -> None:
    found = measure.until_sure(
        lambda: 2.0, warmup=3, at_least=9, at_most=20, budget_s=5, confidence=0.95, precision=0.1, deadline=math.inf
    )
    assert (found.values, found.interval) == ((2.0,) * 9, (2.0, 2.0))


@pytest.mark.parametrize("count", [6, 15, 60, 400])
def test_the_interval_holds_the_median_as_often_as_it_says(measure: ModuleType, count: int) -> None:
    source = random.Random(count)  # noqa: S311 - no secret
    inside = 0
    for _ in range(2000):
        drawn = [source.expovariate(1.0) for _ in range(count)]  # a long tail, as times have
        low, high = measure.median_interval(drawn, 0.95)
        inside += low <= math.log(2) <= high
    assert inside / 2000 >= 0.94


def test_nodes_and_controller_agree_on_intervals(measure: ModuleType) -> None:
    source = random.Random(3)  # noqa: S311 - no secret
    for count in (1, 5, 6, 7, 20, 199, 200, 201, 1000):
        drawn = [source.random() for _ in range(count)]
        for confidence in (0.9, 0.95, 0.999):
            assert measure.median_interval(drawn, confidence) == robust_stats.median_interval(drawn, confidence)
        assert measure.mad(drawn) == robust_stats.mad(drawn)
    assert robust_stats.median_interval([1.0] * 5, 0.95) is None
    assert robust_stats.median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0], 0.95) == (1.0, 6.0)


class Voice:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say_in_turn(self, event: str, **figures: Any) -> None:
        head = {"clusterctl": 1, "event": event, "check": "pairs", "rank": 1, "host": "box2"}
        self.lines.append(json.dumps({**head, **figures}))


def read(lines: list[str]) -> rank_output.Output:
    told = [OutputLine("stdout", 1.0, line) for line in lines]
    return rank_output.read(told, ("node1", "node2"), {"box1": "node1", "box2": "node2"})


def test_samples_reach_the_controller_whole(measure: ModuleType) -> None:
    voice = Voice()
    drawn = [1e9 / (number + 3) for number in range(901)]
    link = {"quantity": "bandwidth", "unit": "B/s", "better": "higher", "peer": "box1", "bytes": 2**20}
    measure.say(voice, drawn, **link)
    measure.say(voice, [3.25], quantity="compute", unit="FLOP/s", better="higher", peer="")
    assert max(len(line) for line in voice.lines) < 4000
    output = read(voice.lines)
    assert output.other == ()
    assert output.ranks[1].state == "absent"  # to have measured is not to have answered
    bandwidth, compute = rank_output.figures(output.measured)
    assert (bandwidth.nodes, bandwidth.size_bytes, compute.nodes) == (("node2", "node1"), 2**20, ("node2",))
    assert bandwidth.samples == pytest.approx(drawn, rel=1e-5)
    assert bandwidth.low is not None
    assert bandwidth.high is not None
    assert bandwidth.low < bandwidth.value < bandwidth.high
    assert (bandwidth.confidence, compute.confidence, compute.low) == (0.95, 0.0, None)
    assert rank_output.figures(output.measured, together=True)[0].nodes == ()


def test_what_came_in_part_is_left_out(measure: ModuleType) -> None:
    voice = Voice()
    link = {"quantity": "latency", "unit": "us", "better": "lower", "peer": "box1", "bytes": 1}
    measure.say(voice, [1.0] * 500, **link)
    first, *rest = voice.lines
    assert read(voice.lines).measured
    assert read(rest).measured == ()
    assert read([first, *rest, first]).measured == ()
    assert read([first.replace("[1.0", '["what"')]).measured == ()
    assert read([*rest, first[:900]]).measured == ()
    voice.lines.clear()
    measure.say(voice, [], **link)
    measure.say(voice, [math.nan], **link)
    assert read(voice.lines).measured == ()
