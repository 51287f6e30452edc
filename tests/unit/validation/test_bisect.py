"""The bisection launches the groups that the search asks for, and only after endings that a search can explain."""

from __future__ import annotations

import threading
import time

import pytest
from clusterctl.model.job_outcome import JobOutcome, Sweep
from clusterctl.model.results import CheckResult, Launch, RankReport, Verdict, WrongAnswer
from clusterctl.remote import supervised_job
from clusterctl.validation import bisect
from local_jobs import HERE, STUBBORN, carrying, spec

NODES = tuple(f"node{number}" for number in range(1, 9))


def found(*hosts: str, verdict: Verdict = Verdict.FAIL, nodes: int = 4, wrong: str = "") -> CheckResult:
    problems = (WrongAnswer(what="allreduce", expected=wrong, got="killed by SIGSEGV"),) if wrong else ()
    ranks = tuple(RankReport(rank=rank, host=NODES[rank], ok=not wrong, problems=problems) for rank in range(nodes))
    return CheckResult(check="allreduce", verdict=verdict, reason="it hung", hosts=hosts, ranks=ranks, seconds=2.5)


HUNG = JobOutcome("deadline", 21.0, ending_s=20.0)
CRASHED = JobOutcome("exited", 3.0, rc=139)
SILENT = JobOutcome("deadline", 21.0, sweeps=(Sweep("node2", problem="no answer"),))


@pytest.mark.parametrize(
    ("result", "outcome", "wanted"),
    [
        (found(), HUNG, True),
        (found("node1", "node2"), HUNG, True),
        (found("node1", "node2"), CRASHED, True),
        (found(wrong="an answer"), CRASHED, True),
        (found(verdict=Verdict.ERROR), HUNG, True),
        (found("node3"), HUNG, False),
        (found(nodes=2), HUNG, False),
        (found(wrong="108"), CRASHED, False),
        (found(), SILENT, False),
        (found(), JobOutcome("stopped", 1.0), False),
        (found(), JobOutcome("lost", 1.0), False),
        (found(verdict=Verdict.PASS), JobOutcome("exited", 1.0, rc=0), False),
    ],
    ids=[
        "hung", "two-named", "crashed", "rank-died", "nobody-came-up", "one-named", "two-nodes", "wrong-values",
        "node-gone", "stopped", "lost", "passed",
    ],
)  # fmt: skip
def test_which_endings_are_worth_a_search(result: CheckResult, outcome: JobOutcome, wanted: bool) -> None:
    assert bisect.is_wanted(result, outcome) is wanted


def test_a_launch_that_hung_or_never_came_up_failed_and_wrong_values_did_where_they_are_searched_for() -> None:
    assert bisect.launched(("node1",), found(), HUNG) == Launch(
        nodes=("node1",), ok=False, seconds=2.5, words="it hung"
    )
    assert not bisect.launched(("node1",), found(), JobOutcome("lost", 1.0)).ok
    assert bisect.launched(("node1",), found(wrong="108"), CRASHED).ok
    assert not bisect.launched(("node1",), found(wrong="108"), CRASHED, wrong=True).ok


def test_groups_of_a_step_run_at_once_and_the_bad_node_is_named() -> None:
    at_once: list[int] = []
    running = threading.Semaphore(0)

    def launch(nodes: tuple[str, ...], _launcher: str, stop: threading.Event) -> Launch:
        assert not stop.is_set()
        running.release()
        time.sleep(0.05)
        at_once.append(running._value)  # noqa: SLF001 - how many have begun
        running.acquire()
        return Launch(nodes=nodes, ok="node6" not in nodes, seconds=0.05)

    heard: list[str] = []
    search = bisect.find("allreduce", NODES, launch, heard.append)
    assert [(one.kind, one.nodes) for one in search.culprits] == [("node", ("node6",))]
    assert "node6: 3 of 3 launches with it failed" in search.words
    assert len(search.launches) <= search.bound == 10
    assert max(at_once) == 4
    assert heard[0].endswith("(one bad node takes 10 at most): node[1-2] | node[3-4] | node[5-6] | node[7-8]")


def test_an_interrupt_stops_the_launches_in_other_threads() -> None:
    def launch(nodes: tuple[str, ...], _launcher: str, stop: threading.Event) -> Launch:
        if nodes[0] == "node1":
            time.sleep(1)
            raise KeyboardInterrupt
        supervised_job.run(HERE, spec(f"bisect-{nodes[0]}", *STUBBORN), stop=stop)
        raise AssertionError

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bisect.find("allreduce", NODES[:4], launch)
    assert time.monotonic() - began < 15
    assert carrying("bisect-node3") == []
