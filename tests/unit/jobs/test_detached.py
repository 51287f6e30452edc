"""Which detached job a word means, and how its end is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from clusterctl.jobs import detached
from clusterctl.model.hosts import Inventory, InventorySources
from clusterctl.remote.detached_job import DetachedJob
from clusterctl.support.errors import ClusterctlError, ConfigError, UnreachableError
from local_jobs import HERE

LOST_A_DAEMON = "PRTE has lost communication with a remote daemon.\n"


def job(name: str = "run-0123456789ab", since: float = 1.0, **more: Any) -> DetachedJob:
    return DetachedJob(job=name, node="node1", command=("a.out",), since=since, **{"state": "running", **more})


def cluster(*jobs: DetachedJob, problems: tuple[ClusterctlError, ...] = ()) -> detached.ClusterJobs:
    found = tuple(detached.FoundJob("node1", one) for one in jobs)
    inventory = Inventory(InventorySources(("lab.ini",)), (), (), "")
    return detached.ClusterJobs(inventory, {"node1": HERE}, frozenset({"cluster"}), found, problems)


def test_a_job_that_two_nodes_tell_of_can_be_ended_by_the_name_of_its_node() -> None:
    jobs = cluster(job("run-aaaa0000aaaa"))
    forged = dataclasses.replace(jobs, jobs=(*jobs.jobs, detached.FoundJob("node3", job("run-aaaa0000aaaa", 9.0))))
    for word in ("run-aaaa0000aaaa", "run-a"):
        with pytest.raises(ConfigError, match=r"^node\[1,3\] each tell of a job 'run-a.*'; name .* with --limit\."):
            forged.find(word)


def test_a_word_means_one_job() -> None:
    one, two = job("run-aaaa0000aaaa", 2.0), job("run-bbbb0000bbbb")
    jobs = cluster(one, two)
    assert jobs.find(None).job is one
    assert jobs.find("run-bbbb0000bbbb").job is two
    assert jobs.find("run-b").job is two
    with pytest.raises(ConfigError, match=r"'run-' begins several jobs \(run-aaaa0000aaaa, run-bbbb0000bbbb\)"):
        jobs.find("run-")
    with pytest.raises(
        ConfigError, match=r"no detached job 'x' of the user cluster on node1; see 'clusterctl jobs lab"
    ):
        jobs.find("x")
    with pytest.raises(ConfigError, match=r"start one with 'clusterctl run --detach lab\.ini'"):
        cluster().find(None)
    with pytest.raises(UnreachableError, match=r"no detached job 'x' .* node2 does not answer\."):
        cluster(one, problems=(UnreachableError("node2 does not answer."),)).find("x")


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        ({"reason": "exited", "rc": 3}, 3, "has ended with exit code 3"),
        ({"reason": "exited", "signal": 9}, 137, "has ended with exit code 137"),
        ({"reason": "exited", "rc": 0, "tail": LOST_A_DAEMON}, 1, "has ended with exit code 1"),
        ({"reason": "exited", "rc": 0, "tail": "it printed: " + LOST_A_DAEMON}, 0, "exit code 0"),
        ({"reason": "deadline", "signal": 15}, 124, "had not ended at its --timeout"),
        ({"reason": "stdin_closed", "rc": 1}, None, "was stopped"),
        ({"reason": "not_started", "problem": "x"}, None, "was not started"),
        ({"reason": "lost", "problem": "its supervisor was lost: x"}, None, "lost its keeper: its supervisor was lost"),
        ({"state": "lost"}, None, "which is so after a restart of its node"),
    ],
)
def test_an_end_is_told_as_run_tells_it(ended: dict[str, Any], code: int | None, words: str) -> None:
    one = job(**{"state": "ended", **ended})
    assert detached.code_of(one) == code
    assert words in detached.ended_words(one)
