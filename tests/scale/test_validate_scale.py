"""128 ranks on 64 nodes that share the cores of one machine: the checks pass, or blame the load and nobody."""

from __future__ import annotations

import pytest
from clusterctl.model.results import ValidationRecord, Verdict
from clusterctl.validation import run as validation
from netns_nodes import Nodes
from validated import Cluster, mpi_alone

NODES = 64
RANKS = 2 * NODES


@pytest.fixture(scope="module")
def record(many: Nodes) -> ValidationRecord:
    inventory = many.inventory(NODES)
    mpi_alone(many.box)
    _, seconds = Cluster(many.box).provision()
    options = validation.ValidationOptions(checks=("hello", "gather", "allreduce"), search=False)
    found = validation.validate(inventory, options)
    print(f"\n{NODES} nodes: provisioned in {seconds:.0f} s")  # noqa: T201 - make test-scale shows it
    for check in found.checks:
        print(f"{check.check} {check.verdict.value} {check.seconds:.0f} s {check.reason}")  # noqa: T201
    return found


def test_every_rank_takes_part(record: ValidationRecord) -> None:
    hello = next(one for one in record.checks if one.check == "hello")
    assert (hello.verdict, len(hello.ranks)) == (Verdict.PASS, RANKS), hello.reason


def test_no_node_is_blamed_for_the_load(record: ValidationRecord) -> None:
    assert {one.check: one.named for one in record.checks if one.named} == {}
