"""The lines through measured figures, from which figures of larger clusters are computed."""

from __future__ import annotations

import pytest
import scale_table


def row(nodes: int, cpu: float, what: str = "doctor") -> dict[str, object]:
    rest = {"wall": 2.0, "node_cpu": 1.0, "peak": 2**20 * nodes, "sent": 1000 * nodes, "received": 0, "load": 1.0}
    return {"nodes": nodes, "what": what, "cpu": cpu, **rest}


def test_points_on_a_line_give_the_line() -> None:
    assert scale_table.fitted([(16, 2.6), (64, 7.4), (256, 26.6)]) == pytest.approx((1.0, 0.1))


def test_a_line_never_starts_below_zero() -> None:
    start, slope = scale_table.fitted([(16, 1.0), (64, 8.0)])
    assert start == 0.0
    assert 1 / 16 < slope < 8 / 64


def test_a_far_cluster_is_computed_only_from_more_than_one_size() -> None:
    rows = [row(16, 2.6), row(64, 7.4), row(16, 1.0, "drift")]
    text = scale_table.tables(rows)
    (computed,) = [line for line in text.partition("### Computed")[2].splitlines() if line.startswith("| doctor")]
    assert computed.startswith("| doctor | 16, 64 | 1.0 + 0.100 per node | 101 | 1,000 | 1 | 1,001 | 10,000 | 10 |")
    assert "| drift" not in text.partition("### Computed")[2]
