from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusterctl.report import baseline
from past_runs import check, figure, record, remember, run

pytestmark = pytest.mark.programs


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
    assert "-9 %" in run("baseline", "show", nights).stdout
    assert "History begins with 20260307T020000Z-validate-7 (FAIL)" in run("baseline", "accept", nights).stdout
    assert "from 5 runs on" in run("baseline", "show", nights, "--all").stdout
    assert "baseline; pairs PASS → FAIL" in run("history", nights).stdout
    assert "7 runs up to now kept" in run("baseline", "reset", nights).stdout
    assert "nothing is in force" in run("baseline", "show", nights).stdout
