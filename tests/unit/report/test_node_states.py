from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import factory
import pytest
from clusterctl.model.findings import Finding, NodeHealth
from clusterctl.model.results import CheckResult, Culprit
from clusterctl.report import run_overview
from clusterctl.state import hardware_looks, paths
from past_runs import SLOW, check, record, remember, run

pytestmark = pytest.mark.programs

BOTH = ("node1", "node2")
ALONE = {"hosts": ("node1",), "slots": {"node1": 2}}


def state_of(inventory: Path, node: str = "node2") -> NodeHealth:
    return next(one for one in run_overview.overview(inventory).nodes if one.node == node)


def changes(inventory: Path) -> tuple[str, ...]:
    return run_overview.overview(inventory).runs[-1].changes


def test_a_named_node_is_not_healthy_before_a_passed_proof(inventory: Path) -> None:
    remember(inventory, record(1))
    assert {one.node: one.state for one in run_overview.overview(inventory).nodes} == dict.fromkeys(BOTH, "healthy")

    bad = record(2, check("pairs", "FAIL", culprits=(SLOW,)))
    remember(inventory, bad)
    assert (state_of(inventory).state, state_of(inventory).checks) == ("failed", ("pairs",))
    assert state_of(inventory, "node1").state == "healthy"  # it passed once, and nothing named it

    remember(inventory, record(3, check("pairs"), **ALONE))  # the node is left out, and the rest passes
    assert changes(inventory) == ("pairs FAIL → PASS", f"node2 not proved since {bad.run_id}", "without node2")
    assert (state_of(inventory).state, state_of(inventory).run_id) == ("not proved", bad.run_id)
    assert state_of(inventory, "node1").state == "healthy"

    remember(inventory, record(4, check("pairs"), **ALONE))  # told once
    assert changes(inventory) == ()

    remember(inventory, record(5, check("hello")))  # back, and another check passed
    assert state_of(inventory).state == "not proved"

    remember(inventory, record(6, check("pairs")))
    assert changes(inventory) == ("node2 no longer named by pairs",)
    assert (state_of(inventory).state, state_of(inventory).checks) == ("healthy", ())


def test_a_check_that_blames_another_proves_nobody(inventory: Path) -> None:
    other = Culprit(kind="node", nodes=("node1",), quantity="bandwidth", words="node1 is slow")
    bad = record(1, check("pairs", "FAIL", culprits=(SLOW,)))
    remember(inventory, bad, record(2, check("pairs", "FAIL", culprits=(other,))))
    assert changes(inventory) == ("node1 named by pairs", f"node2 not proved since {bad.run_id}")
    assert (state_of(inventory, "node1").state, state_of(inventory).state) == ("failed", "not proved")
    remember(inventory, record(3, check("pairs", "FAIL", culprits=(SLOW,))))
    assert changes(inventory) == ("node2 named by pairs", f"node1 not proved since {record(2).run_id}")


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (check("pairs", "SKIP"), "it was skipped"),
        (check("pairs", "ERROR"), "it has no result"),
        (check("pairs", "PASS", left_out={"node2": "it has no GPU"}), "the node took no part in the check"),
    ],
    ids=["skipped", "error", "left out of the check"],
)
def test_what_judged_nothing_proves_nothing(inventory: Path, later: CheckResult, why: str) -> None:
    remember(inventory, record(1, check("pairs", "FAIL", culprits=(SLOW,))), record(2, later))
    assert "node2" in {one.node for one in run_overview.overview(inventory).nodes if one.state != "healthy"}, why
    assert not any("no longer named" in word for word in changes(inventory))


def test_a_node_that_could_not_take_part_is_not_proved_by_the_others(inventory: Path) -> None:
    silent = check("reachable", "FAIL", hosts=("node2",))
    remember(inventory, record(1, check("reachable"), check("pairs")))
    remember(inventory, record(2, silent, check("pairs"), slots={"node1": 2}))
    assert (state_of(inventory).state, state_of(inventory).checks) == ("failed", ("reachable",))
    remember(inventory, record(3, check("pairs"), slots={"node1": 2}))  # in the inventory, and not placed
    assert state_of(inventory).state == "not proved"
    assert state_of(inventory, "node1").state == "healthy"
    remember(inventory, record(4, check("reachable"), check("pairs")))
    assert state_of(inventory).state == "healthy"


def test_a_pair_waits_until_both_passed_together(inventory: Path) -> None:
    link = Culprit(kind="pair", nodes=BOTH, quantity="bandwidth", words="slow between them")
    bad = record(1, check("pairs", "FAIL", culprits=(link,)))
    remember(inventory, bad, record(2, check("pairs"), **ALONE))
    assert changes(inventory) == ("pairs FAIL → PASS", f"node[1-2] not proved since {bad.run_id}", "without node2")
    together = Culprit(kind="together", nodes=BOTH, quantity="bandwidth", words="slow only together")
    remember(inventory, record(3, check("pairs")), record(4, check("pairs", "FAIL", culprits=(together,))))
    assert {one.state for one in run_overview.overview(inventory).nodes} == {"healthy"}


def test_a_node_with_an_error_of_doctor_waits_for_a_proof_too(inventory: Path) -> None:
    remember(inventory, record(1))
    at = factory.BEGAN + timedelta(days=2)
    cluster = paths.cluster_id(inventory)
    found = Finding("memory", "error", ("node2", "node9"), "errors", "replace it")
    slow = Finding("disks", "warning", ("node1",), "worn", "replace it")
    hardware_looks.keep_errors(cluster, [found, slow], BOTH, at)
    hardware_looks.keep_errors(cluster, [], BOTH, at + timedelta(hours=1))  # a look without an error proves nothing
    assert set(hardware_looks.read_errors(cluster)) == {"node2"}
    assert (state_of(inventory).state, state_of(inventory, "node1").state) == ("not proved", "healthy")
    said = run("history", inventory).stdout
    assert "node2 is not proved: doctor found errors (memory) on 2026-03-03" in said
    remember(inventory, record(3, check("pairs", "FAIL", culprits=(SLOW,))))
    remember(inventory, record(4, check("pairs"), **ALONE))
    assert (
        f"node2 is not proved: named by pairs in {record(3).run_id}; doctor found" in run("history", inventory).stdout
    )
    remember(inventory, record(5, check("pairs")))
    done = run("history", inventory, "--format", "json")
    assert [(one["node"], one["state"], one["doctor"]) for one in json.loads(done.stdout)["nodes"]] == [
        ("node1", "healthy", None),
        ("node2", "healthy", None),
    ]
    assert "not proved:" not in run("history", inventory).stdout
    hardware_looks.keep_errors(cluster, [], ("node1",), at)  # the node has left the inventory
    assert hardware_looks.read_errors(cluster) == {}


def test_the_history_says_who_failed_last(inventory: Path) -> None:
    remember(inventory, record(1), record(2, check("pairs", "FAIL", culprits=(SLOW,))))
    assert f"node2 failed pairs in {record(2).run_id}." in run("history", inventory).stdout
