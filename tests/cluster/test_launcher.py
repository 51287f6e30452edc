"""Faults that keep jobs from being launched on real nodes: the right node is named with the cause, without a search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import planting
import pytest
from clusterctl.model.results import CheckResult, CheckStarted, ValidationEvent, Verdict
from validated import NODES, Cluster, result

pytestmark = pytest.mark.cluster

DEADLINE_S = 12.0  # of a job that hangs
ENDS_S = 60.0  # of a job that ends by itself, on a busy machine as well
LIMITS = "/etc/security/limits.d/planted.conf"


@pytest.fixture
def cluster(mpi_cluster: Cluster) -> Iterator[Cluster]:
    yield mpi_cluster
    assert mpi_cluster.is_clean()


def few_files(cluster: Cluster, node: str) -> AbstractContextManager[None]:
    limit = f"printf '* hard nofile 24\\n* soft nofile 24\\n' > {LIMITS}"
    return planting.changed(cluster, node, limit, f"rm {LIMITS}")


def planted_after_the_gate(cluster: Cluster, plant: Callable[[], AbstractContextManager[None]]) -> CheckResult:
    """Validate hello; the fault comes when the check starts, so that the gate has not seen it."""
    with contextlib.ExitStack() as stack:

        def listen(event: ValidationEvent) -> None:
            if isinstance(event, CheckStarted) and event.check == "hello":
                stack.enter_context(plant())

        return result(cluster.validate("hello", timeout_s=ENDS_S, search=False, on_event=listen), "hello")


def test_nodes_on_which_nothing_can_be_launched_are_named_before_the_launch_and_left_out(cluster: Cluster) -> None:
    with (
        planting.full(cluster, "node2", planting.TMP),
        few_files(cluster, "node3"),
        planting.not_executable(cluster, "node4", "prted"),
    ):
        record = cluster.validate("hello")
    found = result(record, "provisioned")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, NODES[1:]), found.reason
    assert "node2: /tmp is full" in found.reason
    assert "node3: a session may open 24 files" in found.reason
    assert "node4: " in found.reason
    assert "first bin/prted (mode 0644, was 0755)" in found.reason
    assert {rank.host for rank in result(record, "hello").ranks} == {"node1"}
    assert result(record, "hello").verdict is Verdict.PASS
    assert cluster.validate("hello").verdict is Verdict.PASS  # all of it heals


def test_a_full_tmp_is_found_on_the_node_that_the_launcher_names(cluster: Cluster) -> None:
    found = planted_after_the_gate(cluster, lambda: planting.full(cluster, "node3", planting.TMP))
    assert found.verdict in {Verdict.FAIL, Verdict.ERROR}
    assert found.hosts == ("node3",), found.reason
    assert found.reason.startswith("node3: /tmp is full")
    assert found.reason.count("free space in /tmp") == 1, found.reason
    assert "lost the daemon" not in found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("node", ("node3",))]


def test_a_daemon_that_cannot_run_is_named_with_its_node(cluster: Cluster) -> None:
    found = planted_after_the_gate(cluster, lambda: planting.not_executable(cluster, "node4", "prted"))
    assert (found.verdict, found.hosts) == (Verdict.ERROR, ("node4",)), found.reason
    assert "prted is not executable" in found.reason
    assert found.search is None


def test_a_rank_that_dies_while_others_start_is_named_and_none_that_was_not_up_yet(cluster: Cluster) -> None:
    found = planted_after_the_gate(cluster, lambda: planting.python_that(cluster, "node3", "kill -SEGV $$"))
    assert (found.is_bad, found.hosts) == (True, ("node3",)), found.reason
    assert "SIGSEGV" in found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("node", ("node3",))]


def test_a_hang_in_hello_names_both_ends_and_the_direction_and_the_other_nodes_go_on(cluster: Cluster) -> None:
    with planting.closed(cluster, "node2", source="node1"):
        record = cluster.validate("hello", "allreduce", timeout_s=DEADLINE_S, search=False)
    others = result(record, "allreduce")
    assert (others.verdict, {rank.host for rank in others.ranks}) == (Verdict.PASS, {"node3", "node4"}), others.reason
    found = result(record, "hello")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node1", "node2")), found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("one_way", ("node1", "node2"))]
    assert "connections from node1 to node2" in found.reason


@pytest.mark.long
def test_a_port_that_is_closed_one_way_between_two_nodes_that_do_not_launch_is_a_fail(cluster: Cluster) -> None:
    """Ranks mostly connect from the other end, and the job passes; the nodes try each other's ports beside it."""
    with planting.closed(cluster, "node4", source="node3"):
        record = cluster.validate("hello", timeout_s=20)
    found = result(record, "hello")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3", "node4")), found.reason
    assert [(one.kind, one.nodes) for one in found.culprits] == [("one_way", ("node3", "node4"))]
    assert "connections from node3 to node4" in found.reason


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "hosts", "words"),
    [
        ("{node3} ct state new reject with icmp type host-prohibited", ("node3", "node4"), "are rejected (No route to"),
        ("{node3} meta length > 1400 drop", ("node3", "node4"), "carry small packets and lose large ones"),
        ("ct state new tcp dport 45000-65535 drop", ("node4",), "time out on ports "),
    ],
)
def test_rejects_small_mtus_and_closed_ranges_are_named_in_the_first_run(
    cluster: Cluster, rule: str, hosts: tuple[str, ...], words: str
) -> None:
    source = f"ip saddr {cluster.box.node('node3').address} tcp dport 1024-65535"
    with planting.filtered(cluster, "node4", "input", rule.format(node3=source)):
        record = cluster.validate("hello", timeout_s=20, search=False)
    found = result(record, "hello")
    assert (found.verdict, set(found.hosts)) == (Verdict.FAIL, set(hosts)), found.reason
    assert words in found.reason
