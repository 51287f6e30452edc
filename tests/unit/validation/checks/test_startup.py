"""Deadlines know how many ranks share a core, and a job that is late for want of cores blames no node."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation import bisect
from clusterctl.validation.checks import base, judging, overcommitted_nodes
from clusterctl.validation.checks.hello import Hello
from factory import check as check_of

MANY = tuple(f"node{number}" for number in range(1, 65))


def site(nodes: tuple[str, ...] = MANY, *, slots: int = 2, cores: int = 2, shared: bool = True) -> base.Site:
    return base.Site(
        version="5.0.7",
        slots=dict.fromkeys(nodes, slots),
        names={node: node for node in nodes},
        cores=dict.fromkeys(nodes, cores),
        machines=dict.fromkeys(nodes, "one boot") if shared else {},
    )


def said(where: base.Site, rank: int, event: str, at_s: float, **more: object) -> OutputLine:
    words = {"clusterctl": 1, "event": event, "rank": rank, "host": where.placement[rank], **more}
    return OutputLine("stdout", at_s, json.dumps(words))


def started(where: base.Site, ranks: range, *, until_s: float, load: float, cpus: int = 2) -> list[OutputLine]:
    """Return the lines of ranks that come up one after the other until that time, and wait in MPI_Init."""
    lines = []
    for place, rank in enumerate(ranks, 1):
        at_s = until_s * place / len(ranks)
        lines.append(said(where, rank, "started", at_s))
        beat = {"s": 1.0, "step": "MPI_Init", "load_processes": load, "load_cpus": cpus}
        lines.append(said(where, rank, "waiting", at_s + 1, **beat))
    return lines


def beats(where: base.Site, ranks: range, at_s: float, load: float) -> list[OutputLine]:
    return [said(where, rank, "waiting", at_s, step="MPI_Init", load_processes=load, load_cpus=2) for rank in ranks]


def late(lines: list[OutputLine], deadline_s: float) -> JobOutcome:
    return JobOutcome("deadline", deadline_s + 5, deadline_s, lines=tuple(lines))


def test_128_ranks_on_one_machine_of_two_cores_are_overcommitted_and_no_node_is_blamed() -> None:
    """The ranks of four nodes were up after 92 s. This used to be a FAIL that named the other 60 nodes."""
    where = site()
    found = Hello().judge(where, late(started(where, range(8), until_s=90, load=140.0), 92.0))
    assert (found.verdict, found.hosts) == (Verdict.ERROR, ())
    assert found.reason.startswith("the nodes are overcommitted: 8 of 128 ranks on 64 nodes came up and 0 answered ")
    assert "64 nodes share 2 cores for 128 ranks, and the load was 140" in found.reason
    assert "fewer slots" in found.next_step
    assert "--timeout" in found.next_step


def test_a_job_of_which_no_rank_came_up_is_overcommitted_by_the_number_of_ranks_alone() -> None:
    found = judging.judge(site(), late([], 92.0))
    assert (found.verdict, found.hosts) == (Verdict.ERROR, ())
    assert "64 nodes share 2 cores for 128 ranks" in found.reason
    alone = judging.judge(site(MANY[:6], shared=False), late([], 92.0))
    assert alone.reason.startswith("no rank came up within 92 s")


def test_other_work_on_all_nodes_is_said_while_ranks_still_come_up() -> None:
    where = site(MANY[:6], slots=8, cores=8, shared=False)
    lines = started(where, range(48), until_s=58, load=60.0, cpus=8)
    found = judging.judge(where, late(lines, 60.0))
    assert (found.verdict, found.hosts) == (Verdict.ERROR, ())
    assert "8 cores for 8 ranks, and the load was 60" in found.reason


@pytest.mark.parametrize("load", [4.0, 24.0])
def test_a_hang_is_no_want_of_cores_however_high_the_load(load: float) -> None:
    """Nothing moved since the fifth second, and six nodes of two ranks are up long before."""
    where = site(MANY[:6])
    lines = started(where, range(12), until_s=5, load=load)
    for at_s in (20.0, 40.0, 60.0):
        lines += beats(where, range(12), at_s, load)
    found = judging.judge(where, late(lines, 62.0))
    assert found.verdict is Verdict.FAIL
    assert found.hosts == ()
    assert found.reason.startswith("no answer from any of the 12 ranks within 62 s")


def test_a_hang_of_ranks_that_are_all_up_is_one_however_short_the_deadline() -> None:
    where = site(MANY[:4])
    lines = started(where, range(8), until_s=4, load=9.0)
    lines += [*beats(where, range(8), 7.0, 9.0), *beats(where, range(8), 10.0, 9.0)]
    found = judging.judge(where, late(lines, 12.0))
    assert found.verdict is Verdict.FAIL
    assert found.reason.startswith("no answer from any of the 8 ranks within 12 s")


def test_a_node_that_falls_silent_is_named_however_high_the_load() -> None:
    where = site(MANY[:6])
    lines = started(where, range(12), until_s=58, load=30.0)
    silent = [line for line in lines if '"host": "node4"' not in line.text]
    found = judging.judge(
        where, late([*silent, *beats(where, range(6), 61.0, 30.0), *beats(where, range(8, 12), 61.0, 30.0)], 62.0)
    )
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node4",))


def test_one_busy_node_is_not_all_nodes() -> None:
    where = site(MANY[:6], slots=8, cores=8, shared=False)
    lines = started(where, range(8), until_s=58, load=90.0, cpus=8)
    lines += started(where, range(8, 48), until_s=58, load=8.0, cpus=8)
    assert judging.judge(where, late(lines, 60.0)).verdict is Verdict.FAIL


def test_a_wrong_answer_stays_one_on_a_busy_machine() -> None:
    where = site()
    wrong = said(
        where, 0, "result", 90.0, ok=False, compared=1, wrong=1, problems=[{"what": "sum", "expected": 1, "got": 2}]
    )
    found = judging.judge(where, late([*started(where, range(8), until_s=90, load=140.0), wrong], 92.0))
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node1",))


def test_a_search_is_not_made_where_the_nodes_are_overcommitted() -> None:
    where = site()
    outcome = late(started(where, range(8), until_s=90, load=140.0), 92.0)
    judged = judging.judge(where, outcome)
    found = check_of("hello", judged.verdict, reason=judged.reason, ranks=judged.ranks, next_step=judged.next_step)
    assert not bisect.is_wanted(found, outcome)


def test_a_deadline_grows_with_ranks_on_a_core_nodes_and_the_start_of_the_first_job() -> None:
    check = Hello()
    roomy = base.deadline_s(check, site(shared=False))
    assert roomy == pytest.approx(60 + 128 * 0.05 + 64 * 0.1)
    assert base.deadline_s(check, site()) > roomy + 150  # all on two cores
    assert base.deadline_s(check, site(MANY[:32])) < base.deadline_s(check, site())
    assert base.deadline_s(check, site(shared=False), started_s=80.0) == 60 + overcommitted_nodes.SLACK * 80
    assert base.deadline_s(check, site(), started_s=1.0) == base.deadline_s(check, site())
    few = site(MANY[:4])
    assert base.deadline_s(check, replace(few, slots=dict.fromkeys(few.slots, 8))) > base.deadline_s(check, few) + 60
