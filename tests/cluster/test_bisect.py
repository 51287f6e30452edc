"""Who makes a job hang, when every rank looks alike: the search on four real nodes, and where the ranks were stuck."""

from __future__ import annotations

import time

import pytest
from clusterctl.model.results import CheckProgress, ValidationEvent, Verdict
from clusterctl.validation import run as validation
from validated import NODES, Cluster, result

pytestmark = pytest.mark.cluster

DEADLINE_S = 20.0  # a healthy check takes two to four seconds, and this one passes four times
# The rank on the node goes on giving signs of life and never enters the collective, so that all others wait for it and
# nothing tells it from them.
NEVER_ENTERS = """
import sys
if "allreduce" in sys.argv:
    import time, numpy
    def never_enters(*_):
        time.sleep(1e6)
    numpy.arange = never_enters
"""


@pytest.mark.long
def test_the_node_is_found_that_nothing_tells_from_those_who_wait_for_it(mpi_cluster: Cluster) -> None:
    heard: list[str] = []

    def listen(event: ValidationEvent) -> None:
        if isinstance(event, CheckProgress) and event.text.startswith("searching for"):
            heard.append(event.text)

    options = validation.ValidationOptions(checks=("allreduce",), timeout_s=DEADLINE_S, search=True)
    with mpi_cluster.in_every_python_of("node3", NEVER_ENTERS):
        record = validation.validate(mpi_cluster.box.inventory, options, listen)
    found = result(record, "allreduce")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",)), found.reason
    assert found.search is not None
    assert [(one.kind, one.nodes) for one in found.search.culprits] == [("node", ("node3",))]
    assert len(found.search.launches) <= found.search.bound == 8
    assert all(one.ok is ("node3" not in one.nodes) for one in found.search.launches)
    assert found.reason.startswith("node3: 3 of 3 launches with it failed; 3 of 3 launches without passed")
    assert heard[0].endswith("launches 1 to 2 at once (one bad node takes 8 at most): node[1-2] | node[3-4]")

    # A machine that is busy with other tests may not answer for every rank in time.
    stuck = {stack.rank: stack for stack in found.stacks if stack.tool != "kernel"}
    assert stuck
    assert all(stack.host == NODES[rank // 2] and "in allreduce" in stack.text for rank, stack in stuck.items())
    assert all(("in never_enters" in stack.text) is (stack.host == "node3") for stack in stuck.values())
    assert mpi_cluster.is_clean()


def test_a_node_that_is_killed_in_mid_collective_is_named_and_nobody_searches(mpi_cluster: Cluster) -> None:
    container = mpi_cluster.box.node("node4").container
    killed: list[str] = []

    def kill(event: ValidationEvent) -> None:
        if getattr(event, "check", "") == "allreduce" and "ranks up" in getattr(event, "text", "") and not killed:
            killed.append(container)
            mpi_cluster.engine.run("kill", container)

    options = validation.ValidationOptions(checks=("allreduce",), timeout_s=DEADLINE_S, search=True)
    with mpi_cluster.in_every_python_of("node4", NEVER_ENTERS):  # so that the others are in the collective
        try:
            record = validation.validate(mpi_cluster.box.inventory, options, kill)
            assert mpi_cluster.is_clean(NODES[:3])
        finally:
            mpi_cluster.engine.run("start", container)
            mpi_cluster.on("node4", "sh", "-c", "rm -rf /tmp/prted.*")  # nobody could sweep it
    began = time.monotonic()
    while mpi_cluster.validate("hello").verdict is not Verdict.PASS and time.monotonic() < began + 30:
        time.sleep(1)
    found = result(record, "allreduce")
    assert killed
    assert (found.verdict, found.hosts, found.search) == (Verdict.FAIL, ("node4",), None), found.reason
    assert result(record, "reachable").hosts == ("node4",)
