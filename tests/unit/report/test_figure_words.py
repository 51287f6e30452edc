from __future__ import annotations

from clusterctl.model.culprits import Fineness
from clusterctl.model.results import Figure
from clusterctl.report import figure_words
from report_records import SLOW


def test_figures_have_names() -> None:
    assert figure_words.about(SLOW) == "bandwidth, 8 MiB (mpi)"
    assert figure_words.about(Figure(quantity="bus_bandwidth", operation="allreduce", value=1, unit="B/s")) == (
        "allreduce bus bandwidth"
    )


def test_fineness_has_words() -> None:
    assert figure_words.fineness(Fineness(kind="link", quantity="bus_bandwidth", fraction=0.12)) == (
        "links to ±12 % (bus bandwidth)"
    )
    coarse = Fineness(kind="node", quantity="compute", fraction=0.4, why="the cores were busy")
    assert figure_words.fineness(coarse) == "nodes to ±40 % (compute): the cores were busy"
