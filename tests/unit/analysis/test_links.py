"""What a node's links have in common is the node's, the rest is the link's, whatever is missing."""

from __future__ import annotations

import numpy as np
import pytest
from clusterctl.analysis import links
from clusterctl.analysis.robust_stats import t_quantile

RNG_SEED = 20


def pairs(count: int) -> tuple[links.Indices, links.Indices]:
    first, second = np.triu_indices(count, 1)
    return first.astype(np.int64), second.astype(np.int64)


def rounds(count: int, number: int, rng: np.random.Generator) -> tuple[links.Indices, links.Indices]:
    """Return the pairs of so many rounds of disjoint pairs, each at most once."""
    found = set()
    for _ in range(number):
        order = rng.permutation(count)
        found |= {(min(a, b), max(a, b)) for a, b in zip(order[::2], order[1::2], strict=False)}
    both = np.array(sorted(found), dtype=np.int64)
    return both[:, 0], both[:, 1]


@pytest.mark.parametrize("count", [8, 16, 101])
def test_effects_without_noise_come_back_within_a_fraction_of_their_spread(count: int) -> None:
    rng = np.random.default_rng(RNG_SEED)
    first, second = pairs(count)
    effects = rng.normal(0, 0.05, count)
    effects -= np.median(effects)
    fitted = links.fit(links.Links.of(count, first, second), 3 + effects[first] + effects[second])
    assert fitted.level == pytest.approx(3, abs=0.01)
    assert fitted.nodes == pytest.approx(effects, abs=0.01)
    assert np.median(np.abs(fitted.residuals)) < 0.005


def test_a_slow_link_stays_with_the_link_and_a_slow_node_with_the_node() -> None:
    first, second = pairs(20)
    logs = np.zeros(first.size)
    logs[(first == 3) & (second == 8)] = 1.0
    logs[(first == 17) | (second == 17)] += 0.5
    fitted = links.fit(links.Links.of(20, first, second), logs)
    assert fitted.nodes[17] == pytest.approx(0.5)
    assert np.abs(np.delete(fitted.nodes, 17)).max() < 1e-3
    assert fitted.residuals[(first == 3) & (second == 8)] == pytest.approx(1.0)


def test_missing_links_do_not_move_the_fit() -> None:
    rng = np.random.default_rng(RNG_SEED)
    first, second = pairs(30)
    there = rng.random(first.size) < 0.6
    logs = 0.3 * ((first == 5) | (second == 5))
    fitted = links.fit(links.Links.of(30, first[there], second[there]), logs[there])
    assert fitted.nodes[5] == pytest.approx(0.3, abs=1e-3)
    assert np.abs(np.delete(fitted.nodes, 5)).max() < 1e-3


def test_sampled_rounds_of_many_nodes_are_fitted() -> None:
    rng = np.random.default_rng(RNG_SEED)
    first, second = rounds(1000, 16, rng)
    logs = rng.normal(0, 0.01, first.size) + 0.2 * ((first == 7) | (second == 7))
    fitted = links.fit(links.Links.of(1000, first, second), logs)
    assert fitted.nodes[7] == pytest.approx(0.2, abs=0.02)
    assert np.abs(np.delete(fitted.nodes, 7)).max() < 0.03


def test_a_node_with_two_links_has_no_effect_of_its_own() -> None:
    first, second = np.array([0, 0, 1]), np.array([1, 2, 2])
    fitted = links.fit(links.Links.of(3, first, second), np.array([1.0, 0.0, 0.0]))
    assert fitted.nodes.tolist() == [0, 0, 0]
    assert fitted.residuals.tolist() == [1, 0, 0]


def test_a_node_without_any_link_is_left_alone() -> None:
    first, second = pairs(6)
    fitted = links.fit(links.Links.of(8, first, second), np.full(first.size, 2.0))
    assert fitted.level == 2
    assert fitted.nodes.tolist() == [0] * 8


# Tables of Student's t, e.g. Abramowitz & Stegun, table 26.10.
@pytest.mark.parametrize(
    ("tail", "dof", "expected"),
    [
        (0.025, 1, 12.706),
        (0.025, 2, 4.303),
        (0.025, 3, 3.182),
        (0.005, 5, 4.032),
        (0.05, 10, 1.812),
        (0.025, 120, 1.980),
    ],
)
def test_quantiles_are_those_of_the_tables(tail: float, dof: int, expected: float) -> None:
    assert t_quantile(tail, dof) == pytest.approx(expected, abs=5e-4)


def test_quantiles_go_over_into_the_normal_distribution() -> None:
    assert t_quantile(1e-6, 200) == pytest.approx(t_quantile(1e-6, 201), rel=2e-3)
    assert t_quantile(1e-6, 10**6) == pytest.approx(4.7534, abs=1e-3)


@pytest.mark.parametrize(("tail", "dof"), [(0.0, 5), (0.6, 5), (0.1, 0)])
def test_no_quantile_of_nonsense(tail: float, dof: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(tail, dof)
