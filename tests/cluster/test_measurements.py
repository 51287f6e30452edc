"""Nodes and links of healthy nodes are measured, and nobody is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.model.results import Verdict
from clusterctl.validation import run as validation
from clusterctl.validation.checks import registry
from validated import NODES, Cluster, result

pytestmark = pytest.mark.cluster


@pytest.mark.long
def test_healthy_nodes_and_links_have_figures_with_samples_and_nobody_is_named(mpi_cluster: Cluster) -> None:
    options = validation.ValidationOptions(
        suite=registry.builtin("smoke"), checks=("node_speed", "pairs"), search=False, remembered=False
    )
    record = validation.validate(mpi_cluster.box.inventory, options)
    if record.verdict is not Verdict.PASS:  # other tests have the same two cores, and may have kept one node from them
        record = validation.validate(mpi_cluster.box.inventory, options)
    assert mpi_cluster.is_clean()
    speed, pairs = result(record, "node_speed"), result(record, "pairs")
    assert (speed.verdict, speed.culprits) == (Verdict.PASS, ()), speed.reason
    for quantity in ("memory_bandwidth", "compute"):
        of_nodes = {figure.nodes: figure for figure in speed.figures if figure.quantity == quantity}
        assert set(of_nodes) == {(name,) for name in NODES}
        assert all(figure.value > 1e6 and figure.samples for figure in of_nodes.values())
    assert (pairs.verdict, pairs.culprits) == (Verdict.PASS, ()), pairs.reason
    assert {(matrix.quantity, matrix.unit) for matrix in pairs.matrices} == {("latency", "us"), ("bandwidth", "B/s")}
    assert all(matrix.complete and len(matrix.value) == 6 for matrix in pairs.matrices)
    log = (Path(record.folder) / pairs.log).read_text(encoding="utf-8")
    assert log.count('"quantity": "bandwidth"') == log.count('"quantity": "latency"') == 6  # a line for every link
