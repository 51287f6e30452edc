from __future__ import annotations

import pytest
from clusterctl.analysis.trend import Noise, changed_at


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([10, 10, 10, 10, 10, 10], None),
        ([10, 10, 10, 10, 5], None),
        ([10, 10, 10, 10, 10, 5], 5),
        ([10, 10, 10, 10, 10, 5, 5, 5], 5),
        ([10, 10, 10, 10, 10, 5, 10, 10, 5, 5], 8),
        ([10, 10, 10, 10, 10, 5, 20], 6),
        ([10, 11, 9, 10, 12, 8, 12.5], None),
        ([10, 10.1, 9.9, 10, 10, 10.4], None),
        ([10, 10.1, 9.9, 10, 10, 20, 20, 20, 20, 20, 20, 20], 5),
        ([0, 0, 0, 0, 0, 0], None),
        ([], None),
    ],
    ids=["steady", "few", "tonight", "since", "again", "astride", "noisy", "floor", "better", "nothing", "empty"],
)
def test_the_night_of_change(series: list[float], expected: int | None) -> None:
    assert changed_at(series, Noise(floor=0.05, mads=4.0, at_least=5)) == expected
