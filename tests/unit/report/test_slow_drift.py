"""A node that is a little slow every night; `tests/sim/small_drifts.py` prints the table of the measured pages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import small_drifts
from clusterctl.report import slow_nodes


def nights(
    number: int, nodes: int, noise: float, *, slow_last: int = 0, by: float = 0.005, seed: int = 1
) -> np.ndarray:
    """Return three sizes of figures; node 1 is slower on the last nights."""
    rng = np.random.default_rng(seed)
    found = rng.normal(0, noise, (3, number, nodes)) + rng.normal(0, 0.005, nodes) + rng.normal(0, 0.1, (number, 1))
    if slow_last:
        found[:, -slow_last:, 1] += by
    return found


@pytest.mark.parametrize("nodes", [4, 16, 64])
def test_half_a_per_cent_every_night_is_named_on_the_seventh(nodes: int) -> None:
    judged = slow_nodes.judge(nights(27, nodes, 0.002, slow_last=7))
    assert judged is not None
    (found,) = judged.drifts
    assert found.node == 1
    assert found.distance == pytest.approx(0.005, abs=0.003)


def test_what_nodes_differ_by_for_good_and_what_slows_a_whole_night_is_no_drift() -> None:
    for seed in range(20):
        judged = slow_nodes.judge(nights(40, 16, 0.002, seed=seed))
        assert judged is not None
        assert judged.drifts == ()


def test_six_nights_are_judged_and_five_are_not() -> None:
    assert slow_nodes.judge(nights(5, 16, 0.002)) is None
    judged = slow_nodes.judge(nights(6, 16, 0.002, slow_last=3, by=0.05))
    assert judged is not None
    assert [one.node for one in judged.drifts] == [1]


def test_it_says_after_how_many_nights_a_small_slowdown_shows() -> None:
    quiet, noisy, hopeless = (slow_nodes.judge(nights(20, 16, noise)) for noise in (0.001, 0.004, 0.2))
    assert quiet is not None
    assert noisy is not None
    assert hopeless is not None
    assert quiet.needed == 3
    assert noisy.needed is not None
    assert noisy.needed > quiet.needed
    assert hopeless.needed is None
    assert slow_nodes.nights_before(hopeless.noise, 20, 16) is None


def test_a_node_that_is_missing_on_a_night_is_left_out() -> None:
    figures = nights(27, 16, 0.002, slow_last=7)
    figures[0, 3, 1] = math.nan
    judged = slow_nodes.judge(figures)
    assert judged is not None
    assert judged.drifts == ()


def test_figures_that_are_not_positive_have_no_logarithm() -> None:
    found = slow_nodes.stacked([[[1.0, 0.0], [math.e, -1.0]]], -1)
    assert found[0, :, 0].tolist() == [0, -1]
    assert np.isnan(found[0, :, 1]).all()


def test_simulated_clusters_of_64_nodes_are_named_in_a_week_and_healthy_ones_are_not() -> None:
    share, named, _ = small_drifts.slow(5, 64, 0.01, 7)
    assert share == 1
    assert all(named)
    assert small_drifts.healthy(1, 64, 0.01, 7) == (0, 0)
