"""What is kept of a job's lines, whatever they hold."""

from __future__ import annotations

import json
import time

import pytest
from clusterctl.remote import supervised_job
from local_jobs import HERE


def line(text: str) -> str:
    return json.dumps({"event": "line", "stream": "stdout", "at": 0.1, "text": text})


def test_empty_lines_without_end_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_job, "MOST_TEXT", 1 << 12)
    answers = supervised_job.SupervisorAnswers(None, None)
    for _ in range(1 << 12):
        answers.take(line(""))
    assert answers.flood
    assert len(answers.lines) < 100


def test_a_line_is_no_longer_than_the_supervisor_makes_one() -> None:
    answers = supervised_job.SupervisorAnswers(None, None)
    answers.take(line("x" * (1 << 20)))
    assert [len(one.text) for one in answers.lines] == [1 << 17]


@pytest.mark.parametrize("session", ["x" * 3_000_000, "a\0b-1", "../x-1", "-x-1"])
def test_a_node_gives_the_sweep_of_the_others_no_odd_argument(session: str) -> None:
    answers = supervised_job.SupervisorAnswers(None, None)
    answers.take(json.dumps({"event": "started", "session": "node1.lab-17", "argv": []}))
    assert answers.session == "node1.lab-17"
    answers.take(json.dumps({"event": "started", "session": session, "argv": []}))
    assert not answers.session
    assert supervised_job.sweep([HERE], "run-unit-session", answers.session)[0].killed == ()


def test_no_time_of_a_node_is_later_than_it_is_heard() -> None:
    """The deadlines of later checks follow from the time that ranks took to start."""
    answers = supervised_job.SupervisorAnswers(None, None, time.monotonic() - 5)
    for event in (
        {"event": "line", "stream": "stdout", "text": "x", "at": 1e300},
        {"event": "ending", "at": 1e12},
        {"event": "ended", "reason": "exited", "rc": 0, "seconds": 1e12},
    ):
        answers.take(json.dumps(event))
    assert answers.ended is not None
    for told in (answers.lines[0].at_s, answers.ending_s, answers.ended.seconds):
        assert 5 <= told < 60
