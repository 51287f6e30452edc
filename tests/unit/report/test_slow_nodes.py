"""What the history says of nodes that became a little slower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import past_runs
import pytest
from clusterctl.model.results import Verdict
from clusterctl.report import run_overview

pytestmark = pytest.mark.programs

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
