"""Growth above a limit that chance hardly explains."""

from __future__ import annotations

import math

import pytest
from clusterctl.analysis import robust_stats
from clusterctl.diagnosis.rules.engines import Growth, is_above


def test_the_distribution_is_poisson_s() -> None:
    mean = 2.5
    for count in (3, 5, 9):
        exact = 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count))
        assert robust_stats.poisson_at_least(count, mean) == pytest.approx(exact, rel=1e-9)
    assert robust_stats.poisson_at_least(1.0, 2.0) == 1.0  # it is what is expected
    assert robust_stats.poisson_at_least(2.0, 0.0) == 0.0


def test_a_short_burst_below_chance_is_not_above_a_limit_and_a_lasting_one_is() -> None:
    assert not is_above(Growth(5, 60.0), per_hour=120)  # 300 an hour, and five a minute are chance at 120
    assert is_above(Growth(5 * 24 * 60, 86400.0), per_hour=120)
    assert is_above(Growth(60, 60.0), per_hour=120)
    assert is_above(Growth(1, 1e6), per_hour=0)
    assert not is_above(Growth(0, 60.0), per_hour=0)
    assert not is_above(Growth(1, 60.0), per_hour=0, at_least=2)
