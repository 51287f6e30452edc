from __future__ import annotations

from clusterctl.model.results import Figure
from clusterctl.report import figure_words
from report_records import SLOW


def test_figures_have_names() -> None:
    assert figure_words.about(SLOW) == "bandwidth, 8 MiB (mpi)"
    assert figure_words.about(Figure(quantity="bus_bandwidth", operation="allreduce", value=1, unit="B/s")) == (
        "allreduce bus bandwidth"
    )


def test_directions_differ_from_a_quarter_on() -> None:
    assert figure_words.differ(1.0, 1.3)
    assert figure_words.differ(1.3, 1.0)
    assert not figure_words.differ(1.0, 1.2)
    assert not figure_words.differ(0.0, 1.0)  # nothing was measured that way
