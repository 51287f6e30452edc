from __future__ import annotations

from clusterctl.model.results import Figure
from clusterctl.report import figure_words
from report_records import SLOW


def test_figures_have_names() -> None:
    assert figure_words.about(SLOW) == "bandwidth, 8 MiB (mpi)"
    assert figure_words.about(Figure(quantity="bus_bandwidth", operation="allreduce", value=1, unit="B/s")) == (
        "allreduce bus bandwidth"
    )
