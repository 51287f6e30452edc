from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import factory
import numpy as np
import past_runs
import pytest
from clusterctl.model.culprits import Culprit
from clusterctl.model.findings import Finding
from clusterctl.model.results import Verdict
from clusterctl.report import baseline, figure_words, run_overview
from clusterctl.state import doctor_errors, paths
from clusterctl.support.errors import ConfigError
from past_runs import SLOW, check, figure, record, remember, run

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.model.node_states import NodeHealth
    from clusterctl.model.results import CheckResult

pytestmark = pytest.mark.programs


def test_every_run_says_what_it_changed(inventory: Path) -> None:
    nights = [
        (record(1, check("hello"), check("pairs")), ()),
        (record(2, check("hello"), check("pairs", "SKIP")), ()),
        (
            record(3, check("hello"), check("pairs", "FAIL", culprits=(SLOW,))),
            ("pairs PASS → FAIL", "node2 named by pairs"),
        ),
        (record(4, check("hello"), check("pairs", "FAIL", culprits=(SLOW,))), ()),
        (record(5, check("hello", "ERROR"), check("pairs", "ERROR")), ("hello PASS → ERROR", "pairs FAIL → ERROR")),
        (
            record(6, check("hello"), check("pairs"), check("nccl", "FAIL"), versions={"openmpi": "5.0.8"}),
            (
                "hello ERROR → PASS",
                "pairs ERROR → PASS",
                "node2 no longer named by pairs",
                "nccl FAIL",
                "openmpi 5.0.7 → 5.0.8",
            ),
        ),
        (record(7, check("hello"), hosts=("node1", "node3")), ("without node2", "with node3", "openmpi 5.0.8 → 5.0.7")),
    ]
    remember(inventory, *(one for one, _ in nights))
    found = run_overview.overview(inventory)
    assert [(line.run_id, line.changes) for line in found.runs] == [(one.run_id, words) for one, words in nights]
    assert (found.total, found.baseline, found.notes) == (7, None, ())
    assert [line.run_id for line in run_overview.overview(inventory, last=2).runs] == [
        one.run_id for one, _ in nights[-2:]
    ]


def test_one_check_has_its_verdicts_reasons_and_figures(inventory: Path) -> None:
    remember(inventory, *(record(night) for night in range(5)))
    remember(inventory, record(5, check("hello")), record(6, check("pairs", "FAIL", figure(50)), check("hello")))
    found = run_overview.overview(inventory, "pairs")
    assert [line.verdict.value for line in found.runs] == [*["PASS"] * 5, "FAIL"]
    assert found.runs[-1].reason == "pairs is FAIL"
    (trend,) = found.trends
    assert trend.changed_at == found.runs[-1].run_id
    assert figure_words.now_and_before(trend) == ("50 B/s", "100 B/s")


def test_what_is_not_there_is_a_sentence(inventory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"The history of .*inventory\.ini is empty; 'clusterctl validate"):
        run_overview.overview(inventory)
    with pytest.raises(ConfigError, match="does not exist"):
        run_overview.overview(tmp_path / "nowhere.ini")
    remember(inventory, record(1))
    with pytest.raises(ConfigError, match=r"The check 'pears' is unknown .*inventory\.ini; choose of: pairs"):
        run_overview.overview(inventory, "pears")


def test_history_in_words(nights: Path) -> None:
    done = run("history", nights, "--last", "2")
    assert (done.returncode, done.stdout) == (0, "")
    assert "pairs PASS → FAIL; node2 named by pairs" in done.stderr
    assert "pairs: node2: bandwidth, 1 KiB is 50 B/s since 20260307T020000Z-validate-7; before, 100 B/s." in done.stderr
    assert "7 runs are kept" in done.stderr
    one = run("history", nights, "--check", "pairs")
    assert "pairs is FAIL" in one.stderr
    assert "CHANGED WITH" in one.stderr


def test_old_runs_are_forgotten_when_asked(nights: Path) -> None:
    baseline.accept(nights, "20260302")
    done = run("history", nights, "--keep-runs", "2")
    assert "4 older runs forgotten." in done.stderr
    left = [line.run_id[:8] for line in run_overview.overview(nights).runs]
    assert left == ["20260302", "20260306", "20260307"]
    assert run("history", nights, "--keep-days", "0").returncode == 0
    assert [line.accepted for line in run_overview.overview(nights).runs] == [True, False]


# --- what the history says of nodes that became a little slower ---


NODES = tuple(f"node{number}" for number in range(1, 9))


def remembered(inventory: Path, runs: int, noise: float, *, slow_last: int = 0) -> tuple[str, ...]:
    rng = np.random.default_rng(3)
    for night in range(runs):
        figures = []
        for name in NODES:
            value = 1e9 * np.exp(rng.normal(0, noise))
            if name == "node3" and night >= runs - slow_last:
                value *= 0.99
            figures.append(past_runs.figure(float(value), name))
        past_runs.remember(inventory, past_runs.record(night, past_runs.check("pairs", Verdict.PASS.value, *figures)))
    return run_overview.overview(inventory).drifts


def test_a_node_that_is_slower_every_night_is_named(inventory: Path) -> None:
    (words,) = remembered(inventory, 27, 0.001, slow_last=7)
    assert words.startswith("pairs: bandwidth: node3 is ")
    assert words.endswith(" runs than before; the others are not.")


def test_too_few_runs_are_said_with_the_number_that_is_missing(inventory: Path) -> None:
    assert remembered(inventory, 4, 0.001) == (
        "pairs: bandwidth: 2 more runs needed before small slowdowns can be judged.",
    )


def test_a_healthy_history_says_after_how_many_runs_a_small_slowdown_shows(inventory: Path) -> None:
    (words,) = remembered(inventory, 20, 0.001)
    assert words.endswith("so one that becomes 0.5 % worse is named after 3 runs.")


def test_noise_that_hides_it_is_said(inventory: Path) -> None:
    (words,) = remembered(inventory, 20, 0.2)
    assert "cannot be seen with any number of runs" in words


# --- node states ---


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
    doctor_errors.keep(cluster, [found, slow], BOTH, at)
    doctor_errors.keep(cluster, [], BOTH, at + timedelta(hours=1))  # a look without an error proves nothing
    assert set(doctor_errors.read(cluster)) == {"node2"}
    assert (state_of(inventory).state, state_of(inventory, "node1").state) == ("not proved", "healthy")
    said = run("history", inventory).stderr
    assert "node2 is not proved: doctor found errors (memory) on 2026-03-03" in said
    remember(inventory, record(3, check("pairs", "FAIL", culprits=(SLOW,))))
    remember(inventory, record(4, check("pairs"), **ALONE))
    assert (
        f"node2 is not proved: named by pairs in {record(3).run_id}; doctor found" in run("history", inventory).stderr
    )
    remember(inventory, record(5, check("pairs")))
    done = run("history", inventory, "--format", "json")
    assert [(one["node"], one["state"], one["doctor"]) for one in json.loads(done.stdout)["nodes"]] == [
        ("node1", "healthy", None),
        ("node2", "healthy", None),
    ]
    assert "not proved:" not in run("history", inventory).stderr
    doctor_errors.keep(cluster, [], ("node1",), at)  # the node has left the inventory
    assert doctor_errors.read(cluster) == {}


def test_the_history_says_who_failed_last(inventory: Path) -> None:
    remember(inventory, record(1), record(2, check("pairs", "FAIL", culprits=(SLOW,))))
    assert f"node2 failed pairs in {record(2).run_id}." in run("history", inventory).stderr


# --- baseline ---


def test_references_say_whether_they_are_in_force(inventory: Path) -> None:
    remember(inventory, *(record(night) for night in range(4)))
    entries = baseline.in_force(inventory).entries
    assert [(one.runs, one.in_force, one.lower) for one in entries] == [(4, False, None)] * 2
    remember(inventory, record(5), record(6, check("pairs", "FAIL", figure(1))))
    found = baseline.in_force(inventory)
    (whole,) = found.entries  # the last run measured no node by itself
    assert (whole.runs, whole.median, whole.mad, whole.in_force, whole.upper) == (5, 100, 0, True, None)
    assert whole.lower == pytest.approx(1 / 1.1 - 1)
    baseline.accept(inventory, "last")
    (whole,) = baseline.in_force(inventory, "pairs").entries
    assert (whole.runs, whole.median, whole.in_force) == (1, 1, False)
    assert baseline.reset(inventory) == 6
    assert baseline.in_force(inventory).entries == ()


def test_the_history_options_of_the_file_beside_the_inventory_hold(inventory: Path) -> None:
    remember(inventory, *(record(night) for night in range(4)))
    inventory.with_name("validation.yml").write_text("extends: smoke\nhistory: {at_least: 4}\n", encoding="utf-8")
    found = json.loads(run("baseline", "show", inventory, "--format", "json").stdout)
    assert (found["at_least"], {one["in_force"] for one in found["entries"]}) == (4, {True})
    inventory.with_name("validation.yml").write_text("extends: smoke\nhistory: {atleast: 4}\n", encoding="utf-8")
    refused = run("baseline", "show", inventory)
    assert (refused.returncode, "did you mean 'at_least'" in refused.stderr) == (1, True)


def test_the_baseline_in_words(nights: Path) -> None:
    assert "-9 %" in run("baseline", "show", nights).stderr
    assert "History begins with 20260307T020000Z-validate-7 (FAIL)" in run("baseline", "accept", nights).stderr
    assert "from 5 runs on" in run("baseline", "show", nights, "--all").stderr
    assert "baseline; pairs PASS → FAIL" in run("history", nights).stderr
    assert "7 runs up to now kept" in run("baseline", "reset", nights).stderr
    assert "nothing is in force" in run("baseline", "show", nights).stderr
