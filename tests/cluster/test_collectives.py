"""The sweep over message sizes on four real nodes: every point is proved and measured, and its figures add up."""

from __future__ import annotations

import pytest
from clusterctl.model.results import Verdict
from clusterctl.suite import OPERATIONS
from clusterctl.validation import run as validation
from clusterctl.validation.checks import registry
from clusterctl.validation.checks.collectives import SweepOptions
from validated import Cluster, result

pytestmark = pytest.mark.cluster

SIZES = (1024, 65536, 1048576)
SUITE = registry.builtin("nightly").model_copy(
    update={"checks": {"collectives": SweepOptions(sizes=SIZES, budget_s=0.2, precision=0.2, deadline_s=240)}}
)


def test_every_operation_and_size_is_proved_and_measured(mpi_cluster: Cluster) -> None:
    options = validation.ValidationOptions(suite=SUITE, checks=("collectives",))
    found = result(validation.validate(mpi_cluster.box.inventory, options), "collectives")
    assert found.verdict is Verdict.PASS, found.reason
    assert found.reason.startswith("8 ranks on 4 nodes, ")
    assert "allreduce of 1 MiB: " in found.reason
    times = {(one.operation, one.size_bytes): one for one in found.figures if one.quantity == "time"}
    buses = {(one.operation, one.size_bytes): one for one in found.figures if one.quantity == "bus_bandwidth"}
    assert set(times) == set(buses) == {(operation, size) for operation in OPERATIONS for size in SIZES}
    for (operation, size), time in times.items():
        assert (time.backend, time.nodes, time.better) == ("mpi", (), "lower")
        assert min(time.samples) <= time.value <= max(time.samples)
        share = {"allreduce": 2 * 7 / 8, "broadcast": 1.0}.get(operation, 7 / 8)
        assert buses[operation, size].value == pytest.approx(size / time.value * share)
    assert found.ranks[0].compared > sum(SIZES) / 4 * 5
    assert found.ranks[0].facts["points"] == "15 of 15"
    assert mpi_cluster.is_clean()
