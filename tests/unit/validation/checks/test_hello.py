"""``hello`` over captured output: one MPI library on all nodes, and ranks in their places."""

from __future__ import annotations

import dataclasses
import json

from captured_cluster import LIBRARIES, SLOTS, judge, site
from clusterctl.model.job_outcome import OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import registry
from factory import captured_outcome


def test_hello_names_the_release_that_all_have() -> None:
    judgement = judge("hello-5.0.7", "hello")
    assert judgement.reason == "8 ranks on 4 nodes, all Open MPI v5.0.7"
    assert {rank.library_path for rank in judgement.ranks} == {f"{LIBRARIES['5.0.7']}/lib/libmpi.so.40.40.7"}


def test_a_wrong_sum_is_said_with_its_rank_and_both_figures() -> None:
    judgement = judge("hello-wrong-5.0.7", "hello")
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason == "rank 5 on node3: allreduce sum of the numbers 1 to 8: expected 36, got 37"


def test_builds_may_differ_between_platforms_and_releases_may_not() -> None:
    mixed = dataclasses.replace(
        site("skew-5.0.7"), platforms={**dict.fromkeys(SLOTS, "debian-12-x86_64"), "node3": "debian-13-x86_64"}
    )
    hello = registry.select(["hello"])[0]
    assert hello.judge(mixed, captured_outcome("skew-5.0.7")).verdict is Verdict.PASS
    whole = captured_outcome("skew-5.0.7")
    other = tuple(
        dataclasses.replace(line, text=line.text.replace("v5.0.7", "v5.0.11")) if "-other/" in line.text else line
        for line in whole.lines
    )
    judgement = hello.judge(mixed, dataclasses.replace(whole, lines=other))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert "different releases of MPI: node3: Open MPI v5.0.11" in judgement.reason


def test_a_rank_that_died_before_it_named_its_library_has_no_other_release() -> None:
    whole = captured_outcome("hello-5.0.7")
    died = {
        "clusterctl": 1,
        "event": "result",
        "check": "hello",
        "rank": 4,
        "host": "node3",
        "ok": False,
        "compared": 0,
        "wrong": 1,
        "problems": [{"what": "MPI_Init", "expected": "an answer", "got": "ended with code 14"}],
    }
    lines = tuple(
        dataclasses.replace(line, text=json.dumps(died)) if '{"rank": 4,' in line.text else line for line in whole.lines
    )
    outcome = dataclasses.replace(whole, lines=lines, rc=14)
    judgement = registry.select(["hello"])[0].judge(site("hello-5.0.7"), outcome)
    assert judgement.verdict is Verdict.FAIL
    assert "different releases" not in judgement.reason
    assert "ended with code 14" in judgement.reason


def test_a_library_that_is_not_as_installed_names_its_node_before_all_else() -> None:
    whole = captured_outcome("hello-5.0.7")
    path = f"{LIBRARIES['5.0.7']}/lib/libmpi.so.40.40.7"
    event = {"clusterctl": 1, "event": "mapped", "rank": 4, "host": "node3", "files": {}, "changed": [path]}
    lines = (*whole.lines, OutputLine("stdout", 1.0, json.dumps(event)))
    judgement = registry.select(["hello"])[0].judge(site("hello-5.0.7"), dataclasses.replace(whole, lines=lines))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert [(one.kind, one.nodes) for one in judgement.culprits] == [("node", ("node3",))]
    assert "clusterctl provision" in judgement.culprits[0].cure
    assert "libmpi.so.40.40.7 on node3 is not the file that was installed" in judgement.reason


def test_ranks_on_the_wrong_node_are_found() -> None:
    whole = captured_outcome("hello-5.0.7")
    moved = tuple(
        dataclasses.replace(line, text=line.text.replace('"host": "node4"', '"host": "node3"')) for line in whole.lines
    )
    judgement = registry.select(["hello"])[0].judge(site("hello-5.0.7"), dataclasses.replace(whole, lines=moved))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason == "ranks are not where the hostfile puts them: node3 has 4 of 2, node4 has 0 of 2"
