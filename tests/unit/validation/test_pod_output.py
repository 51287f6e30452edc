"""The logs of pods become one outcome for each check; what is cut off or mixed does no harm."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from clusterctl.launch.validation_job import ValidationJob
from clusterctl.validation import via_pods
from clusterctl.validation.via_pods import PodOutput


def event(name: str, **more: Any) -> str:
    return json.dumps({"clusterctl_pod": 1, "event": name, "pod": "p", **more})


RANK = '{"clusterctl": 1, "event": "result", "check": "allreduce", "rank": 0, "host": "w"}'


def test_a_check_is_the_lines_between_its_begin_and_its_end() -> None:
    output = PodOutput(1)
    output.take("l", event("up", mpirun="mpirun (Open MPI) 4.1.4"), 1.0)
    output.take("l", "a line before", 1.5)
    output.take("l", event("begin", check="allreduce"), 2.0)
    assert output.running() == "allreduce"
    output.take("l", RANK, 2.5)
    output.take("l", "mpirun says something", 2.75)
    assert not output.has_ended(0)
    output.take("l", event("end", check="allreduce", ending="exited", rc=0, seconds=1.0, ending_s=1.0), 3.0)
    output.take("l", "", 3.0)
    assert output.has_ended(0)
    assert not output.is_done
    output.take("l", event("done"), 3.1)
    assert output.is_done
    outcome = output.outcome(0)
    assert outcome is not None
    assert [(line.stream, line.at_s, line.text) for line in outcome.lines] == [
        ("stdout", 0.5, RANK),
        ("stderr", 0.75, "mpirun says something"),
    ]
    assert (outcome.ending, outcome.rc, outcome.seconds) == ("exited", 0, 1.0)


def test_the_worst_end_of_all_pods_counts() -> None:
    output = PodOutput(2)
    for pod in "ab":
        output.take(pod, event("begin", check="torchrun"), 0.0)
    output.take("a", event("end", check="torchrun", ending="exited", rc=0), 1.0)
    assert not output.has_ended(0)
    unfinished = output.outcome(0)
    assert unfinished.ending == "lost"
    output.take("b", event("end", check="torchrun", ending="deadline", rc=None, ending_s=120.0), 1.0)
    late = output.outcome(0)
    assert (late.ending, late.ending_s, late.rc) == ("deadline", 120.0, None)


def test_a_second_run_of_a_check_is_another_one() -> None:
    output = PodOutput(1)
    for code in (0, 1):
        output.take("l", event("begin", check="pairs"), 0.0)
        output.take("l", event("end", check="pairs", ending="exited", rc=code), 1.0)
    outcomes = [output.outcome(number) for number in range(3)]
    assert [None if one is None else one.rc for one in outcomes] == [0, 1, None]


def test_what_an_image_lacks_ends_the_run() -> None:
    output = PodOutput(2)
    output.take("a", event("lacks", what="mpirun in PATH"), 0.0)
    assert output.is_done
    assert output.lacks == {"a": "mpirun in PATH"}


def test_half_lines_and_strange_events_are_text() -> None:
    output = PodOutput(1)
    output.take("l", event("end", check="none"), 0.0)  # without a begin
    output.take("l", event("begin", check="gather"), 0.0)
    for text in ('{"clusterctl_pod": 1, "event": "en', '{"clusterctl_pod": [', event("end", seconds="x", rc="y")):
        output.take("l", text, 1.0)
    outcome = output.outcome(0)
    assert (outcome.seconds, outcome.rc) == (0.0, None)
    assert len(outcome.lines) == 2


@pytest.mark.parametrize("seconds", [10**400, float("nan"), float("inf"), -1.0])
def test_an_end_of_another_form_is_no_success(seconds: float) -> None:
    output = PodOutput(1)
    output.take("l", event("begin", check="allreduce"), 0.0)
    output.take("l", event("end", ending="exited", rc=0, seconds=seconds, ending_s=1.0), 1.0)
    output.take("l", event("end", ending="exited", rc=False, seconds=1.0, ending_s=seconds), 1.0)
    outcome = output.outcome(0)
    assert 0.0 <= outcome.seconds <= 1.0
    assert outcome.ending_s in {0.0, 1.0}


def test_a_status_that_is_false_is_no_success() -> None:
    output = PodOutput(1)
    output.take("l", event("begin", check="allreduce"), 0.0)
    output.take("l", event("end", ending="exited", rc=False, seconds=1.0, ending_s=1.0), 1.0)
    outcome = output.outcome(0)
    assert outcome.rc is None


def test_lines_and_checks_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(via_pods, "_MOST_TEXT", 1 << 20)
    output = PodOutput(2)
    for number in range(5000):
        output.take("l", event("begin", check=f"c{number}"), 0.0)
        output.take("l", "x" * 1000, 0.0)
    output.take("m", event("begin", check="c"), 0.0)
    output.take("m", "y" * (1 << 20), 0.0)
    assert output.outcome(4096) is None
    kept = [line for number in range(4096) if (found := output.outcome(number)) for line in found.lines]
    assert sum(len(line.text) for line in kept) <= 1 << 20


def job(kind: str) -> ValidationJob:
    ranks = ("worker-0", "worker-1") if kind == "MPIJob" else ("master-0", "worker-0")
    return ValidationJob("clusterctl-1", kind, {}, {}, ranks, 1 if kind == "MPIJob" else 2)


def test_the_log_of_a_worker_of_an_mpijob_tells_no_results() -> None:
    output = PodOutput(1, job("MPIJob").speaks)
    for line in (event("begin", check="allreduce"), RANK, event("end", check="allreduce", rc=0), event("done")):
        output.take("clusterctl-1-worker-0", line, 1.0)
    assert (output.is_done, output.has_ended(0), output.outcome(0)) == (False, False, None)
    output.take("clusterctl-1-launcher-x7k2p", event("done"), 1.0)
    assert output.is_done


def test_each_pod_of_a_pytorchjob_tells_results_and_no_other() -> None:
    speaks = job("PyTorchJob").speaks
    names = ("clusterctl-1-master-0", "clusterctl-1-worker-0", "clusterctl-1-worker-7", "master-x")
    assert [speaks(name) for name in names] == [True, True, False, False]


@pytest.mark.parametrize("name", ["lacks", "end", "done", "begin", "up"])
def test_a_rank_whose_lines_come_through_the_launcher_is_not_the_launcher(name: str) -> None:
    output = PodOutput(1)
    output.take("l", event("up", key="k"), 0.0)
    output.take("l", event("begin", check="hello", key="k"), 0.0)
    for more in ({}, {"key": "other"}, {"key": None}):
        output.take("l", event(name, check="hello", rc=0, what="all", **more), 1.0)
    assert (output.is_done, output.has_ended(0), output.lacks, output.up["l"]["key"]) == (False, False, {}, "k")
    output.take("l", event("end", check="hello", rc=0, key="k"), 1.0)
    assert output.has_ended(0)


def test_one_pod_takes_no_room_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(via_pods, "_MOST_TEXT", 4000)
    output = PodOutput(2)
    for pod in "ab":
        output.take(pod, event("begin", check="torchrun"), 0.0)
    for _unused in range(100):
        output.take("a", "x" * 100, 0.0)
    output.take("b", RANK, 1.0)
    assert RANK in [line.text for line in output.outcome(0).lines]


def test_events_without_end_fill_no_memory() -> None:
    output = PodOutput(1)
    many = json.dumps({f"k{number}": number for number in range(9000)})[1:-1]
    tracemalloc.start()
    for _unused in range(100):
        output.take("l", event("begin", check="x" * 100_000), 0.0)
        output.take("l", event("end", rc=0, problem="p" * 20_000)[:-1] + f", {many}}}", 0.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
