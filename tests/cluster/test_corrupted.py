"""Corruption: a bit flips in the answer of one rank, or in one of many copies of a node, and that node is named."""

from __future__ import annotations

import planting
import pytest
from clusterctl.model.results import Verdict
from clusterctl.validation import run as validation
from clusterctl.validation.checks import registry
from clusterctl.validation.checks.collectives import SweepOptions
from clusterctl.validation.checks.copies import CopiesOptions
from validated import Cluster, result

pytestmark = pytest.mark.cluster

SUITE = registry.builtin("nightly").model_copy(
    update={"checks": {"collectives": SweepOptions(sizes=(8, 1024), operations=("allreduce", "allgather"))}}
)


def test_a_flipped_bit_in_one_rank_s_answer_is_found_and_its_node_is_named(mpi_cluster: Cluster) -> None:
    cluster = mpi_cluster
    options = validation.ValidationOptions(suite=SUITE, checks=("hello", "allreduce", "collectives"), search=False)
    with planting.preloaded(cluster, "node3"):
        record = validation.validate(cluster.box.inventory, options)
    hello = result(record, "hello")
    assert (hello.verdict, hello.hosts) == (Verdict.FAIL, ("node3",))
    assert hello.reason == "rank 5 on node3: allreduce sum of the numbers 1 to 8: expected 36, got 37"
    answers = result(record, "allreduce")
    assert (answers.verdict, answers.hosts) == (Verdict.FAIL, ("node3",))
    assert answers.reason.startswith(
        "rank 5 on node3: allreduce sum i4[1], value 0 (1 of 1 wrong): expected 36, got 37"
    )
    sweep = result(record, "collectives")
    assert (sweep.verdict, sweep.hosts) == (Verdict.FAIL, ("node3",))
    assert sweep.reason.startswith("rank 5 on node3: allreduce of 8 bytes, value 1 (1 of 2 wrong)")
    assert [report.rank for report in sweep.ranks if not report.ok] == [5]
    assert cluster.is_clean()


def test_a_node_that_corrupts_one_of_ten_thousand_copies_is_named_and_a_healthy_cluster_passes(
    mpi_cluster: Cluster,
) -> None:
    cluster = mpi_cluster
    quick = CopiesOptions(size=64 << 10, one_in=10_000, chance=0.999)  # two cores; both miss it 1 in 10^6 times
    suite = registry.builtin("nightly").model_copy(update={"checks": {"copies": quick}})
    options = validation.ValidationOptions(suite=suite, search=False)
    with planting.preloaded(cluster, "node3", planting.FLIP_COPIES):
        found = result(validation.validate(cluster.box.inventory, options), "copies")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",)), found.reason
    assert "of 65,536 bytes on core" in found.reason
    assert "(1 of 8,192 words wrong)" in found.reason
    assert "take the node out of use" in found.next_step
    healthy = result(validation.validate(cluster.box.inventory, options), "copies")
    assert (healthy.verdict, healthy.hosts) == (Verdict.PASS, ()), healthy.reason
    assert "which finds a core that corrupts 1 in 10,000 with a chance of 99.9 %" in healthy.reason
    assert cluster.is_clean()
